"""Attention of 64-query tiles over key tiles of four pages, with an online softmax."""

import jax
import jax.numpy as jnp

from pallas_kernels.online_softmax import (
    KEY_PAGES,
    Partial,
    add_tile,
    empty_partial,
    gather_tile,
)
from pallas_kernels.tiles import TILE_ROWS


def paged_attention_prefill(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    table: jax.Array,
    first_page: jax.Array,
    scale: float,
) -> jax.Array:
    """See the package.

    Args:
        q: [T, H, d] f32, T a multiple of 64.
        k_pages, v_pages: [P, Hkv, 64, d], f32 or uint16 with the bits of bf16.
        table: [N] int32 page numbers, N a multiple of four; entries past the sequence are 0.
        first_page: int32, the page of the first query.
        scale: factor of the scores.

    Returns:
        [T, H, d] f32.
    """
    tokens, heads, width = q.shape
    kv_heads = k_pages.shape[1]
    group = heads // kv_heads
    num_tiles = tokens // TILE_ROWS
    tiles = (q * scale).reshape(num_tiles, TILE_ROWS, kv_heads, group, width)
    tiles = jnp.transpose(tiles, (0, 2, 3, 1, 4)).reshape(
        num_tiles, kv_heads, group * TILE_ROWS, width
    )
    key_offsets = jnp.arange(KEY_PAGES * TILE_ROWS)
    row_offsets = jnp.tile(jnp.arange(TILE_ROWS), group)

    def query_tile(inputs: tuple[jax.Array, jax.Array]) -> jax.Array:
        page, queries = inputs
        positions = page * TILE_ROWS + row_offsets

        def key_tile(index: jax.Array, partial: Partial) -> Partial:
            visible = index * (KEY_PAGES * TILE_ROWS) + key_offsets <= positions[:, None]
            k = gather_tile(k_pages, table, index)
            v = gather_tile(v_pages, table, index)
            return add_tile(partial, queries, k, v, visible)

        start = empty_partial(kv_heads, group * TILE_ROWS, width)
        accumulated, _, total = jax.lax.fori_loop(0, page // KEY_PAGES + 1, key_tile, start)
        return accumulated / total[..., None]

    out = jax.lax.map(query_tile, (first_page + jnp.arange(num_tiles), tiles))
    out = out.reshape(num_tiles, kv_heads, group, TILE_ROWS, width)
    return jnp.transpose(out, (0, 3, 1, 2, 4)).reshape(tokens, heads, width)
