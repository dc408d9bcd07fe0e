"""The hybrid model over paged state: a prefill chunk of one sequence, a decode step of all lanes.

Both are pure functions of parameters and device state, meant to be jitted with the state donated.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from ignisd.model import layers
from ignisd.model.spec import LayerKind, ModelSpec
from pallas_kernels import causal_conv
from pallas_kernels.dispatch import Path
from pallas_kernels.gated_delta_decode import gated_delta_decode
from pallas_kernels.gated_delta_prefill import gated_delta_prefill
from pallas_kernels.online_softmax import load_values
from pallas_kernels.paged_attention_decode import paged_attention_decode
from pallas_kernels.paged_attention_prefill import paged_attention_prefill
from pallas_kernels.tiles import Tiles, chunk_tiles, live_tiles, map_tiles
from state.device import KvPool, LaneBank, MutableState
from state.spec import PAGE_TOKENS, KvFormat

Params = dict[str, Any]

Leaf = Any
"""A jax array inside a program; numpy or an abstract shape where its arguments are made."""

LEAST_ROWS = 2 * PAGE_TOKENS
"""The narrowest prefill program. With a single tile the compiler would see that every turn of a
loop over tiles does the same, move it out of the loop, and fuse and round it otherwise."""


@dataclass(frozen=True, slots=True)
class ForwardSpec:
    """What a program is built for: the model, the pool's format, and the kernels' path."""

    model: ModelSpec
    kv_format: KvFormat
    path: Path = Path.XLA


@struct.dataclass
class Chunk:
    """One prefill chunk, padded to its program's width.

    tokens [T] int32, T at least `LEAST_ROWS`; num_tokens: how many are real. table [N] int32: the
    sequence's pages, N a multiple of four, padded with the null page. keep [T / 64] int32: the row
    of the images that takes the state after each 64-token tile; row K (the last) is scrap.
    """

    tokens: Leaf
    num_tokens: Leaf
    lane: Leaf
    table: Leaf
    keep: Leaf


def _write_tiles(
    pages: jax.Array, rows: jax.Array, numbers: jax.Array, kv_format: KvFormat
) -> jax.Array:
    """Whole pages written in place: rows [T, kv_heads, d] go to the pages `numbers` [T / 64]."""
    tiles = layers.to_storage(rows, kv_format).reshape(-1, PAGE_TOKENS, *rows.shape[1:])
    tiles = jnp.swapaxes(tiles, 1, 2)
    for i in range(tiles.shape[0]):
        pages = jax.lax.dynamic_update_slice(pages, tiles[i : i + 1], (numbers[i], 0, 0, 0))
    return pages


def _write_rows(
    pages: jax.Array, rows: jax.Array, numbers: jax.Array, offsets: jax.Array, kv_format: KvFormat
) -> jax.Array:
    """One row a lane written in place: rows [L, kv_heads, d] at (page, offset) of each lane."""
    stored = layers.to_storage(rows, kv_format)[:, None, :, None, :]
    for lane in range(rows.shape[0]):
        pages = jax.lax.dynamic_update_slice(
            pages, stored[lane], (numbers[lane], 0, offsets[lane], 0)
        )
    return pages


def _full_prefill(
    spec: ForwardSpec,
    layer: layers.Layer,
    x: jax.Array,
    positions: jax.Array,
    pool: tuple[jax.Array, jax.Array],
    chunk: Chunk,
    tiles: Tiles,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    q, k, v, gate = layers.attention_inputs(layer, x, positions, spec.model, tiles)
    first_page = positions[0] // PAGE_TOKENS
    # Tiles of padding write to the null page; the table may end before them.
    at = jnp.minimum(first_page + tiles.order, chunk.table.shape[0] - 1)
    numbers = jnp.where(tiles.order < tiles.num_live, chunk.table[at], 0)
    k_pages = _write_tiles(pool[0], k, numbers, spec.kv_format)
    v_pages = _write_tiles(pool[1], v, numbers, spec.kv_format)
    scale = spec.model.head_dim**-0.5
    mixed = paged_attention_prefill(
        q, k_pages, v_pages, chunk.table, first_page, scale, chunk.num_tokens
    )
    return layers.attention_output(layer, x, mixed, gate), (k_pages, v_pages)


def _linear_prefill(
    spec: ForwardSpec,
    layer: layers.Layer,
    x: jax.Array,
    recurrent: jax.Array,
    tail: jax.Array,
    chunk: Chunk,
    tiles: Tiles,
    kept: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """One delta-rule layer; returns x, the (state, tail) after the chunk, and those of images."""
    model = spec.model
    mixed, z, b, a = layers.delta_inputs(layer, x, model, tiles, spec.kv_format)
    before = load_values(tail)
    y, tails = causal_conv.prefill(mixed, layer["conv"], before, chunk.num_tokens)
    valid = jnp.arange(x.shape[0]) < chunk.num_tokens
    q, k, v, log_decay, beta = map_tiles(
        lambda y, b, a, ok: layers.delta_gates(layer, y, b, a, ok, model), tiles, y, b, a, valid
    )
    kept_recurrent, kept_tails = kept
    out, recurrent, kept_recurrent = gated_delta_prefill(
        q, k, v, log_decay, beta, recurrent, chunk.keep, kept_recurrent, chunk.num_tokens
    )
    # The tail ends at the last real token, which need not end a tile.
    after = jax.lax.dynamic_slice_in_dim(
        jnp.concatenate([before, mixed]), chunk.num_tokens, before.shape[0], 0
    )
    for i in range(tails.shape[0]):
        stored = layers.to_storage(tails[i], spec.kv_format)
        kept_tails = jax.lax.dynamic_update_index_in_dim(kept_tails, stored, chunk.keep[i], 0)
    x = layers.delta_output(layer, x, out, z, model, tiles)
    return x, (recurrent, layers.to_storage(after, spec.kv_format)), (kept_recurrent, kept_tails)


def prefill(
    spec: ForwardSpec,
    params: Params,
    pool: KvPool,
    bank: LaneBank,
    images: MutableState,
    chunk: Chunk,
) -> tuple[KvPool, LaneBank, MutableState, jax.Array]:
    """Reads one chunk of a lane's sequence, from the lane's position on.

    Args:
        images: [K + 1, …], where the pass leaves the images that `chunk.keep` asks for; row K is
            scrap.

    Returns:
        The pool, bank and images, and the residual row [hidden] f32 of the last real token.
    """
    lane, lanes = chunk.lane, bank.lanes
    start = lanes.position[lane]
    positions = start + jnp.arange(chunk.tokens.shape[0])
    width = chunk.tokens.shape[0]
    assert width >= LEAST_ROWS, f"{width} rows, wanted {LEAST_ROWS} or more"
    tiles = chunk_tiles(width, chunk.num_tokens)
    x = layers.embed_tokens(params["embed"], chunk.tokens)
    k_pool, v_pool = list(pool.k), list(pool.v)
    recurrent, conv = list(lanes.recurrent), list(lanes.conv)
    kept_recurrent, kept_conv = list(images.recurrent), list(images.conv)
    full = linear = 0
    for kind, layer in zip(spec.model.layer_kinds, params["layers"], strict=True):
        if kind is LayerKind.FULL:
            pages = (k_pool[full], v_pool[full])
            x, pages = _full_prefill(spec, layer, x, positions, pages, chunk, tiles)
            k_pool[full], v_pool[full] = pages
            full += 1
        else:
            held = recurrent[linear][lane], conv[linear][lane]
            kept = kept_recurrent[linear], kept_conv[linear]
            x, held, kept = _linear_prefill(spec, layer, x, *held, chunk, tiles, kept)
            recurrent[linear] = jax.lax.dynamic_update_index_in_dim(
                recurrent[linear], held[0], lane, 0
            )
            conv[linear] = jax.lax.dynamic_update_index_in_dim(conv[linear], held[1], lane, 0)
            kept_recurrent[linear], kept_conv[linear] = kept
            linear += 1
        x = layers.mlp(layer, x, spec.model, tiles)
    ends = start + PAGE_TOKENS * (1 + jnp.arange(chunk.keep.shape[0]))
    images = MutableState(
        recurrent=tuple(kept_recurrent),
        conv=tuple(kept_conv),
        position=images.position.at[chunk.keep].set(ends),
    )
    after = MutableState(
        recurrent=tuple(recurrent),
        conv=tuple(conv),
        position=lanes.position.at[lane].add(chunk.num_tokens),
    )
    hidden = jax.lax.dynamic_index_in_dim(x, chunk.num_tokens - 1, 0, keepdims=False)
    return KvPool(tuple(k_pool), tuple(v_pool)), LaneBank(after), images, hidden


def _full_decode(
    spec: ForwardSpec,
    layer: layers.Layer,
    x: jax.Array,
    pool: tuple[jax.Array, jax.Array],
    tables: jax.Array,
    positions: jax.Array,
    live: jax.Array,
    tiles: Tiles,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    q, k, v, gate = layers.attention_inputs(layer, x, positions, spec.model, tiles)
    lane = jnp.arange(x.shape[0])
    numbers = jnp.where(live, tables[lane, positions // PAGE_TOKENS], 0)
    offsets = positions % PAGE_TOKENS
    k_pages = _write_rows(pool[0], k, numbers, offsets, spec.kv_format)
    v_pages = _write_rows(pool[1], v, numbers, offsets, spec.kv_format)
    lengths = jnp.where(live, positions + 1, 0)
    scale = spec.model.head_dim**-0.5
    mixed = paged_attention_decode(q, k_pages, v_pages, tables, lengths, scale, spec.path)
    return layers.attention_output(layer, x, mixed, gate), (k_pages, v_pages)


def _linear_decode(
    spec: ForwardSpec,
    layer: layers.Layer,
    x: jax.Array,
    recurrent: jax.Array,
    conv: jax.Array,
    live: jax.Array,
    tiles: Tiles,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    model = spec.model
    mixed, z, b, a = layers.delta_inputs(layer, x, model, tiles, spec.kv_format)

    def lane(mixed: jax.Array, tail: jax.Array, b: jax.Array, a: jax.Array, ok: jax.Array) -> Any:
        y, after = causal_conv.decode(mixed[0], layer["conv"], load_values(tail[0]))
        stored = layers.to_storage(after, spec.kv_format)
        return stored[None], layers.delta_gates(layer, y[None], b, a, ok, model)

    tails, (q, k, v, log_decay, beta) = map_tiles(lane, tiles, mixed, conv, b, a, live)
    out, recurrent = gated_delta_decode(q, k, v, log_decay, beta, recurrent, live, spec.path)
    conv = jnp.where(live[:, None, None], tails, conv)
    return layers.delta_output(layer, x, out, z, model, tiles), recurrent, conv


def decode(
    spec: ForwardSpec,
    params: Params,
    pool: KvPool,
    bank: LaneBank,
    tokens: jax.Array,
    tables: jax.Array,
    live: jax.Array,
) -> tuple[KvPool, LaneBank, jax.Array]:
    """One token for every live lane.

    Args:
        tokens: [L] int32. tables: [L, N] int32, N a multiple of four. live: [L] bool; the state
            and position of other lanes stay as they are.

    Returns:
        The pool and bank, and the residual rows [L, hidden] f32 (those of dead lanes mean nothing).
    """
    lanes = bank.lanes
    positions = lanes.position
    tiles = live_tiles(live)
    x = layers.embed_tokens(params["embed"], tokens)
    k_pool, v_pool = list(pool.k), list(pool.v)
    recurrent, conv = list(lanes.recurrent), list(lanes.conv)
    full = linear = 0
    for kind, layer in zip(spec.model.layer_kinds, params["layers"], strict=True):
        if kind is LayerKind.FULL:
            pages = (k_pool[full], v_pool[full])
            x, pages = _full_decode(spec, layer, x, pages, tables, positions, live, tiles)
            k_pool[full], v_pool[full] = pages
            full += 1
        else:
            x, recurrent[linear], conv[linear] = _linear_decode(
                spec, layer, x, recurrent[linear], conv[linear], live, tiles
            )
            linear += 1
        x = layers.mlp(layer, x, spec.model, tiles)
    after = MutableState(
        recurrent=tuple(recurrent), conv=tuple(conv), position=positions + live.astype(jnp.int32)
    )
    return KvPool(tuple(k_pool), tuple(v_pool)), LaneBank(after), x


def logits(spec: ForwardSpec, params: Params, hidden: jax.Array, live: jax.Array) -> jax.Array:
    """Next-token logits [rows, vocab] f32 of the residual rows [rows, hidden] that are live [rows].

    Other rows get the logits of a zero row.
    """
    head: jax.Array = params["head"] if "head" in params else params["embed"]
    rows = layers.normed(hidden, params["norm"], spec.model, live_tiles(live), head.dtype)
    return layers.product(rows, head)
