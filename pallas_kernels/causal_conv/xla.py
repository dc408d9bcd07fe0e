"""Causal convolution by shifted products, one 64-row tile at a time."""

import jax
import jax.numpy as jnp

from pallas_kernels.tiles import TILE_ROWS, chunk_tiles, for_tiles, write_tile


def _taps(weight: jax.Array) -> list[jax.Array]:
    """The weights [C] of each tap, oldest first, each contiguous."""
    by_tap = weight.T
    return [by_tap[j] for j in range(weight.shape[1])]


def prefill(
    x: jax.Array, weight: jax.Array, tail: jax.Array, num_tokens: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The convolution over a chunk.

    Args:
        x: [T, C] f32 raw inputs, T a multiple of 64.
        weight: [C, W] f32, oldest tap first.
        tail: [W - 1, C] f32, the inputs before the chunk, oldest first.
        num_tokens: int32, the real rows; tiles past them do not run.

    Returns:
        y [T, C] f32 and tails [T / 64, W - 1, C]: the carried state after each tile.
    """
    kept = tail.shape[0]
    padded = jnp.concatenate([tail, x])
    taps = _taps(weight)
    tails = jnp.zeros((x.shape[0] // TILE_ROWS, *tail.shape), x.dtype)

    def tile(index: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        y, tails = carry

        def rows(offset: int, count: int) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(padded, index * TILE_ROWS + offset, count, 0)

        # A slice for each tap: slices of one common window made the loop four times slower.
        total = rows(0, TILE_ROWS) * taps[0]
        for j in range(1, len(taps)):
            total = total + rows(j, TILE_ROWS) * taps[j]
        y = write_tile(y, jax.nn.silu(total), index)
        return y, write_tile(tails, rows(TILE_ROWS, kept)[None], index)

    return for_tiles(chunk_tiles(x.shape[0], num_tokens), tile, (jnp.zeros_like(x), tails))


def decode(x: jax.Array, weight: jax.Array, tail: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The convolution for one new input.

    Args:
        x: [C] f32; weight: [C, W] f32; tail: [W - 1, C] f32, oldest first.

    Returns:
        y [C] and the new tail.
    """
    taps = _taps(weight)
    total = tail[0] * taps[0]
    for j in range(1, tail.shape[0]):
        total = total + tail[j] * taps[j]
    return jax.nn.silu(total + x * taps[-1]), jnp.concatenate([tail[1:], x[None]])
