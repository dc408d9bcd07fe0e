"""Causal convolution by shifted products, one 64-row tile at a time."""

import jax
import jax.numpy as jnp

from pallas_kernels.tiles import TILE_ROWS, chunk_tiles, for_tiles, write_tile


def _convolve(window: jax.Array, weight: jax.Array) -> jax.Array:
    rows = window.shape[0] - weight.shape[1] + 1
    total = window[:rows] * weight[:, 0]
    for j in range(1, weight.shape[1]):
        total = total + window[j : j + rows] * weight[:, j]
    return jax.nn.silu(total)


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
    tails = jnp.zeros((x.shape[0] // TILE_ROWS, *tail.shape), x.dtype)

    def tile(index: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        y, tails = carry
        start = index * TILE_ROWS
        window = jax.lax.dynamic_slice_in_dim(padded, start, TILE_ROWS + kept, 0)
        y = write_tile(y, _convolve(window, weight), index)
        return y, write_tile(tails, window[None, TILE_ROWS:], index)

    return for_tiles(chunk_tiles(x.shape[0], num_tokens), tile, (jnp.zeros_like(x), tails))


def decode(x: jax.Array, weight: jax.Array, tail: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The convolution for one new input.

    Args:
        x: [C] f32; weight: [C, W] f32; tail: [W - 1, C] f32, oldest first.

    Returns:
        y [C] and the new tail.
    """
    window = jnp.concatenate([tail, x[None]])
    return _convolve(window, weight)[0], window[1:]
