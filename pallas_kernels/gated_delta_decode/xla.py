"""The decode step of the delta rule, lane by lane, so that a dead lane costs nothing.

Every lane runs the same loop body, so its bits do not depend on its number or its neighbours.
"""

import jax
import jax.numpy as jnp

from pallas_kernels.tiles import for_tiles, live_tiles


def gated_delta_decode(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    beta: jax.Array,
    states: jax.Array,
    live: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """See the package; shapes are as stated there."""
    group = v.shape[1] // k.shape[1]

    def lane(index: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out, states = carry

        def of(array: jax.Array) -> jax.Array:
            return jax.lax.dynamic_index_in_dim(array, index, 0, keepdims=False)

        key = jnp.repeat(of(k), group, axis=0)[:, :, None]
        query = jnp.repeat(of(q), group, axis=0)[:, :, None]
        decayed = jnp.exp(of(log_decay))[:, None, None] * of(states)
        delta = of(beta)[:, None] * (of(v) - jnp.sum(decayed * key, axis=1))
        updated = decayed + key * delta[:, None, :]
        result = jnp.sum(updated * query, axis=1)
        return (
            jax.lax.dynamic_update_index_in_dim(out, result, index, 0),
            jax.lax.dynamic_update_index_in_dim(states, updated, index, 0),
        )

    return for_tiles(live_tiles(live), lane, (jnp.zeros_like(v), states))
