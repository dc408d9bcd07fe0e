"""One step of the gated delta rule for every lane.

S <- exp(log_decay) S;  delta = beta (v - S^T k);  S <- S + k delta^T;  out = S^T q.
"""

import jax

from pallas_kernels.dispatch import Path
from pallas_kernels.gated_delta_decode import xla

__all__ = ["gated_delta_decode"]


def gated_delta_decode(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    beta: jax.Array,
    states: jax.Array,
    live: jax.Array,
    path: Path = Path.XLA,
) -> tuple[jax.Array, jax.Array]:
    """Advances the state of each live lane by one token.

    Args:
        q, k: [L, Hk, dk] f32, L2-normalised, q scaled by dk^-0.5.
        v: [L, Hv, dv] f32; value head h reads key head h // (Hv // Hk).
        log_decay, beta: [L, Hv] f32.
        states: [L, Hv, dk, dv] f32.
        live: [L] bool; the state of a dead lane is left as it is.

    Returns:
        out [L, Hv, dv] (of a dead lane: finite, without meaning) and the states.
    """
    if path is Path.XLA:
        return xla.gated_delta_decode(q, k, v, log_decay, beta, states, live)
    from pallas_kernels.gated_delta_decode import pallas

    return pallas.gated_delta_decode(
        q, k, v, log_decay, beta, states, live, interpret=path is Path.INTERPRET
    )
