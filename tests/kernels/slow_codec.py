"""A writer of `hq-e8-2b` that shares no line with the codec: every word is tried for every point.

Written from the format's page alone. For each eight numbers and each gain all 65,536 words are
decoded and the nearest is taken, by exact integer distances.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@functools.cache
def table():
    """The 256 patterns [256, 8], in the order of (norm of n + 1/2, packed key)."""
    every = np.array(list(itertools.product((0, 1, 2, 3), repeat=8)))
    keys = (every * 4 ** np.arange(8)).sum(axis=1)
    norms = (np.square(2 * every + 1)).sum(axis=1)
    return every[np.lexsort((keys, norms))[:256]]


@functools.cache
def every_word():
    """The odd integers of all words, [65536, 8]."""
    word = np.arange(65536)
    steps = table()[word & 255]
    minus = np.stack([(word >> (8 + i)) & 1 for i in range(7)], axis=1)
    last = (steps.sum(axis=1) + minus.sum(axis=1)) % 2
    minus = np.concatenate([minus, last[:, None]], axis=1)
    return np.where(minus, -1, 1) * (4 * steps + 2) + np.where(word >> 15, -1, 1)[:, None]


@functools.cache
def scaled_words(gain):
    """The points of all words in units of z, and their squared norms: integers in float64."""
    points = 32.0 * gain * every_word()
    return points, np.square(points).sum(axis=1)


def nearest(z, gain):
    """The nearest word to each z [N, 8] of integers, its integers g * o and squared errors."""
    points, norms = scaled_words(gain)
    words = np.empty(len(z), np.int64)
    for row, target in enumerate(z):
        distance = norms - points @ (2.0 * target)
        tied = np.flatnonzero(distance == distance.min())
        words[row] = min(tied, key=lambda word: _rank(int(word), target, gain))
    integers = gain * every_word()[words]
    return words, integers, np.square(z - 32 * integers).sum(axis=1)


def _rank(word, target, gain):
    """Of words equally near: + shift, lowest pattern, signs as the target's, lowest other sign."""
    shift = word >> 15
    shifted = target - 32 * gain * (-1 if shift else 1)
    point = every_word()[word] - (-1 if shift else 1)
    strays = np.flatnonzero((point < 0) != (shifted < 0))
    return shift, word & 255, len(strays), tuple(strays)


@dataclass(frozen=True)
class Row:
    """A coded row: words, pair indices and the bits of the scale."""

    words: np.ndarray
    pairs: np.ndarray
    scale: int

    def to_bytes(self):
        field = sum(int(pair) << (3 * i) for i, pair in enumerate(self.pairs))
        code = self.words.astype("<u2").tobytes() + self.scale.to_bytes(2, "little")
        used = len(code) + math.ceil(3 * len(self.pairs) / 8)
        padded = math.ceil(used / 4) * 4
        return code + field.to_bytes(padded - len(code), "little")


def bf16_bits(value):
    """The bits of the bf16 nearest to a positive fraction; ties to even."""
    exponent = math.floor(math.log2(value))
    exponent += (Fraction(2) ** (exponent + 1) <= value) - (Fraction(2) ** exponent > value)
    steps = value / Fraction(2) ** (exponent - 7)
    return (exponent + 126 << 7) + round(steps)


def write_row(x):
    """One row of float32, already rotated, as bytes."""
    width = len(x)
    row_bytes = len(Row(np.zeros(width // 8), np.zeros(width // 16, int), 0).to_bytes())
    top = np.abs(x).max()
    if not np.isfinite(x).all() or top < 2.0**-119:
        return bytes(row_bytes)
    exponent = math.frexp(float(top))[1] - 1
    scaled = np.ldexp(x.astype(np.float64), -exponent).astype(np.float32)
    spread = math.fsum(np.abs(scaled).astype(np.float64)) * 1.2533141 / width
    ratio = bf16_bits(Fraction(np.float32(16 / spread).item()))
    factor = np.float32(32) * np.uint32(ratio << 16).view(np.float32)
    z = np.clip(np.rint(factor * scaled), -8191, 8191).astype(np.int64).reshape(-1, 8)
    found = {gain: nearest(z, gain) for gain in (3, 4, 5)}
    pairs, words, integers = [], [], []
    for first in range(0, len(z), 2):
        choices = [(3 + p // 3, 3 + p % 3) for p in range(8)]
        errors = [found[g][2][first] + found[h][2][first + 1] for g, h in choices]
        pair = int(np.argmin(errors))
        pairs.append(pair)
        for place, gain in zip((first, first + 1), choices[pair], strict=True):
            words.append(found[gain][0][place])
            integers.append(found[gain][1][place])
    c = np.array(integers)
    scale = Fraction(int((z * c).sum()), int(np.square(c).sum())) / Fraction(factor.item())
    scale *= Fraction(2) ** exponent
    if scale < Fraction(2) ** -126:
        return bytes(row_bytes)
    return Row(np.array(words), np.array(pairs), bf16_bits(scale)).to_bytes()


def write_rows(rows):
    """Rows [N, d] as bytes [N, row bytes]."""
    return np.stack([np.frombuffer(write_row(row), np.uint8) for row in rows])
