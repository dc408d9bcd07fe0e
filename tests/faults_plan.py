"""Faults of the numbers: who counts as gone, what fits, what is worth its time."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ignisd.engine import rates, room, tier_plan
from ignisd.engine.capacity import Line
from ignisd.engine.moves import Lower
from ignisd.engine.tier_plan import TierSizes
from state.retained import DEFAULT_TTL_MS, Retained, rank_key
from tests.planting import mutant

Plant = AbstractContextManager[Any]


@mutant
def idle_time_fixed_for_slots() -> Plant:
    """Who takes a slot is decided by the default idle time, whatever was asked for."""

    def key(one: Retained, now_ms: float, ttl_ms: float) -> Any:
        return rank_key(one, now_ms, DEFAULT_TTL_MS)

    return patch.object(room, "rank_key", key)


@mutant
def idle_time_fixed_for_victims() -> Plant:
    """Who gives way first is decided by the default idle time, whatever was asked for."""

    def victims(world: Any, now_ms: float) -> Any:
        return world.index.victims(now_ms, DEFAULT_TTL_MS, world.slots.num_slots // 2)

    return patch.object(room, "victims", victims)


@mutant
def floor_without_margin() -> Plant:
    """A state is restored as soon as that breaks even."""
    return patch.object(rates, "_FLOOR_MARGIN", 1.0)


@mutant
def window_as_long_as_a_step() -> Plant:
    """What moves in a round takes as long as decoding does."""
    return patch.object(rates, "_DECODE_PART", 1.0)


@mutant
def null_page_moves() -> Plant:
    """The page that takes padding is among those that are moved to measure."""

    def down(stored_id: int, pages: tuple[int, ...], cells: tuple[int, ...], **more: Any) -> Lower:
        return Lower(stored_id, tuple(page - 1 for page in pages), cells, **more)

    return patch.object(rates, "Lower", down)


@mutant
def steps_timed_one_by_one() -> Plant:
    """Steps are timed as if nothing of a round overlapped with the one before it."""
    return patch.object(rates, "_SHORT_STEP_MS", 0.0)


@mutant
def arena_beside_the_plan() -> Plant:
    """Host memory for kv_ram is reserved and in no line of the plan."""
    real = TierSizes.lines

    def lines(self: TierSizes, platform: str) -> tuple[Line, ...]:
        return real(self, platform)[1:]

    return patch.object(TierSizes, "lines", lines)


@mutant
def arena_over_the_limit() -> Plant:
    """`auto` takes its part of the memory, whatever else was asked for."""
    real = tier_plan._auto_bytes

    def auto_bytes(one_cell: Any, platform: str, sizes: Any, budget: Any) -> int:
        alone = replace(budget, shared=False)
        return real(one_cell, platform, replace(sizes, num_host_slots=0), alone)

    return patch.object(tier_plan, "_auto_bytes", auto_bytes)
