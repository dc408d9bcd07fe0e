"""Named sizes of the one-token delta rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_kernels.testing import F32_NAN, normals, unit_rows


@dataclass(frozen=True, slots=True)
class Case:
    """A batch of `lanes`, of which `live` are in use."""

    name: str
    lanes: int
    live: tuple[int, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    seed: int = 0

    @property
    def state_bytes(self) -> int:
        """Bytes that must move: each live state read once and written once."""
        per_lane = self.value_heads * self.key_dim * self.value_dim * 4
        return 2 * len(self.live) * per_lane


CASES = (
    Case("all_live", 2, (0, 1), key_heads=2, value_heads=2, key_dim=32, value_dim=32),
    Case("some_dead", 5, (1, 4), key_heads=2, value_heads=6, key_dim=16, value_dim=64, seed=1),
    Case("all_dead", 3, (), key_heads=1, value_heads=2, key_dim=16, value_dim=16, seed=2),
    Case("wide", 2, (1,), key_heads=2, value_heads=4, key_dim=128, value_dim=128, seed=3),
)

MODEL_CASES = (
    Case("tiny", 8, tuple(range(8)), key_heads=2, value_heads=4, key_dim=32, value_dim=32),
    Case("0.8b", 8, tuple(range(8)), key_heads=16, value_heads=16, key_dim=128, value_dim=128),
    Case("4b", 8, tuple(range(8)), key_heads=16, value_heads=32, key_dim=128, value_dim=128),
    Case("27b", 8, tuple(range(8)), key_heads=16, value_heads=48, key_dim=128, value_dim=128),
    Case("27b_1_lane", 1, (0,), key_heads=16, value_heads=48, key_dim=128, value_dim=128),
)


def inputs(case: Case) -> dict[str, Any]:
    """The arguments by name; everything that belongs to a dead lane is NaN."""
    rng = np.random.default_rng(case.seed)
    lanes, heads = case.lanes, case.value_heads
    q = unit_rows(rng, lanes, case.key_heads, case.key_dim) * np.float32(case.key_dim**-0.5)
    arrays = {
        "q": q,
        "k": unit_rows(rng, lanes, case.key_heads, case.key_dim),
        "v": normals(rng, lanes, heads, case.value_dim),
        "log_decay": -np.abs(normals(rng, lanes, heads)),
        "beta": rng.random((lanes, heads), np.float32),
        "states": normals(rng, lanes, heads, case.key_dim, case.value_dim),
    }
    live = np.zeros(lanes, np.bool_)
    live[list(case.live)] = True
    for array in arrays.values():
        array[~live] = F32_NAN
    return {**arrays, "live": live}
