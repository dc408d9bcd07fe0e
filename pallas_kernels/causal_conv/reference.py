"""Depthwise causal convolution over time, written out token by token.

y[t, c] = silu(sum_j weight[c, j] * x[t - W + 1 + j, c]), where x before the first token is the tail
of what came earlier (zeros in a fresh sequence). No bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

PAGE_TOKENS = 64


def prefill(x: Array, weight: Array, tail: Array, num_tokens: int) -> tuple[Array, Array]:
    """Convolves a run of tokens.

    Args:
        x: [T, C] inputs, T a multiple of 64.
        weight: [C, W], the last column meets the current token.
        tail: [W - 1, C], the inputs before x, oldest first.
        num_tokens: real tokens; tiles of 64 that hold none are not read and give zeros.

    Returns:
        [T, C] after SiLU, and [T / 64, W - 1, C]: the tail after each tile of 64 tokens.
    """
    tokens, channels = x.shape
    history = np.concatenate([tail, x]).astype(np.float64)
    out = np.zeros((tokens, channels))
    tails = np.zeros((tokens // PAGE_TOKENS, *tail.shape))
    for tile in range(-(-num_tokens // PAGE_TOKENS)):
        end = (tile + 1) * PAGE_TOKENS
        for t in range(end - PAGE_TOKENS, end):
            out[t] = _convolve(history[t : t + weight.shape[1]], weight)
        tails[tile] = history[end : end + tail.shape[0]]
    return out, tails


def decode(x: Array, weight: Array, tail: Array) -> tuple[Array, Array]:
    """Convolves one token: x [C], weight [C, W], tail [W - 1, C] -> y [C] and the new tail."""
    window = np.concatenate([tail, x[None]]).astype(np.float64)
    return _convolve(window, weight), window[1:]


def _convolve(window: Array, weight: Array) -> Array:
    """One output row [C] from the W inputs [W, C] that end at its token."""
    total = np.sum(window * weight.T.astype(np.float64), axis=0)
    return np.asarray(total / (1.0 + np.exp(-total)))
