"""The encoder from XLA operations: an exact search whose every decision is made on integers.

Sums of floats are taken over a fixed tree of additions and everything after is integer (or integers
held in float32, all below 2^24), so a row's code depends on nothing but the row: not on the batch,
not on the program, not on the backend.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.kv_codec.tables import (
    GAINS,
    NUM_PATTERNS,
    PAIR_GAINS,
    SHIFT_BIT,
    SIGN_SHIFT,
    WORD_ELEMENTS,
    layout_of,
    pattern_keys,
    patterns,
)
from pallas_kernels.kv_codec.words import pack_pairs

GAUSSIAN = 1.2533141
"""sqrt(pi / 2): the deviation of a Gaussian over its mean magnitude."""

UNIT = 32
"""Units of z to a step of a point with gain one."""

MOST_Z = 8191
LEAST_TOP_BITS = (127 - 119) << 23
"""The bits of 2^-119, the least largest magnitude that is coded."""

INFINITY_BITS = 0xFF << 23
PATTERNS_PER_TURN = 8


class Measured(NamedTuple):
    """Rows brought near one by a power of two.

    signed [..., d] float32 times 2^-exponent; spread [...] float32, the deviation of a Gaussian
    of the same mean magnitude; exponent [...] int32. coded [...] bool: others become zero rows and
    are zeros of spread one here. finite [...] bool.
    """

    signed: jax.Array
    spread: jax.Array
    exponent: jax.Array
    coded: jax.Array
    finite: jax.Array


def round_bf16_bits(x: jax.Array) -> jax.Array:
    """The bits, int32, of the bf16 nearest to a positive finite float32; ties to even."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def tree_sum(x: jax.Array) -> jax.Array:
    """The sum over the last axis: halves are added as long as there are two, the rest in order."""
    while x.shape[-1] % 2 == 0:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    total = x[..., 0]
    for i in range(1, x.shape[-1]):
        total = total + x[..., i]
    return total


def _magnitudes(bits: jax.Array, exponent: jax.Array) -> jax.Array:
    """Magnitudes times 2^-exponent as float32, by integer arithmetic on their bits.

    It is exact, subnormal numbers included, which some backends would read as zero. What would
    become subnormal is zero: it is 2^126 times smaller than the largest.
    """
    whole = jax.lax.bitcast_convert_type(bits.astype(jnp.float32), jnp.int32)
    subnormal = bits < 1 << 23
    bits = jnp.where(subnormal, whole, bits)
    drop = jnp.where(subnormal, exponent + 149, exponent)
    lowered = jnp.where((bits >> 23) - drop > 0, bits - (drop << 23), 0)
    lowered = jnp.where(bits == 0, 0, lowered)
    return jax.lax.bitcast_convert_type(lowered, jnp.float32)


def measure_rows(rows: jax.Array) -> Measured:
    """Step 1 of the encoder up to its first division, of rows [..., d] float32."""
    bits = jax.lax.bitcast_convert_type(rows, jnp.int32)
    magnitude = bits & 0x7FFFFFFF
    top = jnp.max(magnitude, axis=-1)
    finite = top < INFINITY_BITS
    coded = finite & (top >= LEAST_TOP_BITS)
    exponent = jnp.where(coded, (top >> 23) - 127, 0)
    size = _magnitudes(jnp.where(coded[..., None], magnitude, 0), exponent[..., None])
    spread = tree_sum(size) * np.float32(GAUSSIAN / rows.shape[-1])
    signed = jnp.where(bits < 0, -size, size)
    return Measured(signed, jnp.where(coded, spread, 1.0), exponent, coded, finite)


def integer_rows(measured: Measured) -> tuple[jax.Array, jax.Array]:
    """The rest of step 1: z [..., d] int32, and the factor 32 r [...] float32."""
    ratio = round_bf16_bits(16.0 / measured.spread) << 16
    factor = jax.lax.bitcast_convert_type(ratio, jnp.float32) * UNIT
    scaled = factor[..., None] * measured.signed
    z = jnp.rint(jnp.clip(scaled, float(-MOST_Z), float(MOST_Z)))
    return z.astype(jnp.int32), factor


def _best_patterns(targets: jax.Array, unit: jax.Array) -> jax.Array:
    """The pattern of highest score for each target [8, ...] float32; unit: 32 * gain, [...].

    The score is 2v.|y| - unit |2v|^2, less twice the cheapest 2v_i |y_i| where the signs of y have
    the wrong parity. Patterns are tried in ascending order and only a better one is taken.
    """
    size = jnp.abs(targets)
    odd = jnp.sum((targets < 0).astype(jnp.int32), axis=0) & 1
    steps = patterns()
    weights = jnp.asarray((2 * steps + 1).astype(np.float32))
    norms = jnp.asarray(((2 * steps + 1) ** 2).sum(axis=1).astype(np.float32))
    parities = jnp.asarray(steps.sum(axis=1) % 2, jnp.int32)

    def turn(index: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        best, chosen = carry
        for offset in range(PATTERNS_PER_TURN):
            pattern = index * PATTERNS_PER_TURN + offset
            parts = [weights[pattern, i] * size[i] for i in range(WORD_ELEMENTS)]
            total, least = parts[0], parts[0]
            for part in parts[1:]:
                total, least = total + part, jnp.minimum(least, part)
            wrong = odd != parities[pattern]
            score = total - unit * norms[pattern] - jnp.where(wrong, 2.0 * least, 0.0)
            chosen = jnp.where(score > best, pattern, chosen)
            best = jnp.maximum(best, score)
        return best, chosen

    start = (jnp.full(size.shape[1:], -jnp.inf), jnp.zeros(size.shape[1:], jnp.int32))
    return jax.lax.fori_loop(0, NUM_PATTERNS // PATTERNS_PER_TURN, turn, start)[1]


def _points(targets: jax.Array, chosen: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The point of each chosen pattern nearest to its target, and its word.

    Args:
        targets: [8, ...] int32 less the shift. chosen: [...] int32. shift: [...] int32 of +1, -1.

    Returns:
        Odd integers [8, ...] int32 and words [...] int32.
    """
    keys = jnp.asarray(pattern_keys().astype(np.int32))[chosen]
    element = jnp.arange(WORD_ELEMENTS).reshape(-1, *[1] * chosen.ndim)
    steps = keys >> (2 * element) & 3
    negative = (targets < 0).astype(jnp.int32)
    wrong = jnp.sum(steps + negative, axis=0) & 1
    cost = (2 * steps + 1) * jnp.abs(targets)
    cheapest = jnp.min(jnp.where(cost == jnp.min(cost, axis=0), element, WORD_ELEMENTS), axis=0)
    negative = negative ^ jnp.where(element == cheapest, wrong, 0)
    points = jnp.where(negative == 1, -4 * steps - 2, 4 * steps + 2) + shift
    bits = jnp.sum(jnp.where(element < 7, negative << (SIGN_SHIFT + element), 0), axis=0)
    return points, chosen | bits | jnp.where(shift < 0, 1 << SHIFT_BIT, 0)


def search_words(z: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Step 2: for each word and gain the nearest point.

    Args:
        z: [8, ...] int32.

    Returns:
        Words [3, ...], odd integers [8, 3, ...], and summed squared errors [3, ...]; int32, by
        gain.
    """
    leading = [1] * (z.ndim - 1)
    shift = jnp.array([1, -1]).reshape(1, 2, *leading)
    unit = UNIT * jnp.array(GAINS).reshape(3, 1, *leading)
    targets = z[:, None, None] - unit * shift
    unit = jnp.broadcast_to(unit, targets.shape[1:])
    chosen = _best_patterns(targets.astype(jnp.float32), unit.astype(jnp.float32))
    points, words = _points(targets, chosen, jnp.broadcast_to(shift, chosen.shape))
    errors = jnp.sum((z[:, None, None] - unit * points) ** 2, axis=0)
    second = errors[:, 1] < errors[:, 0]
    return (
        jnp.where(second, words[:, 1], words[:, 0]),
        jnp.where(second, points[:, :, 1], points[:, :, 0]),
        jnp.where(second, errors[:, 1], errors[:, 0]),
    )


def _choose_pairs(errors: jax.Array) -> jax.Array:
    """Step 3: pair indices [..., pairs] of least error, from errors [3, ..., pairs, 2]."""
    best, index = errors[0, ..., 0] + errors[0, ..., 1], jnp.zeros(errors.shape[1:-1], jnp.int32)
    for pair, (first, second) in enumerate(PAIR_GAINS[1:], start=1):
        total = errors[first - GAINS[0], ..., 0] + errors[second - GAINS[0], ..., 1]
        index = jnp.where(total < best, pair, index)
        best = jnp.minimum(best, total)
    return index


def _of_gain(by_gain: jax.Array, gains: jax.Array) -> jax.Array:
    """The entries of `by_gain` [3, ...] that `gains` [...] names."""
    return jnp.where(
        gains == GAINS[0], by_gain[0], jnp.where(gains == GAINS[1], by_gain[1], by_gain[2])
    )


def with_exponent(scale: jax.Array, exponent: jax.Array) -> jax.Array:
    """The bits, int32, of the bf16 nearest to scale * 2^exponent; 0 where it would be subnormal."""
    bits = round_bf16_bits(scale)
    return jnp.where((bits >> 7) + exponent > 0, bits + (exponent << 7), 0)


def encode(rows: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Codes rows that are already rotated.

    Args:
        rows: [..., d] float32.

    Returns:
        codes [..., d / 8] uint16, meta [..., meta_words] uint16, and [...] bool: rows that held a
        number that is not finite. Those, and rows that are zero or nearly so, are all zero.
    """
    layout = layout_of(rows.shape[-1])
    measured = measure_rows(rows)
    z, factor = integer_rows(measured)
    z = jnp.moveaxis(z.reshape(*rows.shape[:-1], layout.code_words, WORD_ELEMENTS), -1, 0)
    words, points, errors = search_words(z)
    in_pairs = errors.reshape(3, *rows.shape[:-1], layout.pairs, 2)
    index = _choose_pairs(in_pairs)
    gains = jnp.stack([GAINS[0] + index // 3, GAINS[0] + index % 3], axis=-1)
    gains = gains.reshape(*rows.shape[:-1], layout.code_words)
    integers = gains * _of_gain(jnp.moveaxis(points, 1, 0), gains)
    product = jnp.sum(z * integers, axis=(0, -1))
    square = jnp.sum(integers * integers, axis=(0, -1))
    scale = product.astype(jnp.float32) / square.astype(jnp.float32) / factor
    bits = with_exponent(scale, measured.exponent)
    coded = (measured.coded & (bits > 0))[..., None]
    meta = jnp.concatenate([bits[..., None].astype(jnp.uint16), pack_pairs(index, layout)], axis=-1)
    codes = _of_gain(words, gains).astype(jnp.uint16)
    return (
        jnp.where(coded, codes, jnp.uint16(0)),
        jnp.where(coded, meta, jnp.uint16(0)),
        jnp.logical_not(measured.finite),
    )
