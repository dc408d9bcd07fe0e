"""What the tests and the benchmark of every operation share: inputs, poison, one tolerance table.

Memory that an operation must not read is filled with NaN before the call (pages of other sequences,
the null page, rows past a length, dead lanes), and the interpreter of Pallas fills outputs with NaN
before a kernel runs. So a read of, or a hole left in, unwritten memory shows as a result that is
not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

PAGE_TOKENS = 64
NULL_PAGE = 0

BF16_NAN = np.uint16(0x7FCD)
F32_NAN = np.uint32(0x7FC0DEAD).view(np.float32)
"""NaNs with a mark of our own, so that they differ from the interpreter's in their bits."""

TOLERANCES = {
    "causal_conv": 1e-6,
    "gated_delta_decode": 1e-6,
    # The running sum of log_decay reaches -200 within a chunk where decay is strong.
    "gated_delta_prefill": 1e-5,
    "paged_attention_decode": 1e-6,
    # Products of float32 as two bf16 numbers.
    "paged_attention_decode, Triton": 1e-5,
    "paged_attention_prefill": 1e-6,
    "page_copy": 0.0,
}
"""Largest relative L2 distance from the reference, by operation.

Loosening one needs a reason in the commit.
"""


def relative_l2(got: Array, want: Array) -> float:
    """|got - want| / |want| in float64; the plain distance where the reference is all zero."""
    wanted = np.asarray(want, np.float64)
    distance = float(np.linalg.norm(np.asarray(got, np.float64) - wanted))
    size = float(np.linalg.norm(wanted))
    return distance / size if size else distance


def check_close(operation: str, what: str, got: Any, want: Array) -> None:
    """Raises AssertionError unless `got` agrees with the reference within the table's tolerance.

    Args:
        operation: a key of TOLERANCES.
        what: the name of the result, for the message.
        got: array of any float dtype.
        want: the reference's, float64.
    """
    values = np.asarray(got, np.float64)
    assert values.shape == want.shape, (
        f"{operation} {what}: shape {values.shape}, want {want.shape}"
    )
    holes = int(np.count_nonzero(~np.isfinite(values)))
    assert holes == 0, f"{operation} {what}: {holes} of {values.size} values are not finite"
    distance = relative_l2(values, want)
    limit = TOLERANCES[operation]
    assert distance <= limit, f"{operation} {what}: relative L2 {distance:.3g}, limit {limit:.3g}"


def check_bits(what: str, got: Any, want: Any) -> None:
    """Raises AssertionError unless two arrays are equal bit for bit (NaN equals the same NaN)."""
    left, right = np.asarray(got), np.asarray(want)
    assert left.dtype == right.dtype, f"{what}: dtype {left.dtype}, want {right.dtype}"
    assert left.shape == right.shape, f"{what}: shape {left.shape}, want {right.shape}"
    unsigned = np.dtype(f"u{left.dtype.itemsize}")
    differ = np.ascontiguousarray(left).view(unsigned) != np.ascontiguousarray(right).view(unsigned)
    count = int(np.count_nonzero(differ))
    assert count == 0, (
        f"{what}: {count} of {left.size} values differ in their bits, the first at index "
        f"{tuple(int(i) for i in np.argwhere(differ)[0])}"
    )


def normals(rng: np.random.Generator, *shape: int) -> Array:
    """Standard normal float32."""
    return rng.standard_normal(shape, np.float32)


def unit_rows(rng: np.random.Generator, *shape: int) -> Array:
    """Random float32 rows of length one on the last axis."""
    rows = normals(rng, *shape)
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), np.float32)


def whole_tiles(tokens: int) -> int:
    """Rows of the 64-row tiles that hold `tokens` tokens."""
    return -(-tokens // PAGE_TOKENS) * PAGE_TOKENS


def with_idle_tiles(rows: Array, idle: int) -> Array:
    """Rows [R, ...] followed by `idle` tiles that no operation may read: they are NaN."""
    nothing = np.full((idle * PAGE_TOKENS, *rows.shape[1:]), F32_NAN, rows.dtype)
    return np.concatenate([rows, nothing])


def to_page_format(values: Array, kv_format: str) -> Array:
    """Float32 as pages hold it: itself for "f32", the bits rounded to bf16 in uint16 for "bf16"."""
    if kv_format == "f32":
        return values
    assert kv_format == "bf16", kv_format
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def nan_pool(shape: Sequence[int], kv_format: str) -> Array:
    """A pool in which nothing was written yet: every value is a NaN of the format."""
    if kv_format == "f32":
        return np.full(shape, F32_NAN, np.float32)
    assert kv_format == "bf16", kv_format
    return np.full(shape, BF16_NAN, np.uint16)


def write_sequences(
    rng: np.random.Generator,
    num_pages: int,
    lengths: Sequence[int],
    kv_heads: int,
    width: int,
    table_width: int,
    kv_format: str,
) -> tuple[Array, Array, Array]:
    """Random sequences, scattered over pools that are NaN everywhere else.

    Args:
        num_pages: pages of a pool, the null page included.
        lengths: tokens of each sequence; the last page of each is filled that far and no further.
        kv_heads: heads of the pool.
        width: numbers in a row.
        table_width: entries in a row of the table; those past a sequence name the null page.
        kv_format: "f32" or "bf16".

    Returns:
        Keys and values [num_pages, kv_heads, 64, width], and the table [len(lengths), table_width]
        int32.
    """
    shape = (num_pages, kv_heads, PAGE_TOKENS, width)
    keys, values = nan_pool(shape, kv_format), nan_pool(shape, kv_format)
    table = np.full((len(lengths), table_width), NULL_PAGE, np.int32)
    free = iter(rng.permutation(np.arange(1, num_pages)))
    for row, length in enumerate(lengths):
        for index in range(-(-length // PAGE_TOKENS)):
            page = next(free)
            table[row, index] = page
            written = min(PAGE_TOKENS, length - index * PAGE_TOKENS)
            for pool in (keys, values):
                rows = normals(rng, kv_heads, written, width)
                pool[page, :, :written] = to_page_format(rows, kv_format)
    return keys, values, table


def shapes_of(arrays: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    """The shapes and dtypes of example inputs, to trace with."""
    return [jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype) for a in arrays]


def lower_for_cuda(function: Callable[..., Any], shapes: Sequence[Any]) -> str:
    """The program text for CUDA, made on a machine that needs neither card nor driver.

    It proves that Pallas can express the kernels in Triton; it does not run Triton's own compiler.
    """
    traced = jax.jit(function).trace(*shapes)
    return str(traced.lower(lowering_platforms=("cuda",)).as_text())
