"""Paged attention of one token in each lane, as two Triton kernels.

The first gives each (lane, KV head, split) a program. A split is a fixed number of pages at
absolute positions; its program walks them in order with an online softmax and writes (sum of
weighted values, maximum, sum of weights). The second folds the splits of a lane from first to last.
So the order of every addition follows from positions alone: neither the width of the table, nor the
other lanes, nor the order in which programs happen to run can change a bit.

Products run on the matrix units, which want bf16 operands and at least 16 rows: the query heads of
a KV head are padded to 16, and each float32 operand is written as the sum of two bf16 numbers,
whose products add up in float32. That costs two more products on tiles that are small beside the
pages they are read with, and leaves an error of 2**-17 instead of 2**-9. Float32 pages are
multiplied as they are.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

PAGES_PER_SPLIT = 8
SPLITS_PER_STEP = 8
MIN_DOT_ROWS = 16


@dataclass(frozen=True, slots=True)
class Tiling:
    """Rows of a page that one step of the loop takes, and how Triton is to run it."""

    rows: int
    num_warps: int
    num_stages: int


BF16_TILING = Tiling(rows=32, num_warps=4, num_stages=2)
F32_TILING = Tiling(rows=16, num_warps=4, num_stages=1)


def paged_attention_decode(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    table: jax.Array,
    lengths: jax.Array,
    scale: float,
    *,
    pages_per_split: int = PAGES_PER_SPLIT,
    interpret: bool = False,
) -> jax.Array:
    """Attends with one query per lane and head.

    Args:
        q: [L, H, d] float32; query head h reads KV head h // (H // Hkv). d is a power of two.
        k_pages: [P, Hkv, 64, d] float32, or uint16 that holds bf16 bits.
        v_pages: the same.
        table: [L, N] int32, page numbers in the order of the sequence.
        lengths: [L] int32 tokens to attend to, the lane's own token included. 0 is a dead lane.
        scale: factor on the scores.
        pages_per_split: pages that one program walks. It decides bits, so a process keeps to one
            number.
        interpret: runs the kernels as plain XLA operations, on any backend.

    Returns:
        [L, H, d] float32; zeros in dead lanes. Nothing past `lengths` reaches the result.
    """
    lanes, heads, width = q.shape
    kv_heads = k_pages.shape[1]
    if width & (width - 1):
        raise ValueError(f"the head width must be a power of two, had {width}")
    share = heads // kv_heads
    rows = max(MIN_DOT_ROWS, pl.next_power_of_2(share))
    padding = ((0, 0), (0, 0), (0, rows - share), (0, 0))
    grouped = jnp.pad(q.reshape(lanes, kv_heads, share, width) * scale, padding)
    partials = _attend_splits(grouped, k_pages, v_pages, table, lengths, pages_per_split, interpret)
    tokens_per_split = pages_per_split * k_pages.shape[2]
    out = _combine_splits(*partials, lengths, tokens_per_split, interpret)
    return out[:, :, :share].reshape(lanes, heads, width)


def _attend_splits(
    grouped: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    table: jax.Array,
    lengths: jax.Array,
    pages_per_split: int,
    interpret: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries [L, Hkv, rows, d] -> per split acc [L, Hkv, S, rows, d], max and sum [L, Hkv, S,
    rows].

    Splits that start at or past a lane's length are left unwritten.
    """
    lanes, kv_heads, rows, width = grouped.shape
    num_pages, _, page_tokens, _ = k_pages.shape
    # Whole steps of the combining kernel, so that none of its loads runs over the end.
    splits = pl.cdiv(table.shape[1], pages_per_split * SPLITS_PER_STEP) * SPLITS_PER_STEP
    tiling = BF16_TILING if k_pages.dtype == jnp.uint16 else F32_TILING
    pool = pl.BlockSpec(
        (num_pages, None, page_tokens, width), lambda lane, head, split: (0, head, 0, 0)
    )
    partial = pl.BlockSpec(
        (None, None, None, rows), lambda lane, head, split: (lane, head, split, 0)
    )
    acc, top, total = pl.pallas_call(
        functools.partial(
            attend_split_kernel, pages_per_split=pages_per_split, tile_rows=tiling.rows
        ),
        out_shape=(
            jax.ShapeDtypeStruct((lanes, kv_heads, splits, rows, width), jnp.float32),
            jax.ShapeDtypeStruct((lanes, kv_heads, splits, rows), jnp.float32),
            jax.ShapeDtypeStruct((lanes, kv_heads, splits, rows), jnp.float32),
        ),
        grid=(lanes, kv_heads, pl.cdiv(table.shape[1], pages_per_split)),
        in_specs=[
            pl.BlockSpec((None, None, rows, width), lambda lane, head, split: (lane, head, 0, 0)),
            pool,
            pool,
            pl.BlockSpec((None, table.shape[1]), lambda lane, head, split: (lane, 0)),
            pl.BlockSpec((None,), lambda lane, head, split: (lane,)),
        ],
        out_specs=(
            pl.BlockSpec(
                (None, None, None, rows, width),
                lambda lane, head, split: (lane, head, split, 0, 0),
            ),
            partial,
            partial,
        ),
        compiler_params=pltriton.CompilerParams(
            num_warps=tiling.num_warps, num_stages=tiling.num_stages
        ),
        interpret=interpret,
        name="paged_attention_decode_split",
    )(grouped, k_pages, v_pages, table, lengths)
    return acc, top, total


def _combine_splits(
    acc: jax.Array,
    top: jax.Array,
    total: jax.Array,
    lengths: jax.Array,
    tokens_per_split: int,
    interpret: bool,
) -> jax.Array:
    """Folds the live splits in order: -> [L, Hkv, rows, d], zeros where the length is 0."""
    lanes, kv_heads, splits, rows, width = acc.shape
    columns = min(width, 32)
    scalars = pl.BlockSpec((None, None, splits, rows), lambda lane, head, block: (lane, head, 0, 0))
    out: jax.Array = pl.pallas_call(
        functools.partial(combine_splits_kernel, tokens_per_split=tokens_per_split),
        out_shape=jax.ShapeDtypeStruct((lanes, kv_heads, rows, width), jnp.float32),
        grid=(lanes, kv_heads, width // columns),
        in_specs=[
            pl.BlockSpec(
                (None, None, splits, rows, columns),
                lambda lane, head, block: (lane, head, 0, 0, block),
            ),
            scalars,
            scalars,
            pl.BlockSpec((None,), lambda lane, head, block: (lane,)),
        ],
        out_specs=pl.BlockSpec(
            (None, None, rows, columns), lambda lane, head, block: (lane, head, 0, block)
        ),
        compiler_params=pltriton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="paged_attention_decode_combine",
    )(acc, top, total, lengths)
    return out


def attend_split_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    table_ref: Any,
    length_ref: Any,
    acc_ref: Any,
    top_ref: Any,
    total_ref: Any,
    *,
    pages_per_split: int,
    tile_rows: int,
) -> None:
    """One split of one KV head: q [rows, d], k and v [P, 64, d], table [N], length []."""
    rows, width = q_ref.shape
    page_tokens = k_ref.shape[1]
    tiles_per_page = page_tokens // tile_rows
    first = pl.program_id(2) * pages_per_split * tiles_per_page
    length = length_ref[...]
    end = jnp.minimum(first + pages_per_split * tiles_per_page, pl.cdiv(length, tile_rows))

    def attend_tile(tile: jax.Array, carry: Any) -> Any:
        acc, top, total = carry
        page = table_ref[tile // tiles_per_page]
        inside = pl.ds(tile % tiles_per_page * tile_rows, tile_rows)
        written = length - tile * tile_rows
        columns = jax.lax.broadcasted_iota(jnp.int32, (rows, tile_rows), 1)
        scores = _product(q_ref[...], k_ref[page, inside], contract_rows=False)
        scores = jnp.where(columns < written, scores, -jnp.inf)
        new_top = jnp.maximum(top, jnp.max(scores, axis=1))
        weights = jnp.exp(scores - new_top[:, None])
        shrink = jnp.exp(top - new_top)
        # A weight of zero does not silence a NaN, and rows past the length hold anything.
        below = jax.lax.broadcasted_iota(jnp.int32, (tile_rows, width), 0)
        values = jnp.where(below < written, v_ref[page, inside], jnp.zeros((), v_ref.dtype))
        acc = acc * shrink[:, None] + _product(weights, values, contract_rows=True)
        return acc, new_top, total * shrink + jnp.sum(weights, axis=1)

    @pl.when(first < end)
    def _() -> None:
        start = (
            jnp.zeros((rows, width), jnp.float32),
            jnp.full((rows,), -jnp.inf, jnp.float32),
            jnp.zeros((rows,), jnp.float32),
        )
        acc_ref[...], top_ref[...], total_ref[...] = jax.lax.fori_loop(
            first, end, attend_tile, start
        )


def combine_splits_kernel(
    acc_ref: Any,
    top_ref: Any,
    total_ref: Any,
    length_ref: Any,
    out_ref: Any,
    *,
    tokens_per_split: int,
) -> None:
    """Folds one block of columns: acc [S, rows, columns], top and total [S, rows], length []."""
    rows, columns = out_ref.shape
    num_splits = pl.cdiv(length_ref[...], tokens_per_split)

    def load(ref: Any, split: jax.Array, absent: float) -> jax.Array:
        live = jnp.broadcast_to(split < num_splits, ref.shape[1:])
        return pltriton.load(ref.at[split], mask=live, other=absent)

    def fold(step: jax.Array, carry: Any) -> Any:
        acc, top, total = carry
        # All loads of a step come first, so that they are under way together. An absent split
        # multiplies by one and adds zero.
        splits = [step * SPLITS_PER_STEP + offset for offset in range(SPLITS_PER_STEP)]
        tops = [load(top_ref, split, -jnp.inf) for split in splits]
        totals = [load(total_ref, split, 0.0) for split in splits]
        accs = [load(acc_ref, split, 0.0) for split in splits]
        for its_top, its_total, its_acc in zip(tops, totals, accs, strict=True):
            new_top = jnp.maximum(top, its_top)
            shrink, grow = jnp.exp(top - new_top), jnp.exp(its_top - new_top)
            acc = acc * shrink[:, None] + its_acc * grow[:, None]
            total = total * shrink + its_total * grow
            top = new_top
        return acc, top, total

    start = (
        jnp.zeros((rows, columns), jnp.float32),
        jnp.full((rows,), -jnp.inf, jnp.float32),
        jnp.zeros((rows,), jnp.float32),
    )
    acc, _, total = jax.lax.fori_loop(0, pl.cdiv(num_splits, SPLITS_PER_STEP), fold, start)
    out_ref[...] = acc / jnp.where(num_splits > 0, total, 1.0)[:, None]


def _product(left: jax.Array, right: jax.Array, *, contract_rows: bool) -> jax.Array:
    """left [m, k] float32 times right in page format: [k, n] with contract_rows, else [n, k]."""
    dims = (((1,), (0 if contract_rows else 1,)), ((), ()))
    if right.dtype == jnp.float32:
        return jax.lax.dot_general(left, right, dims, precision=jax.lax.Precision.HIGHEST)
    right = jax.lax.bitcast_convert_type(right, jnp.bfloat16)
    bits = jax.lax.bitcast_convert_type(left, jnp.uint32)
    # Rounded in integers: a compiler may drop a rounding to bf16 and back, and the rest with it.
    rounded = (bits + jnp.uint32(0x8000)) & jnp.uint32(0xFFFF0000)
    upper = jax.lax.bitcast_convert_type(rounded, jnp.float32)

    def times_right(part: jax.Array) -> jax.Array:
        return jax.lax.dot_general(
            part.astype(jnp.bfloat16), right, dims, preferred_element_type=jnp.float32
        )

    return times_right(left - upper) + times_right(upper)
