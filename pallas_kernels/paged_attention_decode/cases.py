"""Named sizes of one-token attention over pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_kernels.testing import F32_NAN, PAGE_TOKENS, normals, write_sequences


@dataclass(frozen=True, slots=True)
class Case:
    """One query per lane over `lengths` tokens (0: a dead lane); `table_width` is in steps of 4."""

    name: str
    lengths: tuple[int, ...]
    heads: int
    kv_heads: int
    width: int
    table_width: int
    kv_format: str = "bf16"
    seed: int = 0

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float(self.width**-0.5)

    @property
    def pages(self) -> int:
        """Pages in the pool: one more than the sequences hold, and the null page."""
        return 2 + sum(-(-length // PAGE_TOKENS) for length in self.lengths)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that must be read."""
        row_bytes = self.kv_heads * self.width * (4 if self.kv_format == "f32" else 2)
        return 2 * sum(self.lengths) * row_bytes


CASES = (
    Case("one_token", (1, 1), heads=2, kv_heads=2, width=16, table_width=4),
    Case(
        "page_edges", (63, 64, 65, 256, 257), heads=4, kv_heads=2, width=32, table_width=8, seed=1
    ),
    Case("dead_lanes", (0, 130, 0, 1), heads=6, kv_heads=1, width=64, table_width=4, seed=2),
    Case("all_dead", (0, 0), heads=2, kv_heads=1, width=16, table_width=4, seed=3),
    Case(
        "f32", (70, 0, 300), heads=4, kv_heads=2, width=32, table_width=8, kv_format="f32", seed=4
    ),
    Case("many_splits", (2300, 1024), heads=2, kv_heads=1, width=16, table_width=36, seed=6),
    Case("24_of_4_heads", (100,), heads=24, kv_heads=4, width=256, table_width=4, seed=7),
    Case("32_to_1", (90,), heads=32, kv_heads=1, width=32, table_width=4, seed=8),
)

MODEL_CASES = (
    Case("tiny", (1024,) * 8, heads=4, kv_heads=2, width=64, table_width=16),
    Case("tiny_f32", (1024,) * 8, heads=4, kv_heads=2, width=64, table_width=16, kv_format="f32"),
    Case("0.8b", (4096,) * 8, heads=8, kv_heads=2, width=256, table_width=640),
    Case("4b", (4096,) * 8, heads=16, kv_heads=4, width=256, table_width=640),
    Case("27b", (4096,) * 8, heads=24, kv_heads=4, width=256, table_width=640),
    Case("27b_f32", (4096,) * 8, heads=24, kv_heads=4, width=256, table_width=640, kv_format="f32"),
    Case("27b_1_lane", (40_960,), heads=24, kv_heads=4, width=256, table_width=640),
    Case("27b_262k", (262_144,), heads=24, kv_heads=4, width=256, table_width=4096),
)


def inputs(case: Case) -> dict[str, Any]:
    """The arguments by name, but for `scale`; what no lane may read is NaN."""
    rng = np.random.default_rng(case.seed)
    q = normals(rng, len(case.lengths), case.heads, case.width)
    q[np.asarray(case.lengths) == 0] = F32_NAN
    keys, values, table = write_sequences(
        rng,
        case.pages,
        case.lengths,
        case.kv_heads,
        case.width,
        case.table_width,
        case.kv_format,
    )
    return {
        "q": q,
        "k_pages": keys,
        "v_pages": values,
        "table": table,
        "lengths": np.asarray(case.lengths, np.int32),
    }
