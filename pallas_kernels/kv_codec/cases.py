"""Named sizes of the codec's encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_kernels.testing import F32_NAN, normals


@dataclass(frozen=True, slots=True)
class Case:
    """`rows` Gaussian rows of `width` numbers; `zero` ones are 0, `bad` ones hold a NaN."""

    name: str
    rows: int
    width: int
    zero: tuple[int, ...] = ()
    bad: tuple[int, ...] = ()
    factor: float = 1.0
    seed: int = 0


CASES = (
    Case("narrow", 64, 32),
    Case("zeros_and_nans", 17, 64, zero=(0, 8), bad=(3,), seed=1),
    Case("wide", 5, 256, factor=1e-3, seed=2),
)

MODEL_CASES = (
    Case("tiny", rows=16 * 64 * 2, width=64),
    Case("0.8b", rows=16 * 64 * 2, width=256),
    Case("4b", rows=16 * 64 * 4, width=256),
    Case("27b", rows=16 * 64 * 4, width=256),
)
"""The keys of one layer in a chunk of 1,024 tokens."""


def inputs(case: Case) -> dict[str, Any]:
    """The arguments of `encode` by name."""
    rows = normals(np.random.default_rng(case.seed), case.rows, case.width)
    rows *= np.float32(case.factor)
    rows[list(case.zero)] = 0.0
    rows[list(case.bad), 5] = F32_NAN
    return {"rows": rows}
