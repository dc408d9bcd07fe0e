"""Row tiles of one size: what makes a row's bits independent of how many rows share its program.

On the CPU backend sums, norms and even `exp` round differently with the size of the array they
run over; matrix products of two rows and more do not. So all that is no matrix product runs over
tiles of a fixed number of rows, at whatever width a program is compiled.
"""

from collections.abc import Callable
from typing import Any

import jax

TILE_ROWS = 64


def map_tiles(function: Callable[..., Any], tile_rows: int, *arrays: jax.Array) -> Any:
    """`function` applied to consecutive tiles of `tile_rows` rows of each array.

    Args:
        function: takes one [tile_rows, ...] array for each of `arrays`, returns a pytree of
            [tile_rows, ...] arrays.
        arrays: [rows, ...]; `rows` is a multiple of `tile_rows`.

    Returns:
        The pytree with [rows, ...] leaves.
    """
    rows = arrays[0].shape[0]
    assert rows % tile_rows == 0, f"{rows} rows are no multiple of {tile_rows}"
    num_tiles = rows // tile_rows
    tiled = tuple(a.reshape(num_tiles, tile_rows, *a.shape[1:]) for a in arrays)
    mapped = jax.lax.map(lambda tile: function(*tile), tiled)
    return jax.tree.map(lambda leaf: leaf.reshape(rows, *leaf.shape[2:]), mapped)
