"""One token of the gated delta rule, for every lane of a batch.

The recurrence, per value head, with the state S [dk, dv] (Yang, Kautz, Hatamizadeh, "Gated Delta
Networks", arXiv 2412.06464, transposed to the layout that the checkpoints use):

    S <- exp(g) S
    S <- S + k (beta (v - S^T k))^T
    o  = S^T q
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def step(
    q: Array, k: Array, v: Array, log_decay: Array, beta: Array, state: Array
) -> tuple[Array, Array]:
    """One token of one sequence.

    Args:
        q: [Hk, dk], L2-normalised and scaled by dk**-0.5.
        k: [Hk, dk], L2-normalised.
        v: [Hv, dv].
        log_decay: [Hv], at most 0.
        beta: [Hv], within 0 and 1. With beta = 0 and log_decay = 0 the state stays as it is.
        state: [Hv, dk, dv].

    Returns:
        [Hv, dv] and the new state. Value head h reads key head h // (Hv // Hk).
    """
    out = np.empty(v.shape)
    new_state = np.empty(state.shape)
    share = v.shape[0] // k.shape[0]
    for head in range(v.shape[0]):
        key = k[head // share].astype(np.float64)
        query = q[head // share].astype(np.float64)
        decayed = np.exp(np.float64(log_decay[head])) * state[head].astype(np.float64)
        delta = np.float64(beta[head]) * (v[head] - decayed.T @ key)
        new_state[head] = decayed + np.outer(key, delta)
        out[head] = new_state[head].T @ query
    return out, new_state


def gated_delta_decode(
    q: Array, k: Array, v: Array, log_decay: Array, beta: Array, states: Array, live: Array
) -> tuple[Array, Array]:
    """One token in each lane; every argument of `step` with a leading lane axis.

    Args:
        live: [L] bool. A dead lane keeps its state; its output is zero here and unspecified
            elsewhere.

    Returns:
        [L, Hv, dv] and [L, Hv, dk, dv].
    """
    out = np.zeros(v.shape)
    new_states = states.astype(np.float64)
    for lane in np.flatnonzero(live):
        out[lane], new_states[lane] = step(
            q[lane], k[lane], v[lane], log_decay[lane], beta[lane], states[lane]
        )
    return out, new_states
