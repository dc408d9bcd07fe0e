"""Faults of the tier in host memory: its index, who gives way, its cells and its block."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from state.spec import PAGE_TOKENS
from state.tiers import arena, index, memory
from state.tiers.arena import Arena
from state.tiers.cells import Placement, num_common
from state.tiers.index import TierIndex
from state.tiers.memory import HostArena
from state.tiers.stored import Stored, key_of
from tests.planting import mutant

Plant = AbstractContextManager[Any]


def _walked(real: Callable[..., Iterator[Stored]], wrong: Callable[[Stored], Any]) -> Plant:
    """All states, in an order by something else."""

    def victims(self: TierIndex, now_ms: float, ttl_ms: float) -> Iterator[Stored]:
        return iter(sorted(real(self, now_ms, ttl_ms), key=wrong))

    return patch.object(TierIndex, "victims", victims)


@mutant
def cells_shared_before_their_bytes() -> Plant:
    """A state that has not landed shares its pages with others, which may land before it."""
    real = Arena._shares

    def shares(self: Arena, stored: Stored) -> tuple[int | None, int]:
        source, most = real(self, stored)
        for one in self.pending.values():
            pages = num_common(stored, one)
            if one.id != stored.id and pages > most:
                source, most = one.id, pages
        return source, most

    return patch.object(Arena, "_shares", shares)


@mutant
def cells_shared_by_digest_alone() -> Plant:
    """Whoever stands next in the order shares its pages, as many as there are."""

    def all_of_them(one: Stored, other: Stored) -> int:
        return min(one.num_common, other.num_common)

    return patch.object(arena, "num_common", all_of_them)


@mutant
def decoded_pages_are_shared() -> Plant:
    """All whole pages of a live sequence are taken for common ones."""

    def same_tokens(one: Stored, other: Stored) -> int:
        return one.chain.num_shared(other.chain) // PAGE_TOKENS

    return patch.object(arena, "num_common", same_tokens)


@mutant
def a_placed_state_is_findable() -> Plant:
    """A state is in the index from the moment when it holds its cells."""
    real = Arena.place

    def place(self: Arena, stored: Stored, placement: Placement) -> Any:
        after, place = real(self, stored, placement)
        return replace(after, index=after.index.insert(stored)), place

    return patch.object(Arena, "place", place)


@mutant
def an_oversize_state_evicts() -> Plant:
    """For a state that is larger than the arena all lower ones leave before it turns out."""
    real = Arena.plan

    def plan(self: Arena, stored: Stored, now_ms: float, ttl_ms: float, *more: Any) -> Any:
        found = real(self, stored, now_ms, ttl_ms, *more)
        if found is None and self.image_cells + stored.num_pages > self.num_cells:
            return Placement(None, 0, self.num_cells, tuple(self.index.victims(now_ms, ttl_ms)))
        return found

    return patch.object(Arena, "plan", plan)


@mutant
def an_abandoned_image_stays() -> Plant:
    """A state that will not come gives back its pages and not its image."""
    real = Arena.abandon

    def abandon(self: Arena, id: int) -> Arena:
        after = real(self, id)
        return after._counted(self.places[id].image_cells, 1)

    return patch.object(Arena, "abandon", abandon)


@mutant
def what_is_held_leaves() -> Plant:
    """A state whose bytes are being read gives way like any other."""
    real = TierIndex.victims

    def victims(self: TierIndex, now_ms: float, ttl_ms: float) -> Iterator[Stored]:
        free = [one.id for one in self if one.held]
        for id in free:
            self = self._changed(self.entries[id], replace(self.entries[id], held=0))
        return real(self, now_ms, ttl_ms)

    return patch.object(TierIndex, "victims", victims)


@mutant
def victims_never_age() -> Plant:
    """What a person left keeps its rank however long it has been idle."""
    return patch.object(index, "is_idle", lambda *args: False)


@mutant
def live_work_leaves_first() -> Plant:
    """An evicted sequence gives way before what is only retained."""
    return _walked(TierIndex.victims, lambda one: not one.is_live)


@mutant
def a_restore_protects_nothing() -> Plant:
    """A state that was restored gives way like one that never was."""
    return _walked(
        TierIndex.victims, lambda one: key_of(replace(one, hits=0), one.used_ms, float("inf"))
    )


@mutant
def higher_ranked_states_leave() -> Plant:
    """A spill displaces whatever stands first, also what ranks above it."""
    return patch.object(arena, "ranks_below", lambda *args: True)


@mutant
def a_refusal_is_not_asked_for() -> Plant:
    """Live work without a copy elsewhere leaves though the caller refuses."""
    real = Arena.plan

    def plan(self: Arena, stored: Stored, now_ms: float, ttl_ms: float, may_drop: Any = 0) -> Any:
        return real(self, stored, now_ms, ttl_ms)

    return patch.object(Arena, "plan", plan)


@mutant
def more_leave_than_needed() -> Plant:
    """Of the states that the walk came by none is spared."""
    real = Arena.plan

    def plan(self: Arena, stored: Stored, now_ms: float, ttl_ms: float, *more: Any) -> Any:
        found = real(self, stored, now_ms, ttl_ms, *more)
        if found is None or not found.victims:
            return found
        walked: list[Stored] = []
        for one in self.index.victims(now_ms, ttl_ms):
            walked.append(one)
            if one.id == found.victims[-1].id:
                break
        return replace(found, victims=tuple(walked))

    return patch.object(Arena, "plan", lambda *args, **more: plan(*args, *more.values()))


@mutant
def shared_cells_are_not_counted() -> Plant:
    """A state does not count as a holder of the pages that it shares."""
    real = Arena.place

    def place(self: Arena, stored: Stored, placement: Placement) -> Any:
        after, place = real(self, stored, placement)
        return after._counted(place.page_cells[: placement.num_shared], -1), place

    return patch.object(Arena, "place", place)


@mutant
def doubles_stay() -> Plant:
    """Pages that two states brought at once lie twice for as long as both stay."""
    real = Arena.land

    def land(self: Arena, id: int) -> Arena:
        with patch.object(Arena, "_shares", lambda *args: (None, 0)):
            return real(self, id)

    return patch.object(Arena, "land", land)


@mutant
def salts_share_cells() -> Plant:
    """Pages of the same tokens lie once, whoever's they are."""

    def bare(stored: Stored) -> Stored:
        return replace(stored, chain=replace(stored.chain, salt=b""))

    def shares(self: Arena, stored: Stored) -> tuple[int | None, int]:
        most = [(num_common(bare(stored), bare(one)), one.id) for one in self.index]
        pages, source = max(most, default=(0, None))
        return (source, pages) if pages else (None, 0)

    return patch.object(Arena, "_shares", shares)


@mutant
def a_live_sequence_is_found_by_its_tokens() -> Plant:
    """Another request resumes from an evicted sequence, whose decoded pages are its own."""
    real = TierIndex.insert

    def insert(self: TierIndex, stored: Stored) -> TierIndex:
        after = real(self, stored)
        if stored.is_live and stored.chain.digests:
            digest = stored.chain.digests[-1]
            after = replace(after, by_digest=after.by_digest.add(digest, stored.id))
        return after

    return patch.object(TierIndex, "insert", insert)


@mutant
def a_refused_lock_is_hidden() -> Plant:
    """The arena says that it is locked where the system refused."""
    return patch.object(memory, "_lock", lambda lock, address, num_bytes: "")


@mutant
def memory_goes_back_under_a_view() -> Plant:
    """The block is given up without looking whether something still reads it."""

    def close(self: HostArena) -> None:
        self.rows = self.rows[:0].copy()

    return patch.object(HostArena, "close", close)
