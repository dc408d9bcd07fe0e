"""Named sizes of the causal convolution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pallas_kernels.testing import Array, normals


@dataclass(frozen=True, slots=True)
class Case:
    """A run of `tokens` (a multiple of 64) through `channels` filters of `taps` weights."""

    name: str
    tokens: int
    channels: int
    taps: int = 4
    seed: int = 0


CASES = (
    Case("one_tile", tokens=64, channels=96),
    Case("three_tiles", tokens=192, channels=40, seed=1),
    Case("two_taps", tokens=128, channels=8, taps=2, seed=2),
)

MODEL_CASES = (
    Case("0.8b", tokens=1024, channels=6144),
    Case("27b", tokens=1024, channels=10240),
)


def inputs(case: Case) -> tuple[Array, Array, Array]:
    """x [T, C], weight [C, W], tail [W - 1, C]; the tail is not zero."""
    rng = np.random.default_rng(case.seed)
    return (
        normals(rng, case.tokens, case.channels),
        normals(rng, case.channels, case.taps),
        normals(rng, case.taps - 1, case.channels),
    )
