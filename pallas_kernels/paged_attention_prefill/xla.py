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
from pallas_kernels.tiles import TILE_ROWS, chunk_tiles, map_tiles


def paged_attention_prefill(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    table: jax.Array,
    first_page: jax.Array,
    scale: float,
    num_tokens: jax.Array,
) -> jax.Array:
    """See the package.

    Args:
        q: [T, H, d] f32, T a multiple of 64.
        k_pages, v_pages: [P, Hkv, 64, d], f32 or uint16 with the bits of bf16.
        table: [N] int32 page numbers, N a multiple of four; entries past the sequence are 0.
        first_page: int32, the page of the first query.
        scale: factor of the scores.
        num_tokens: int32, the real queries; tiles past them do not run and give 0.

    Returns:
        [T, H, d] f32.
    """
    tokens, heads, width = q.shape
    kv_heads = k_pages.shape[1]
    group = heads // kv_heads
    key_offsets = jnp.arange(KEY_PAGES * TILE_ROWS)
    row_offsets = jnp.tile(jnp.arange(TILE_ROWS), group)

    def query_tile(q: jax.Array, pages: jax.Array) -> jax.Array:
        page = pages[0]
        queries = jnp.transpose(
            (q * scale).reshape(TILE_ROWS, kv_heads, group, width), (1, 2, 0, 3)
        )
        queries = queries.reshape(kv_heads, group * TILE_ROWS, width)
        positions = page * TILE_ROWS + row_offsets

        def key_tile(index: jax.Array, partial: Partial) -> Partial:
            visible = index * (KEY_PAGES * TILE_ROWS) + key_offsets <= positions[:, None]
            k = gather_tile(k_pages, table, index)
            v = gather_tile(v_pages, table, index)
            return add_tile(partial, queries, k, v, visible)

        start = empty_partial(kv_heads, group * TILE_ROWS, width)
        accumulated, _, total = jax.lax.fori_loop(0, page // KEY_PAGES + 1, key_tile, start)
        out = (accumulated / total[..., None]).reshape(kv_heads, group, TILE_ROWS, width)
        return jnp.transpose(out, (2, 0, 1, 3)).reshape(TILE_ROWS, heads, width)

    tiles = chunk_tiles(tokens, num_tokens)
    pages: jax.Array = first_page + tiles.order
    return map_tiles(query_tile, tiles, q, pages)
