"""Faults in what is kept periodically, and in who may resume from it."""

from collections.abc import Mapping, Set
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from ignisd.engine import captures, scheduler
from state import groups, retention, reuse
from state.groups import GroupName
from state.retention import RetentionPolicy
from tests.planting import mutant

Plant = AbstractContextManager[Any]
Kept = Mapping[int, Set[GroupName]]


@mutant
def the_first_group_decides() -> Plant:
    """The lookup asks the pages of full attention alone where a follower could resume."""
    real = groups.where_to_resume

    def where(num_tokens: int, wanted: Set[GroupName], kept: Kept) -> tuple[int, ...]:
        return real(num_tokens, {GroupName.FULL}, kept)

    return patch.object(reuse, "where_to_resume", where)


@mutant
def one_group_holds_nobody_back() -> Plant:
    """A window that was given up is taken for one whose miss does no harm."""
    real = groups.where_to_resume

    def where(num_tokens: int, wanted: Set[GroupName], kept: Kept) -> tuple[int, ...]:
        return real(num_tokens, wanted - {GroupName.WINDOW}, kept)

    return patch.object(reuse, "where_to_resume", where)


@mutant
def one_interval_for_all_groups() -> Plant:
    """Every group is kept wherever the first of them is."""
    real = RetentionPolicy.promised

    def promised(self: RetentionPolicy, num_tokens: int) -> Any:
        return dict.fromkeys(real(self, num_tokens))

    return patch.object(RetentionPolicy, "promised", promised)


@mutant
def a_chunk_yields_one_periodic_state() -> Plant:
    """Of the promised points inside a chunk only the last is emitted."""
    real = captures.plan_captures

    def plan(world: Any, seq: Any, end: int, now_ms: float) -> Any:
        inside = [cut for cut in seq.cuts if cut.position <= end]
        object.__setattr__(seq, "cuts", (*inside[-1:], *seq.cuts[len(inside) :]))
        return real(world, seq, end, now_ms)

    return patch.object(scheduler, "plan_captures", plan)


@mutant
def the_grid_of_writers_is_a_page_off() -> Plant:
    """Periodic points are kept a page before where a follower looks for them."""
    real = RetentionPolicy.promised

    def promised(self: RetentionPolicy, num_tokens: int) -> Any:
        return {max(at - 64, 64): groups for at, groups in real(self, num_tokens).items()}

    return patch.object(retention.RetentionPolicy, "promised", promised)
