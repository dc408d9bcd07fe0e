"""Row tiles of one size: what makes a row's bits independent of how many rows share its program.

On the CPU backend sums, norms and even `exp` round differently with the size of the array they
run over; matrix products of some rows do not. So all that is no matrix product runs over tiles of
a fixed number of rows, at whatever width a program is compiled. How many tiles run is known only
at run time: a loop whose length the compiler knew to be one would be dissolved into its
surroundings, fused otherwise, and round otherwise. Tiles of padding and dead lanes cost nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

TILE_ROWS = 64

Carry = TypeVar("Carry")


class Tiles(NamedTuple):
    """The tiles to run: the first `num_live` (int32) entries of `order` [num_tiles] int32."""

    order: jax.Array
    num_live: jax.Array


def chunk_tiles(width: int, num_tokens: jax.Array) -> Tiles:
    """The 64-row tiles of a chunk of `width` rows whose first `num_tokens` (int32) are real."""
    assert width % TILE_ROWS == 0, f"{width} rows are no multiple of {TILE_ROWS}"
    count = (num_tokens + TILE_ROWS - 1) // TILE_ROWS
    return Tiles(jnp.arange(width // TILE_ROWS), count)


def live_tiles(live: jax.Array) -> Tiles:
    """One-row tiles of the rows whose `live` [rows] is true, in ascending order."""
    order = jnp.argsort(jnp.logical_not(live), stable=True)
    return Tiles(order.astype(jnp.int32), jnp.sum(live.astype(jnp.int32)))


def for_tiles(tiles: Tiles, body: Callable[[jax.Array, Carry], Carry], carry: Carry) -> Carry:
    """Runs `body(tile number, carry)` for each tile in turn."""
    return jax.lax.fori_loop(0, tiles.num_live, lambda i, c: body(tiles.order[i], c), carry)


def read_tile(array: jax.Array, tile: jax.Array, num_tiles: int) -> jax.Array:
    """Rows [rows / num_tiles, ...] of tile number `tile`."""
    rows = array.shape[0] // num_tiles
    return jax.lax.dynamic_slice_in_dim(array, tile * rows, rows, 0)


def write_tile(array: jax.Array, rows: jax.Array, tile: jax.Array) -> jax.Array:
    """The array with `rows` in the place of tile number `tile`."""
    return jax.lax.dynamic_update_slice_in_dim(array, rows, tile * rows.shape[0], 0)


def map_tiles(function: Callable[..., Any], tiles: Tiles, *arrays: jax.Array) -> Any:
    """`function` applied to the same tile of each array, tile by tile.

    Args:
        function: takes one [tile rows, ...] array for each of `arrays`, returns a pytree of
            [tile rows, ...] arrays.
        arrays: [rows, ...]; `rows` is a multiple of the number of tiles.

    Returns:
        The pytree with [rows, ...] leaves; rows of tiles that did not run are 0.
    """
    num_tiles = tiles.order.shape[0]
    rows = arrays[0].shape[0]
    assert rows % num_tiles == 0, f"{rows} rows do not divide into {num_tiles} tiles"
    size = rows // num_tiles

    def stored(*parts: jax.Array) -> Any:
        return jax.tree.map(_to_bits, function(*parts))

    shapes = jax.eval_shape(stored, *(a[:size] for a in arrays))
    out = jax.tree.map(lambda s: jnp.zeros((rows, *s.shape[1:]), s.dtype), shapes)

    def body(tile: jax.Array, out: Any) -> Any:
        result = stored(*(read_tile(a, tile, num_tiles) for a in arrays))
        return jax.tree.map(lambda whole, part: write_tile(whole, part, tile), out, result)

    types = jax.eval_shape(function, *(a[:size] for a in arrays))
    return jax.tree.map(
        lambda s, leaf: _from_bits(leaf, s.dtype), types, for_tiles(tiles, body, out)
    )


def _to_bits(array: jax.Array) -> jax.Array:
    """bf16 as its bits: writing a tile into a bf16 array converts the whole array on the CPU."""
    if array.dtype == jnp.bfloat16:
        return jax.lax.bitcast_convert_type(array, jnp.uint16)
    return array


def _from_bits(array: jax.Array, dtype: jnp.dtype) -> jax.Array:
    if array.dtype == dtype:
        return array
    return jax.lax.bitcast_convert_type(array, dtype)
