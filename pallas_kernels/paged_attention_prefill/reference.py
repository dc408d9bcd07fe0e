"""Causal attention of a run of new tokens over the pages of their sequence: a dense softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from pallas_kernels.paged_attention_decode.reference import attend, gather

Array = np.ndarray[Any, np.dtype[Any]]

PAGE_TOKENS = 64


def paged_attention_prefill(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    table: Array,
    first_page: int,
    scale: float,
    num_tokens: int,
) -> Array:
    """Attends with T queries whose own keys are already in the pages.

    Args:
        q: [T, H, d], T a multiple of 64: tile i of 64 queries is page first_page + i of the
            sequence.
        k_pages: [P, Hkv, 64, d] float32, or uint16 that holds bf16 bits.
        v_pages: the same.
        table: [N] int32, page numbers in the order of the sequence, every page of the queries
            included.

        scale: factor on the scores.
        num_tokens: real queries; tiles of 64 that hold none are not read and give zeros.

    Returns:
        [T, H, d]. Query t sees the first_page * 64 + t + 1 tokens up to and with its own.
    """
    out = np.zeros(q.shape)
    rows = -(-num_tokens // PAGE_TOKENS) * PAGE_TOKENS
    share = q.shape[1] // k_pages.shape[1]
    before = int(first_page) * PAGE_TOKENS
    for head in range(q.shape[1]):
        keys = gather(k_pages, table, head // share, before + rows)
        values = gather(v_pages, table, head // share, before + rows)
        for t in range(rows):
            seen = before + t + 1
            out[t, head] = attend(q[t, head], keys[:seen], values[:seen], scale)
    return out
