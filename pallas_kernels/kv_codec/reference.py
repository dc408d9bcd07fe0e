"""What coded rows mean, and what is done before coding: numpy, one element at a time.

The decoder is normative. A row stands for s * (g * o): s its scale, g the gain of a word, o eight
odd integers +-(4 n + 2) + shift with n from the word's pattern. The signs are the word's bits 8-14,
and that of element 7 makes the sum of n and the number of negative signs even.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pallas_kernels.kv_codec.tables import (
    PAIR_BITS,
    PAIR_GAINS,
    WIDE_OF_THREE,
    layout_of,
    patterns,
    signs,
)

Array = np.ndarray[Any, np.dtype[Any]]


def decode_word(word: int) -> list[int]:
    """The eight odd integers of a word, before any gain."""
    steps = [int(n) for n in patterns()[word & 0xFF]]
    negative = [word >> (8 + i) & 1 for i in range(7)]
    negative.append((sum(steps) + sum(negative)) % 2)
    shift = -1 if word >> 15 else 1
    return [(-1) ** sign * (4 * n + 2) + shift for n, sign in zip(steps, negative, strict=True)]


def decode_row(row: bytes, width: int) -> Array:
    """The `width` numbers of one row as the format lays it out in bytes; float64."""
    layout = layout_of(width)
    words = np.frombuffer(row, "<u2", layout.code_words)
    scale_bits = int.from_bytes(row[2 * layout.code_words :][:2], "little") << 16
    scale = float(np.array(scale_bits, np.uint32).view(np.float32))
    field = int.from_bytes(row[2 * layout.code_words + 2 :], "little")
    values: list[float] = []
    for index, word in enumerate(words):
        pair = field >> (PAIR_BITS * (index // 2)) & 7
        gain = PAIR_GAINS[pair][index % 2]
        values += [scale * gain * o for o in decode_word(int(word))]
    return np.array(values)


def decode_page(page: Array, width: int) -> Array:
    """The rows [64, width] float64 of one page of one head, [64 * row_words] uint16."""
    layout = layout_of(width)
    rows = len(page) // layout.row_words
    codes = page[: rows * layout.code_words].reshape(rows, -1)
    meta = page[rows * layout.code_words :].reshape(rows, -1)
    joined = np.concatenate([codes, meta], axis=1).astype("<u2")
    return np.stack([decode_row(row.tobytes(), width) for row in joined])


def rotation(width: int) -> Array:
    """The rotation R as a matrix [width, width] float64."""
    size = WIDE_OF_THREE // 3 if width == WIDE_OF_THREE else width
    hadamard = np.ones((1, 1))
    while len(hadamard) < size:
        hadamard = np.kron(np.array([[1, 1], [1, -1]]), hadamard)
    hadamard /= np.sqrt(size)
    if width == WIDE_OF_THREE:
        hadamard = np.kron(hadamard, np.eye(3) - np.full((3, 3), 2 / 3))
    return np.asarray(hadamard * signs(width).astype(np.float64))
