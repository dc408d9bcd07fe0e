"""The constants that `hq-e8-2b` is defined by: signs of the rotation, patterns, places of bits.

A row of width d is coded as d / 8 words of 16 bits, a scale and a pair index for every two words.
Bits 0-7 of a word name a pattern, bits 8-14 are the signs of elements 0-6, bit 15 is the shift.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

WORD_ELEMENTS = 8
NUM_PATTERNS = 256
SIGN_SHIFT = 8
SHIFT_BIT = 15
GAINS = (3, 4, 5)
PAIR_GAINS = tuple((GAINS[p // 3], GAINS[p % 3]) for p in range(8))
"""Gains of the two words of a pair, by its index; (5, 5) does not exist."""

PAIR_BITS = 3
SIGN_SEED = 0x68716538
WIDE_OF_THREE = 192
"""The one width that is no power of two: 64 times 3."""

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a coded row of `width` numbers lie, counted in 16-bit words.

    A row holds `code_words` words of code, then `meta_words`: the scale as bf16, and the field of
    pair indices, padded so that both parts together take a multiple of four bytes.
    """

    width: int

    @property
    def code_words(self) -> int:
        """Words of code: one for eight numbers."""
        return self.width // WORD_ELEMENTS

    @property
    def pairs(self) -> int:
        """Pair indices in a row."""
        return self.code_words // 2

    @property
    def meta_words(self) -> int:
        """Words of the scale and of the pair indices."""
        field_bytes = -(-PAIR_BITS * self.pairs // 8)
        row_bytes = -(-(2 * self.code_words + 2 + field_bytes) // 4) * 4
        return row_bytes // 2 - self.code_words

    @property
    def row_words(self) -> int:
        """Words of a whole row."""
        return self.code_words + self.meta_words

    @property
    def row_bytes(self) -> int:
        """Bytes of a whole row."""
        return 2 * self.row_words


def layout_of(width: int) -> Layout:
    """The layout of rows of `width` numbers; ValueError if the format has none for them."""
    if width != WIDE_OF_THREE and (width < 2 * WORD_ELEMENTS or width & (width - 1)):
        raise ValueError(
            f"hq-e8-2b codes rows of {WIDE_OF_THREE} numbers or of a power of two from "
            f"{2 * WORD_ELEMENTS} on, had {width}"
        )
    return Layout(width)


def _splitmix64(seed: int) -> int:
    """The first output of the generator splitmix64 started at `seed`."""
    x = (seed + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


@functools.cache
def signs(width: int) -> Array:
    """The diagonal D of the rotation: [width] int8 of +1 and -1."""
    start = SIGN_SEED << 32
    drawn = [1 - 2 * (_splitmix64(start + i) >> 63) for i in range(width)]
    return np.array(drawn, np.int8)


@functools.cache
def pattern_keys() -> Array:
    """The pattern table [256] uint16: element i of pattern k is bits 2i and 2i + 1 of entry k."""

    def order(pattern: tuple[int, ...]) -> tuple[int, int]:
        return sum((2 * n + 1) ** 2 for n in pattern), _pack(pattern)

    every = itertools.product(range(4), repeat=WORD_ELEMENTS)
    return np.array([_pack(n) for n in sorted(every, key=order)[:NUM_PATTERNS]], np.uint16)


def _pack(pattern: tuple[int, ...]) -> int:
    return sum(n << (2 * i) for i, n in enumerate(pattern))


@functools.cache
def patterns() -> Array:
    """The patterns themselves, [256, 8] int32 of 0, 1 and 2."""
    shifts = 2 * np.arange(WORD_ELEMENTS)
    return (pattern_keys()[:, None] >> shifts & 3).astype(np.int32)
