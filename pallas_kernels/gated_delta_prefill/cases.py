"""Named sizes of the delta rule over a run of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_kernels.testing import (
    PAGE_TOKENS,
    normals,
    unit_rows,
    whole_tiles,
    with_idle_tiles,
)


@dataclass(frozen=True, slots=True)
class Case:
    """`tokens` tokens, padded to tiles, then `idle` tiles; `kept` lists tiles, by state wanted."""

    name: str
    tokens: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kept: tuple[int, ...] = ()
    idle: int = 0
    fresh: bool = False
    mean_decay: float = 0.05
    seed: int = 0


CASES = (
    Case("fresh", 64, 1, 1, 16, 16, fresh=True),
    Case("ragged", 150, 2, 4, 32, 16, kept=(1,), idle=2, seed=1),
    Case("kept_out_of_order", 256, 1, 3, 16, 32, kept=(2, 0), seed=2),
    Case("strong_decay", 128, 1, 1, 32, 32, kept=(0, 1), mean_decay=3.0, seed=3),
    Case("no_decay", 192, 2, 2, 16, 16, mean_decay=0.0, seed=4),
    Case("wide", 128, 1, 2, 128, 128, kept=(0,), seed=5),
)

MODEL_CASES = (
    Case("0.8b", 1024, 16, 16, 128, 128, kept=(3, 7)),
    Case("27b", 1024, 16, 48, 128, 128, kept=(3, 7)),
)


def inputs(case: Case) -> dict[str, Any]:
    """The arguments by name. Idle tiles are NaN.

    Padding rows have beta = 0 and log_decay = 0. Of the rows that keep states the first are asked
    for in the order of `kept`, the last but one by nobody, and the last takes the rest.
    """
    rng = np.random.default_rng(case.seed)
    length, heads = whole_tiles(case.tokens), case.value_heads
    q = unit_rows(rng, length, case.key_heads, case.key_dim) * np.float32(case.key_dim**-0.5)
    k = unit_rows(rng, length, case.key_heads, case.key_dim)
    v = normals(rng, length, heads, case.value_dim)
    log_decay = -np.float32(case.mean_decay) * rng.exponential(1.0, (length, heads)).astype(
        np.float32
    )
    beta = rng.random((length, heads), np.float32)
    log_decay[case.tokens :] = 0.0
    beta[case.tokens :] = 0.0
    state = normals(rng, heads, case.key_dim, case.value_dim)
    if case.fresh:
        state[:] = 0.0
    keep = np.full(length // PAGE_TOKENS + case.idle, len(case.kept) + 1, np.int32)
    keep[list(case.kept)] = np.arange(len(case.kept))
    rows = {"q": q, "k": k, "v": v, "log_decay": log_decay, "beta": beta}
    padded = {name: with_idle_tiles(array, case.idle) for name, array in rows.items()}
    return {
        **padded,
        "state": state,
        "keep": keep,
        "kept": normals(rng, len(case.kept) + 2, *state.shape),
        "num_tokens": np.int32(case.tokens),
    }
