"""Decode attention, lane by lane, over key tiles of four pages with an online softmax."""

import jax
import jax.numpy as jnp

from pallas_kernels.online_softmax import (
    KEY_PAGES,
    Partial,
    add_tile,
    empty_partial,
    gather_tile,
)
from pallas_kernels.tiles import TILE_ROWS, for_tiles, live_tiles


def paged_attention_decode(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    table: jax.Array,
    lengths: jax.Array,
    scale: float,
) -> jax.Array:
    """See the package; shapes are as stated there."""
    _, heads, width = q.shape
    kv_heads = k_pages.shape[1]
    group = heads // kv_heads
    tile_keys = KEY_PAGES * TILE_ROWS
    key_offsets = jnp.arange(tile_keys)

    def lane(index: jax.Array, out: jax.Array) -> jax.Array:
        queries = (jax.lax.dynamic_index_in_dim(q, index, 0, False) * scale).reshape(
            kv_heads, group, width
        )
        pages = jax.lax.dynamic_index_in_dim(table, index, 0, False)
        length = lengths[index]

        def key_tile(tile: jax.Array, partial: Partial) -> Partial:
            visible = jnp.broadcast_to(tile * tile_keys + key_offsets < length, (group, tile_keys))
            k = gather_tile(k_pages, pages, tile)
            v = gather_tile(v_pages, pages, tile)
            return add_tile(partial, queries, k, v, visible)

        count = (length + tile_keys - 1) // tile_keys
        accumulated, _, total = jax.lax.fori_loop(
            0, count, key_tile, empty_partial(kv_heads, group, width)
        )
        result = (accumulated / total[..., None]).reshape(heads, width)
        return jax.lax.dynamic_update_index_in_dim(out, result, index, 0)

    return for_tiles(live_tiles(lengths > 0), lane, jnp.zeros_like(q))
