"""Named sizes of the causal convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_kernels.testing import normals, whole_tiles, with_idle_tiles


@dataclass(frozen=True, slots=True)
class Case:
    """`tokens` tokens, padded to tiles, through filters of `taps` weights; then `idle` tiles."""

    name: str
    tokens: int
    channels: int
    taps: int = 4
    idle: int = 0
    seed: int = 0


CASES = (
    Case("one_tile", tokens=64, channels=96),
    Case("ragged", tokens=150, channels=40, idle=2, seed=1),
    Case("two_taps", tokens=128, channels=8, taps=2, seed=2),
)

MODEL_CASES = (
    Case("0.8b", tokens=1024, channels=6144),
    Case("27b", tokens=1024, channels=10240),
)


def inputs(case: Case) -> dict[str, Any]:
    """The arguments of `prefill` by name; the tail is not zero, idle tiles are NaN."""
    rng = np.random.default_rng(case.seed)
    return {
        "x": with_idle_tiles(normals(rng, whole_tiles(case.tokens), case.channels), case.idle),
        "weight": normals(rng, case.channels, case.taps),
        "tail": normals(rng, case.taps - 1, case.channels),
        "num_tokens": np.int32(case.tokens),
    }
