"""The encoder's exact search as a Triton kernel: a thread walks all patterns for one word.

Everything is elementwise over words [rows, words], held as eight arrays, one for each element of a
word. What needs a fixed order of float additions (the mean magnitude of a row) is computed before
the kernel by plain additions; in it all is integer, or integers held in float32, but for three
divisions, which are asked for as the correctly rounded instruction. So the bytes are those of the
XLA path.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from pallas_kernels.kv_codec import xla
from pallas_kernels.kv_codec.tables import (
    GAINS,
    NUM_PATTERNS,
    PAIR_BITS,
    PAIR_GAINS,
    SHIFT_BIT,
    SIGN_SHIFT,
    WIDE_OF_THREE,
    WORD_ELEMENTS,
    Layout,
    layout_of,
    pattern_keys,
    patterns,
)
from pallas_kernels.kv_codec.words import WORD_BITS

WORDS_PER_PROGRAM = 128

Arrays = list[jax.Array]


def encode(rows: jax.Array, *, interpret: bool = False) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Codes rows that are already rotated; see the package.

    Args:
        rows: [..., d] float32; d is a power of two.
        interpret: runs the kernel as plain XLA operations, on any backend.
    """
    width = rows.shape[-1]
    layout = layout_of(width)
    if width == WIDE_OF_THREE:
        raise ValueError(f"the Triton encoder codes rows of a power of two, had {width}")
    leading = rows.shape[:-1]
    flat = rows.reshape(-1, width)
    block = max(WORDS_PER_PROGRAM // layout.code_words, 1)
    padded = jnp.pad(flat, ((0, -len(flat) % block), (0, 0)))
    measured = xla.measure_rows(padded)
    codes, meta = _search(measured, layout, block, interpret)
    codes, meta = codes[: len(flat)], meta[: len(flat)]
    bad = jnp.logical_not(measured.finite[: len(flat)])
    coded = measured.coded[: len(flat), None] & (meta[:, :1] > 0)
    return (
        jnp.where(coded, codes, jnp.uint16(0)).reshape(*leading, -1),
        jnp.where(coded, meta, jnp.uint16(0)).reshape(*leading, -1),
        bad.reshape(leading),
    )


def _search(
    measured: xla.Measured, layout: Layout, block: int, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    """The kernel over whole blocks of rows; what it makes of rows that are not coded is void."""
    num_rows = measured.signed.shape[0]
    weights = (2 * patterns() + 1).astype(np.float32)
    per_row = pl.BlockSpec((block,), lambda program: (program,))
    table = pl.BlockSpec((NUM_PATTERNS,), lambda program: (0,))

    def rows_of(columns: int) -> pl.BlockSpec:
        return pl.BlockSpec((block, columns), lambda program: (program, 0))

    codes, meta = pl.pallas_call(
        functools.partial(encode_kernel, exact_division=not interpret),
        out_shape=(
            jax.ShapeDtypeStruct((num_rows, layout.code_words), jnp.uint16),
            jax.ShapeDtypeStruct((num_rows, layout.meta_words), jnp.uint16),
        ),
        grid=(num_rows // block,),
        in_specs=[
            rows_of(layout.width),
            per_row,
            per_row,
            pl.BlockSpec(weights.shape, lambda program: (0, 0)),
            table,
            table,
            table,
        ],
        out_specs=(rows_of(layout.code_words), rows_of(layout.meta_words)),
        compiler_params=pltriton.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="kv_codec_encode",
    )(
        measured.signed,
        measured.spread,
        measured.exponent,
        weights,
        np.square(weights).sum(axis=1),
        patterns().sum(axis=1, dtype=np.int32) % 2,
        pattern_keys().astype(np.int32),
    )
    return codes, meta


def encode_kernel(
    x_ref: Any,
    spread_ref: Any,
    exponent_ref: Any,
    weights_ref: Any,
    norms_ref: Any,
    parity_ref: Any,
    keys_ref: Any,
    codes_ref: Any,
    meta_ref: Any,
    *,
    exact_division: bool,
) -> None:
    """A block of rows: x [rows, d], spread and exponent [rows] -> codes and meta."""
    rows, num_words = codes_ref.shape
    divide = _divide_rounded if exact_division else jnp.divide
    factor = _round_bf16(divide(jnp.full((rows,), 16.0), spread_ref[...])) * xla.UNIT
    z = _integers(x_ref, factor, (rows, num_words))
    found = [_nearest(z, gain, weights_ref, norms_ref, parity_ref, keys_ref) for gain in GAINS]
    index = _choose_pairs([errors for _, _, errors in found], rows, num_words // 2)
    _store_pairs(meta_ref, index)
    second = jax.lax.broadcasted_iota(jnp.int32, (rows, num_words), 1) % 2 == 1
    both = jnp.broadcast_to(index[:, :, None], (*index.shape, 2)).reshape(rows, num_words)
    gain = GAINS[0] + jnp.where(second, both % 3, both // 3)

    def of_gain(by_gain: Sequence[jax.Array]) -> jax.Array:
        low, middle, high = by_gain
        return jnp.where(gain == GAINS[0], low, jnp.where(gain == GAINS[1], middle, high))

    codes_ref[...] = of_gain([words for words, _, _ in found]).astype(jnp.uint16)
    product = square = jnp.zeros((rows, num_words), jnp.int32)
    for i in range(WORD_ELEMENTS):
        integers = gain * of_gain([points[i] for _, points, _ in found])
        product += z[i] * integers
        square += integers * integers
    scale = divide(
        jnp.sum(product, axis=1).astype(jnp.float32), jnp.sum(square, axis=1).astype(jnp.float32)
    )
    bits = xla.round_bf16_bits(divide(scale, factor))
    exponent = exponent_ref[...]
    scale_bits = jnp.where((bits >> 7) + exponent > 0, bits + (exponent << 7), 0)
    meta_ref[:, 0] = scale_bits.astype(jnp.uint16)


def _divide_rounded(left: jax.Array, right: jax.Array) -> jax.Array:
    """left / right, correctly rounded: the plain division on these cards may be two steps off."""
    shape = jax.ShapeDtypeStruct(left.shape, jnp.float32)
    (out,) = pltriton.elementwise_inline_asm(
        "div.rn.f32 $0, $1, $2;",
        args=[left, right],
        constraints="=f,f,f",
        pack=1,
        result_shape_dtypes=[shape],
    )
    quotient: jax.Array = out
    return quotient


def _round_bf16(x: jax.Array) -> jax.Array:
    bits = xla.round_bf16_bits(x) << 16
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _round_even(x: jax.Array) -> jax.Array:
    """The integer nearest to x >= 0, ties to even.

    Adding 2^23 and taking it away again would do, if no compiler dropped both.
    """
    whole = x.astype(jnp.int32)
    rest = x - whole.astype(jnp.float32)
    return whole + ((rest > 0.5) | ((rest == 0.5) & (whole % 2 == 1))).astype(jnp.int32)


def _integers(x_ref: Any, factor: jax.Array, shape: tuple[int, int]) -> Arrays:
    """The rows on the integer grid of the search: eight arrays [rows, words] int32."""
    first = WORD_ELEMENTS * jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    row = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    found = []
    for i in range(WORD_ELEMENTS):
        x = x_ref[row, first + i]
        steps = jnp.minimum(factor[:, None] * jnp.abs(x), float(xla.MOST_Z))
        whole = _round_even(steps)
        found.append(jnp.where(x < 0, -whole, whole))
    return found


def _nearest(
    z: Arrays, gain: int, weights_ref: Any, norms_ref: Any, parity_ref: Any, keys_ref: Any
) -> tuple[jax.Array, Arrays, jax.Array]:
    """Words, points (eight arrays) and squared errors of the nearest points with this gain."""
    unit = xla.UNIT * gain
    targets = [[part - unit * shift for part in z] for shift in (1, -1)]
    sizes = [[jnp.abs(part).astype(jnp.float32) for part in target] for target in targets]
    odds = [functools.reduce(jnp.bitwise_xor, [_sign(part) for part in t]) for t in targets]

    def step(pattern: jax.Array, carry: Any) -> Any:
        weights = [weights_ref[pattern, i] for i in range(WORD_ELEMENTS)]
        cost = unit * norms_ref[pattern]
        parity = parity_ref[pattern]
        after = []
        for (best, chosen), size, odd in zip(carry, sizes, odds, strict=True):
            parts = [weight * part for weight, part in zip(weights, size, strict=True)]
            least = functools.reduce(jnp.minimum, parts)
            total = functools.reduce(jnp.add, parts)
            score = total - cost - jnp.where(odd != parity, 2.0 * least, 0.0)
            after.append((jnp.maximum(best, score), jnp.where(score > best, pattern, chosen)))
        return tuple(after)

    shape = z[0].shape
    start = (jnp.full(shape, -jnp.inf, jnp.float32), jnp.zeros(shape, jnp.int32))
    ends = jax.lax.fori_loop(0, NUM_PATTERNS, step, (start, start))
    plus, minus = (
        _point(z, target, keys_ref[chosen], chosen, gain, shift)
        for target, (_, chosen), shift in zip(targets, ends, (1, -1), strict=True)
    )
    second = minus[2] < plus[2]
    points = [jnp.where(second, m, p) for p, m in zip(plus[1], minus[1], strict=True)]
    return (
        jnp.where(second, minus[0], plus[0]),
        points,
        jnp.where(second, minus[2], plus[2]),
    )


def _sign(x: jax.Array) -> jax.Array:
    return (x < 0).astype(jnp.int32)


def _point(
    z: Arrays, target: Arrays, keys: jax.Array, chosen: jax.Array, gain: int, shift: int
) -> tuple[jax.Array, Arrays, jax.Array]:
    """The word, the point and its squared error for the chosen pattern of each word."""
    steps = [keys >> (2 * i) & 3 for i in range(WORD_ELEMENTS)]
    negative = [_sign(part) for part in target]
    wrong = functools.reduce(jnp.add, [*steps, *negative]) & 1
    costs = [(2 * n + 1) * jnp.abs(part) for n, part in zip(steps, target, strict=True)]
    least = functools.reduce(jnp.minimum, costs)
    word = chosen | (1 << SHIFT_BIT if shift < 0 else 0)
    errors = jnp.zeros(chosen.shape, jnp.int32)
    points = []
    for i in range(WORD_ELEMENTS):
        here = jnp.where(costs[i] == least, wrong, 0)
        # Only the first of the cheapest is flipped.
        wrong = wrong - here
        sign = negative[i] ^ here
        if i < WORD_ELEMENTS - 1:
            word = word | sign << (SIGN_SHIFT + i)
        point = jnp.where(sign == 1, -4 * steps[i] - 2, 4 * steps[i] + 2) + shift
        stray = z[i] - xla.UNIT * gain * point
        errors += stray * stray
        points.append(point)
    return word, points, errors


def _choose_pairs(errors: Arrays, rows: int, pairs: int) -> jax.Array:
    """Indices [rows, pairs] int32 of least error; errors [rows, 2 * pairs] by gain."""
    split = [by_gain.reshape(rows, pairs, 2) for by_gain in errors]
    place = jax.lax.broadcasted_iota(jnp.int32, (rows, pairs, 2), 2)
    best = index = jnp.zeros((rows, pairs), jnp.int32)
    for pair, (first, second) in enumerate(PAIR_GAINS):
        both = jnp.where(place == 0, split[first - GAINS[0]], split[second - GAINS[0]])
        total = jnp.sum(both, axis=2)
        if pair == 0:
            best = total
        index = jnp.where(total < best, pair, index)
        best = jnp.minimum(best, total)
    return index


def _store_pairs(meta_ref: Any, index: jax.Array) -> None:
    """Writes the field of pair indices, words 1 and on of the metadata."""
    pair = jax.lax.broadcasted_iota(jnp.int32, index.shape, 1)
    for word in range(meta_ref.shape[1] - 1):
        place = PAIR_BITS * pair - WORD_BITS * word
        up = index << jnp.clip(place, 0, WORD_BITS)
        down = index >> jnp.clip(-place, 0, PAIR_BITS)
        bits = jnp.where(place >= 0, up, down)
        inside = (place > -PAIR_BITS) & (place < WORD_BITS)
        field = jnp.sum(jnp.where(inside, bits & 0xFFFF, 0), axis=1)
        meta_ref[:, 1 + word] = field.astype(jnp.uint16)
