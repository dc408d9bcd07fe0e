"""The gated delta rule for one token in each lane, as a Triton kernel.

The columns of a state never meet: column j of S' needs column j of S, the whole key and one number
of v. So a program owns (lane, value head, block of columns), reads its part of the state once, and
writes it back in place. Everything is elementwise or a sum over dk in float32, so no matrix unit
rounds anything.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

BLOCK_COLUMNS = 32


def gated_delta_decode(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    beta: jax.Array,
    states: jax.Array,
    live: jax.Array,
    *,
    block_columns: int = BLOCK_COLUMNS,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Updates the state of every live lane by one token.

    Args:
        q: [L, Hk, dk] float32, L2-normalised and scaled by dk**-0.5. dk is a power of two.
        k: [L, Hk, dk] float32, L2-normalised.
        v: [L, Hv, dv] float32. dv is a power of two.
        log_decay: [L, Hv] float32, at most 0.
        beta: [L, Hv] float32.
        states: [L, Hv, dk, dv] float32, updated in place when the caller donates it.
        live: [L] bool.
        block_columns: columns of a state that one program owns, a power of two.
        interpret: runs the kernel as plain XLA operations, on any backend.

    Returns:
        [L, Hv, dv] and the states. A dead lane gives zeros and its state is neither read nor
        written.
    """
    lanes, heads, dv = v.shape
    dk = k.shape[2]
    share = heads // k.shape[1]
    columns = min(block_columns, dv)
    for name, size in (("dk", dk), ("dv", dv), ("block_columns", columns)):
        if size & (size - 1):
            raise ValueError(f"{name} must be a power of two for the Triton kernel, had {size}")
    per_head = pl.BlockSpec((None, None), lambda lane, head, block: (lane, head))
    key_row = pl.BlockSpec((None, None, dk), lambda lane, head, block: (lane, head // share, 0))
    value_row = pl.BlockSpec((None, None, columns), lambda lane, head, block: (lane, head, block))
    state_block = pl.BlockSpec(
        (None, None, dk, columns), lambda lane, head, block: (lane, head, 0, block)
    )
    out, new_states = pl.pallas_call(
        gated_delta_decode_kernel,
        out_shape=(
            jax.ShapeDtypeStruct(v.shape, jnp.float32),
            jax.ShapeDtypeStruct(states.shape, jnp.float32),
        ),
        grid=(lanes, heads, dv // columns),
        in_specs=[
            key_row,
            key_row,
            value_row,
            per_head,
            per_head,
            state_block,
            pl.BlockSpec((None,), lambda lane, head, block: (lane,)),
        ],
        out_specs=(value_row, state_block),
        input_output_aliases={5: 1},
        compiler_params=pltriton.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="gated_delta_decode",
    )(q, k, v, log_decay, beta, states, live.astype(jnp.int32))
    return out, new_states


def gated_delta_decode_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    log_decay_ref: Any,
    beta_ref: Any,
    state_ref: Any,
    live_ref: Any,
    out_ref: Any,
    new_state_ref: Any,
) -> None:
    """One block of columns of one head: q, k [dk], v and out [columns], states [dk, columns]."""
    live = live_ref[...] != 0

    @pl.when(live)
    def _() -> None:
        key = k_ref[...][:, None]
        decayed = state_ref[...] * jnp.exp(log_decay_ref[...])
        recalled = jnp.sum(decayed * key, axis=0)
        delta = beta_ref[...] * (v_ref[...] - recalled)
        fresh = decayed + key * delta[None, :]
        new_state_ref[...] = fresh
        out_ref[...] = jnp.sum(fresh * q_ref[...][:, None], axis=0)

    @pl.when(jnp.logical_not(live))
    def _() -> None:
        out_ref[...] = jnp.zeros(out_ref.shape, jnp.float32)
