"""Named sizes of page copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_kernels.testing import PAGE_TOKENS, normals, to_page_format


@dataclass(frozen=True, slots=True)
class Case:
    """Moves from page to page in a pool; (0, 0) is padding."""

    name: str
    pages: int
    moves: tuple[tuple[int, int], ...]
    kv_heads: int
    width: int
    kv_format: str = "bf16"
    seed: int = 0


CASES = (
    Case("one", 4, ((1, 3),), kv_heads=1, width=16),
    Case("padded", 6, ((2, 5), (0, 0), (1, 4), (0, 0)), kv_heads=2, width=8, seed=1),
    Case("swap", 4, ((1, 2), (2, 1)), kv_heads=1, width=16, kv_format="f32", seed=2),
    Case("nothing", 3, ((0, 0),), kv_heads=1, width=8, seed=3),
    Case("fan_out", 5, ((1, 2), (1, 3), (1, 4)), kv_heads=2, width=16, seed=4),
)


def inputs(case: Case) -> dict[str, Any]:
    """The arguments by name."""
    rng = np.random.default_rng(case.seed)
    values = normals(rng, case.pages, case.kv_heads, PAGE_TOKENS, case.width)
    source, target = np.asarray(case.moves, np.int32).T
    pages = to_page_format(values, case.kv_format)
    return {"pages": pages, "source": source, "target": target}
