"""Coded rows taken apart and put together: 16-bit words and the numbers that they stand for.

All is integer arithmetic, so numpy, XLA and the kernels agree bit for bit.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.kv_codec.tables import (
    GAINS,
    PAIR_BITS,
    SHIFT_BIT,
    SIGN_SHIFT,
    WORD_ELEMENTS,
    Layout,
    layout_of,
    pattern_keys,
)

WORD_BITS = 16


def pack_pairs(indices: jax.Array, layout: Layout) -> jax.Array:
    """The field of pair indices, [..., pairs] int32 below 8 -> [..., meta_words - 1] uint16."""
    words = []
    for word in range(layout.meta_words - 1):
        total = jnp.zeros(indices.shape[:-1], jnp.int32)
        for pair in range(layout.pairs):
            place = PAIR_BITS * pair - WORD_BITS * word
            if -PAIR_BITS < place < WORD_BITS:
                index = indices[..., pair]
                total = total | (index << place if place >= 0 else index >> -place)
        words.append(total & 0xFFFF)
    return jnp.stack(words, axis=-1).astype(jnp.uint16)


def unpack_pairs(field: jax.Array, layout: Layout) -> jax.Array:
    """What `pack_pairs` packed: [..., meta_words - 1] uint16 -> [..., pairs] int32."""
    words = field.astype(jnp.uint32)
    found = []
    for pair in range(layout.pairs):
        word, place = divmod(PAIR_BITS * pair, WORD_BITS)
        bits = words[..., word] >> place
        if place > WORD_BITS - PAIR_BITS:
            bits = bits | words[..., word + 1] << (WORD_BITS - place)
        found.append(bits & 7)
    return jnp.stack(found, axis=-1).astype(jnp.int32)


def word_points(words: jax.Array) -> jax.Array:
    """The odd integers o of each word: [...] uint16 -> [..., 8] int32, before any gain."""
    bits = words.astype(jnp.int32)[..., None]
    keys = jnp.asarray(pattern_keys().astype("int32"))[bits & 0xFF]
    element = jnp.arange(WORD_ELEMENTS)
    steps = keys >> (2 * element) & 3
    negative = bits >> (SIGN_SHIFT + element) & 1
    # The sign of the last element makes the sum of the steps and the count of signs even.
    seven = jnp.sum(steps + jnp.where(element < 7, negative, 0), axis=-1, keepdims=True) & 1
    negative = jnp.where(element < 7, negative, seven)
    size = 4 * steps + 2
    return jnp.where(negative == 1, -size, size) + 1 - 2 * (bits >> SHIFT_BIT & 1)


def decode_integers(codes: jax.Array, meta: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Coded rows as integers and scales; a row is scale * integers, exact in float32.

    Args:
        codes: [..., d / 8] uint16. meta: [..., meta_words] uint16.

    Returns:
        [..., d] int32 of magnitude at most 75, and [...] float32.
    """
    layout = layout_of(WORD_ELEMENTS * codes.shape[-1])
    pairs = unpack_pairs(meta[..., 1:], layout)
    gains = jnp.stack([GAINS[0] + pairs // 3, GAINS[0] + pairs % 3], axis=-1)
    gains = gains.reshape(*codes.shape, 1)
    integers = (gains * word_points(codes)).reshape(*codes.shape[:-1], layout.width)
    scale = jax.lax.bitcast_convert_type(meta[..., 0].astype(jnp.uint32) << 16, jnp.float32)
    return integers, scale


def decode_rows(codes: jax.Array, meta: jax.Array) -> jax.Array:
    """The rows [..., d] float32, still rotated, that `codes` and `meta` stand for."""
    integers, scale = decode_integers(codes, meta)
    return integers.astype(jnp.float32) * scale[..., None]


def join_page(codes: jax.Array, meta: jax.Array) -> jax.Array:
    """A page as the pool holds it: all code words, then all words of scales and pair indices.

    Args:
        codes: [..., 64, d / 8] uint16. meta: [..., 64, meta_words] uint16.

    Returns:
        [..., 64 * row_words] uint16.
    """
    leading = codes.shape[:-2]
    return jnp.concatenate([codes.reshape(*leading, -1), meta.reshape(*leading, -1)], axis=-1)


def split_page(page: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    """The two planes of pages [..., 64 * row_words]: [..., 64, d / 8] and [..., 64, meta_words]."""
    layout = layout_of(width)
    rows = page.shape[-1] // layout.row_words
    leading, border = page.shape[:-1], rows * layout.code_words
    return (
        page[..., :border].reshape(*leading, rows, layout.code_words),
        page[..., border:].reshape(*leading, rows, layout.meta_words),
    )
