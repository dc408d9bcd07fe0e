"""Attention of one new token in each lane over its pages: a dense softmax, written out."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def page_values(pages: Array) -> Array:
    """Pages as float64; uint16 holds the upper half of a float32, which is what bf16 is."""
    if pages.dtype == np.uint16:
        return (pages.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return pages.astype(np.float64)


def attend(q: Array, keys: Array, values: Array, scale: float) -> Array:
    """softmax(scale q k^T) v of one query: q [d], keys and values [S, d] -> [d]."""
    scores = scale * (keys @ q.astype(np.float64))
    weights = np.exp(scores - scores.max())
    return np.asarray(weights @ values / weights.sum())


def gather(pages: Array, table: Array, head: int, length: int) -> Array:
    """The first `length` rows of one KV head, in the order of the table: [length, d] float64."""
    num_pages = -(-length // pages.shape[2])
    rows = page_values(pages[table[:num_pages], head])
    return rows.reshape(-1, pages.shape[3])[:length]


def paged_attention_decode(
    q: Array, k_pages: Array, v_pages: Array, table: Array, lengths: Array, scale: float
) -> Array:
    """Attends with one query per lane and head.

    Args:
        q: [L, H, d]; query head h reads KV head h // (H // Hkv).
        k_pages: [P, Hkv, 64, d] float32, or uint16 that holds bf16 bits.
        v_pages: the same.
        table: [L, N] int32, page numbers in the order of the sequence.
        lengths: [L] int32 tokens to attend to, the lane's own token included. 0 is a dead lane.

    Returns:
        [L, H, d]; zeros in dead lanes. Nothing past `lengths` is read.
    """
    out = np.zeros(q.shape)
    share = q.shape[1] // k_pages.shape[1]
    for lane in np.flatnonzero(lengths):
        for head in range(q.shape[1]):
            keys = gather(k_pages, table[lane], head // share, int(lengths[lane]))
            values = gather(v_pages, table[lane], head // share, int(lengths[lane]))
            out[lane, head] = attend(q[lane, head], keys, values, scale)
    return out
