"""Faults of what an operator is told and may change: pins, flushes, totals and metrics."""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ignisd.engine import ahead, control, demotion, restoring, room
from ignisd.engine.stats import Counters
from ignisd.engine.tiers import Tiers
from ignisd.engine.types import Request
from ignisd.engine.world import World
from ignisd.http import explaining
from state import ranking
from state.retained import Retained, rank
from state.tiers.arena import Arena
from state.tiers.index import TierIndex
from state.tiers.stored import Stored, stored_of
from tests.planting import mutant

Plant = AbstractContextManager[Any]


def _both(name: str, wrong: Any, *modules: Any) -> Plant:
    stack = ExitStack()
    for module in modules:
        stack.enter_context(patch.object(module, name, wrong))
    return stack


@mutant
def pins_rank_as_others() -> Plant:
    """A pinned state has the rank that it would have without."""

    def unpinned(retained: Retained, now_ms: float, ttl_ms: float) -> Any:
        return rank(replace(retained, pinned=False), now_ms, ttl_ms)

    return _both("rank", unpinned, ranking, room)


@mutant
def a_pin_stays_above() -> Plant:
    """A pinned state that goes down is pinned no more."""

    def below(retained: Retained) -> Stored:
        return replace(stored_of(retained), pinned=False)

    return _both("stored_of", below, ahead, demotion)


@mutant
def pins_have_no_bound() -> Plant:
    """As much as one likes can be pinned."""
    return patch.object(control, "_refused", lambda world, tier, one: None)


@mutant
def an_unpin_forgets_the_copy() -> Plant:
    """A pin that is taken back on the device stays with the copy below."""
    real = control._unpinned

    def unpinned(world: World, chain: Any) -> World:
        return replace(real(world, chain), tiers=world.tiers)

    return patch.object(control, "_unpinned", unpinned)


@mutant
def a_flush_of_files_leaves_them() -> Plant:
    """A flush of kv_disk alone forgets the states and not their files."""

    def without_file(tiers: Tiers, stored_id: int) -> Tiers:
        assert tiers.shelf is not None
        return replace(tiers, shelf=replace(tiers.shelf, index=tiers.shelf.index.remove(stored_id)))

    return patch.object(control, "without_file", without_file)


@mutant
def what_was_flushed_is_found() -> Plant:
    """A state that was given up serves the next request while something still touches it."""

    def longest_in(tiers: Tiers, index: TierIndex, request: Request) -> Stored | None:
        return index.longest_match(request.chain, request.prompt_tokens)

    return patch.object(restoring, "longest_in", longest_in)


@mutant
def two_states_of_one_number() -> Plant:
    """What goes down takes the number of the state that takes its slot."""
    real = room.give_up

    def give_up(world: World, victim: Retained, now_ms: float) -> World:
        return replace(real(world, victim, now_ms), next_retained_id=world.next_retained_id)

    return patch.object(room, "give_up", give_up)


@mutant
def shared_cells_count_for_each() -> Plant:
    """Cells that evicted requests share count once for each of them."""

    def num_held(self: Arena, ids: Any) -> int:
        return sum(len(self.located(id).cells) for id in ids)

    return patch.object(Arena, "_num_held", num_held)


@mutant
def restored_tokens_are_not_told() -> Plant:
    """The prompt tokens that came from files are missing from those by source."""
    real = Counters.prompt_tokens.fget  # type: ignore[attr-defined]

    def prompt_tokens(self: Counters) -> Any:
        return {source: tokens for source, tokens in real(self).items() if source != "kv_disk"}

    return patch.object(Counters, "prompt_tokens", property(prompt_tokens))


@mutant
def explained_from_the_device_alone() -> Plant:
    """What lies below is not asked when a prompt is explained."""
    return patch.object(explaining, "look_below", lambda world, asked, found: (found, None))
