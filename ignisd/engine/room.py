"""Pages and slots when they are short: what is retained gives way, lowest rank first."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ignisd.engine.demotion import demote, lies_below
from ignisd.engine.stats import PinEnd, SkipReason, Use
from ignisd.engine.tiers import emptied, retained_ids
from ignisd.engine.types import Tier
from ignisd.engine.world import Sequence, World, count, tally
from state.chain import Chain
from state.retained import Kind, Rank, Retained, rank, rank_key
from state.spec import PAGE_TOKENS, Class


def discard(world: World, victim: Retained, *, remember: bool = True) -> World:
    """Give up a retained state: its slot is free at once, its pages when nobody else holds them.

    A claim of the slot that is already planned still reads the right image, because whatever may
    overwrite the slot is planned, and so executed, after it.
    """
    return replace(
        world,
        pages=world.pages.drop(victim.table),
        slots=world.slots.drop(victim.slot),
        index=world.index.remove(victim.id, remember=remember),
    )


def give_up(world: World, victim: Retained, now_ms: float) -> World:
    """A retained state leaves the device, for the arena if the round can still carry it there."""
    world = demote(world, victim, now_ms)
    if world.tiers is None or not lies_below(world.tiers, victim):
        use = Use.USED if victim.hits else Use.UNUSED
        world = tally(world, "discarded", (Tier.DEVICE, victim.kind, use))
        if victim.pinned:
            world = tally(world, "pins_ended", PinEnd.NO_ROOM)
    return discard(world, victim)


def flush(world: World) -> World:
    """Give up everything that is retained, in every tier; what moves goes when it has arrived."""
    world = flush_device(world)
    if world.tiers is None:
        return world
    num_gone = len(retained_ids(world.tiers))
    return count(replace(world, tiers=emptied(world.tiers)), flushed=num_gone)


def flush_device(world: World) -> World:
    """Give up everything that is retained on the device; nothing of it goes down."""
    num_gone = len(world.index)
    for victim in list(world.index):
        world = discard(world, victim, remember=False)
    return count(world, flushed=num_gone)


def victims(world: World, now_ms: float) -> Iterator[tuple[Rank, Retained]]:
    """What is retained, with its rank, in the order in which it gives way; pinned states last.

    At most half of the slots are held by prefixes and junctions that rank above checkpoints.
    Otherwise as many prefixes as there are slots, each hit now and then, would leave none to any
    conversation.
    """
    return world.index.victims(now_ms, world.limits.ttl_ms, world.slots.num_slots // 2)


def gainable(world: World, live: Iterable[Sequence] = ()) -> int:
    """Pages that are free, or would be if all retained states and some sequences were given up."""
    listed = np.zeros_like(world.pages.counts)
    for table in (*(held.table for held in world.index), *(seq.table for seq in live)):
        listed[_numbers(table)] += 1
    alone = np.count_nonzero((listed > 0) & (listed == world.pages.counts))
    return world.pages.num_free + int(alone)


def make_room(world: World, num_pages: int, now_ms: float) -> World | None:
    """Give up just enough retained states that `num_pages` are free; None when all would not do.

    A pinned state leaves only if all others would not do: it must keep nobody waiting, and where
    there is a tier below, it goes on there. The best goes down first: what would be discarded first
    below must not take the window of the round from it.
    """
    if world.pages.num_free >= num_pages:
        return world
    if num_pages > world.pages.num_pages - 1:
        return None
    leaving = who_leaves(world, num_pages, now_ms)
    if leaving is None:
        return None
    for victim in leaving:
        world = give_up(world, victim, now_ms)
    assert world.pages.num_free >= num_pages, (
        f"gave up {len(leaving)} states for {num_pages} pages, {world.pages.num_free} are free"
    )
    return world


def who_leaves(world: World, num_pages: int, now_ms: float) -> list[Retained] | None:
    """The retained states that give way for so many free pages, the best first; None if all would
    not do.

    Walks up the ranks until enough last holders would leave, then spares, from the highest rank
    down, whoever's leaving gains nothing that is needed: a state whose pages a running sequence or
    a longer state holds as well.
    """
    holders = world.pages.counts.copy()
    free = world.pages.num_free
    chosen: list[Retained] = []
    for _, victim in victims(world, now_ms):
        chosen.append(victim)
        pages = _numbers(victim.table)
        holders[pages] -= 1
        free += int(np.count_nonzero(holders[pages] == 0))
        if free >= num_pages:
            break
    else:
        return None
    leaving: list[Retained] = []
    for victim in reversed(chosen):
        pages = _numbers(victim.table)
        lost = int(np.count_nonzero(holders[pages] == 0))
        if free - lost >= num_pages:
            free -= lost
            holders[pages] += 1
        else:
            leaving.append(victim)
    return leaving


def _numbers(table: tuple[int, ...]) -> npt.NDArray[np.intp]:
    return np.asarray(table, np.intp)


@dataclass(frozen=True, slots=True)
class Wish:
    """A state that would like to be kept: the first `length` tokens of a chain."""

    kind: Kind
    chain: Chain
    length: int
    table: tuple[int, ...]
    cls: Class


def reserve_slot(world: World, wish: Wish, now_ms: float) -> tuple[World, int] | SkipReason:
    """A slot for a new state, owned by the number that it gets, or why there is none.

    When all slots are taken, the lowest ranked retained state gives way if the new one ranks
    above it.
    """
    taken = world.slots.take(world.next_retained_id)
    if taken is None:
        lowest = next(victims(world, now_ms), None)
        if lowest is None or not _gives_way(world, *lowest, wish, now_ms):
            return SkipReason.NO_SLOT
        world = give_up(world, lowest[1], now_ms)
        # What goes down has taken a number of its own.
        taken = world.slots.take(world.next_retained_id)
        assert taken is not None, f"slot {lowest[1].slot} was given up and is not free"
    slots, slot = taken
    return replace(world, slots=slots, next_retained_id=world.next_retained_id + 1), slot


def _gives_way(world: World, held_rank: Rank, held: Retained, wish: Wish, now_ms: float) -> bool:
    new, ttl_ms = _as_retained(world, wish, now_ms), world.limits.ttl_ms
    held_key = (held_rank, rank_key(held, now_ms, ttl_ms))
    return held_key < (rank(new, now_ms, ttl_ms), rank_key(new, now_ms, ttl_ms))


def _as_retained(world: World, wish: Wish, now_ms: float) -> Retained:
    """What the wish would be if it were published now; only its rank matters."""
    return Retained(
        id=world.next_retained_id,
        kind=wish.kind,
        chain=wish.chain,
        length=wish.length,
        table=wish.table[: wish.length // PAGE_TOKENS],
        slot=0,
        cls=wish.cls,
        conversation=0,
        superseded=False,
        hits=0,
        published_ms=now_ms,
        used_ms=now_ms,
        fingerprint=world.index.fingerprint,
    )
