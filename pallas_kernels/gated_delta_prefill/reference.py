"""The gated delta rule over a run of tokens: the recurrence, one token after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from pallas_kernels.gated_delta_decode.reference import step

Array = np.ndarray[Any, np.dtype[Any]]

PAGE_TOKENS = 64


def gated_delta_prefill(
    q: Array,
    k: Array,
    v: Array,
    log_decay: Array,
    beta: Array,
    state: Array,
    keep: Array,
    kept: Array,
    num_tokens: int,
) -> tuple[Array, Array, Array]:
    """Reads T tokens and hands out the states that were asked for.

    Args:
        q: [T, Hk, dk], L2-normalised and scaled by dk**-0.5. T is a multiple of 64.
        k: [T, Hk, dk], L2-normalised.
        v: [T, Hv, dv].
        log_decay: [T, Hv], at most 0.
        beta: [T, Hv]. Rows with beta = 0 and log_decay = 0 are padding.
        state: [Hv, dk, dv] before the first token.
        keep: [T / 64] int32: the row of `kept` that takes the state after each tile of 64 tokens.
        kept: [K + 1, Hv, dk, dv]; row K takes what nobody asked for.
        num_tokens: real tokens; tiles of 64 that hold none are not read and give zeros.

    Returns:
        [T, Hv, dv], the final state, and kept with the rows that `keep` names replaced.
    """
    out = np.zeros(v.shape)
    filled = kept.astype(np.float64)
    current = state.astype(np.float64)
    for tile in range(-(-num_tokens // PAGE_TOKENS)):
        for t in range(tile * PAGE_TOKENS, (tile + 1) * PAGE_TOKENS):
            out[t], current = step(q[t], k[t], v[t], log_decay[t], beta[t], current)
        filled[keep[tile]] = current
    return out, current, filled


def by_chunks(
    q: Array, k: Array, v: Array, log_decay: Array, beta: Array, state: Array, chunk: int
) -> tuple[Array, Array]:
    """The same for one head, in chunk form: the algebra that the fast paths use.

    Within a chunk, with G the running sum of log_decay, D[i, j] = exp(G[i] - G[j]) and
    A = strictly lower (beta[i] k[i].k[j] D[i, j]):

        T = (I + A)^-1,   U = T (beta v),   W = T (beta exp(G) k)
        v' = U - W S,     o = (q exp(G)) S + lower(q k^T D) v'
        S <- exp(G_end) S + (k exp(G_end - G))^T v'

    Only exponents at most 0 appear. Args as above with the head axis left out: q, k [T, dk], v [T,
    dv], log_decay and beta [T], state [dk, dv]; T may be ragged. Returns [T, dv] and the final
    state.
    """
    out = np.empty(v.shape)
    for start in range(0, v.shape[0], chunk):
        rows = slice(start, min(start + chunk, v.shape[0]))
        total = np.cumsum(log_decay[rows])
        decay = np.exp(np.minimum(total[:, None] - total[None, :], 0.0))
        scaled_k = beta[rows, None] * k[rows]
        inverse = np.linalg.inv(np.eye(len(total)) + np.tril(scaled_k @ k[rows].T * decay, k=-1))
        u = inverse @ (beta[rows, None] * v[rows])
        w = inverse @ (scaled_k * np.exp(total)[:, None])
        fresh = u - w @ state
        inside = np.tril(q[rows] @ k[rows].T * decay)
        out[rows] = (q[rows] * np.exp(total)[:, None]) @ state + inside @ fresh
        state = np.exp(total[-1]) * state + (k[rows] * np.exp(total[-1] - total)[:, None]).T @ fresh
    return out, state
