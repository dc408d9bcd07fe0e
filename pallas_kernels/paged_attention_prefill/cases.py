"""Named sizes of causal attention of a run of tokens over pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_kernels.testing import PAGE_TOKENS, normals, with_idle_tiles, write_sequences


@dataclass(frozen=True, slots=True)
class Case:
    """`tiles` tiles of 64 queries after `first_page` pages, then `idle` tiles.

    `table_width` is a multiple of four.
    """

    name: str
    tiles: int
    first_page: int
    heads: int
    kv_heads: int
    width: int
    table_width: int
    idle: int = 0
    kv_format: str = "bf16"
    seed: int = 0

    @property
    def num_tokens(self) -> int:
        """Queries that are real."""
        return self.tiles * PAGE_TOKENS

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float(self.width**-0.5)


CASES = (
    Case("first_tile", 1, 0, heads=2, kv_heads=2, width=16, table_width=4),
    Case("cold", 3, 0, heads=4, kv_heads=2, width=32, table_width=4, seed=1),
    Case("resumed", 2, 3, heads=6, kv_heads=1, width=32, table_width=8, idle=2, seed=2),
    Case("f32", 2, 5, heads=4, kv_heads=2, width=16, table_width=8, kv_format="f32", seed=3),
    Case("wide", 1, 1, heads=6, kv_heads=1, width=256, table_width=4, seed=4),
    Case("wide_table", 1, 2, heads=2, kv_heads=1, width=16, table_width=24, seed=5),
)

MODEL_CASES = (
    Case("0.8b", 16, 48, heads=8, kv_heads=2, width=256, table_width=640),
    Case("27b", 16, 48, heads=24, kv_heads=4, width=256, table_width=640),
)


def inputs(case: Case) -> dict[str, Any]:
    """The arguments by name, but for `scale`; idle tiles and foreign pages are NaN."""
    rng = np.random.default_rng(case.seed)
    pages = case.first_page + case.tiles
    queries = normals(rng, case.tiles * PAGE_TOKENS, case.heads, case.width)
    keys, values, table = write_sequences(
        rng,
        pages + 2,
        [pages * PAGE_TOKENS],
        case.kv_heads,
        case.width,
        case.table_width,
        case.kv_format,
    )
    return {
        "q": with_idle_tiles(queries, case.idle),
        "k_pages": keys,
        "v_pages": values,
        "table": table[0],
        "first_page": np.int32(case.first_page),
        "num_tokens": np.int32(case.num_tokens),
    }
