"""Retained state that the device gives up goes down to the arena, if the round can still carry it.

The copy down is planned before whatever takes the slot and the pages, so these are free at once
and nobody waits. What the window of the round cannot carry on the spot is demoted ahead, a window a
round, while it is next to give way.
"""

from dataclasses import replace

from ignisd.engine.moves import Lower
from ignisd.engine.stats import NotDemoted, PinEnd, Use
from ignisd.engine.tiers import Tiers, given_up
from ignisd.engine.types import Tier
from ignisd.engine.world import World, count, tally
from state.retained import Retained
from state.tiers.arena import Arena
from state.tiers.cells import Placement
from state.tiers.shelf import Shelf
from state.tiers.stored import Stored, stored_of


def demote(world: World, victim: Retained, now_ms: float) -> World:
    """Plan the copy of a retained state that is about to be discarded; or count why not.

    A state that lies below already is found by content, and nothing is written.
    """
    tiers = world.tiers
    if tiers is None:
        return world
    if tiers.ahead is not None and tiers.ahead.retained_id == victim.id:
        # Its pages are wanted before all of it has gone down.
        tiers = given_up(replace(tiers, ahead=None), tiers.ahead.stored_id)
        return tally(replace(world, tiers=tiers), "not_demoted", NotDemoted.WINDOW)
    limits, stored_id = tiers.limits, world.next_retained_id
    stored = replace(stored_of(victim), id=stored_id)
    if lies_below(tiers, victim):
        return count(_renewed(world, tiers, stored), demoted_present=1)
    placement = tiers.arena.plan(stored, now_ms, world.limits.ttl_ms, may_give_way)
    if placement is None:
        return tally(world, "not_demoted", NotDemoted.NO_ROOM)
    num_moving = stored.num_pages - placement.num_shared
    cost = num_moving * tiers.arena.cell_bytes + limits.image_bytes
    untouched = tiers.left_bytes >= limits.window_bytes
    if cost > tiers.left_bytes and not (untouched and not num_moving):
        return tally(world, "not_demoted", NotDemoted.WINDOW)
    world = displacing(replace(world, next_retained_id=stored_id + 1), tiers, placement)
    arena, located = tiers.arena.place(stored, placement)
    lower = Lower(
        stored_id=stored_id,
        pages=tuple(victim.table[page] for page in located.missing),
        cells=tuple(located.page_cells[page] for page in located.missing),
        slot=victim.slot,
        image_cells=located.image_cells,
    )
    if stored.pinned and not may_pin_cells(arena):
        arena = arena.pin(stored_id, False)
        world = tally(world, "pins_ended", PinEnd.LIMIT)
    tiers = replace(
        tiers.charged(num_moving, 1).touching(stored_id, world.next_round),
        arena=arena,
        lowers=(*tiers.lowers, lower),
        landings=(*tiers.landings, (world.next_round, stored_id)),
    )
    return tally(replace(world, tiers=tiers), "demoted", victim.kind)


def lies_below(tiers: Tiers, victim: Retained) -> bool:
    """Whether exactly this state is in a lower tier, or on its way there."""
    held = tiers.arena.holds(victim.chain, victim.length)
    if held is not None and held.id not in tiers.orphans:
        return True
    return tiers.shelf is not None and tiers.shelf.holds(victim.chain, victim.length) is not None


def may_pin_cells(arena: Arena, also: int | None = None) -> bool:
    """Whether pinned states, with one more, hold no more than half of the arena."""
    return arena.num_pinned_cells(also) <= arena.num_cells // 2


def may_pin_files(shelf: Shelf, also: Stored) -> bool:
    """Whether the files of pinned states, with one more, take no more than half of the ceiling."""
    more = 0 if also.pinned else shelf.file_bytes(also)
    return shelf.pinned_bytes + more <= shelf.ceiling_bytes // 2


def _renewed(world: World, tiers: Tiers, stored: Stored) -> World:
    """What lies below of the state was used as lately as what comes down again, and is pinned if
    that was; of two copies the one in the arena.
    """
    arena, shelf, pinned = tiers.arena, tiers.shelf, stored.pinned
    held = arena.holds(stored.chain, stored.length)
    if held is not None and held.id not in tiers.orphans:
        stays = pinned and held.id not in tiers.transient and may_pin_cells(arena, held.id)
        arena = arena.renew(replace(stored, id=held.id, pinned=stays))
        pinned = pinned and not stays
    if shelf is not None:
        held = shelf.holds(stored.chain, stored.length)
        if held is not None:
            stays = pinned and held.id in shelf.index and may_pin_files(shelf, held)
            shelf = shelf.renew(replace(stored, id=held.id, pinned=stays))
            pinned = pinned and not stays
    world = replace(world, tiers=replace(tiers, arena=arena, shelf=shelf))
    return tally(world, "pins_ended", PinEnd.LIMIT) if pinned else world


def may_give_way(stored: Stored) -> bool:
    """Whether the arena may drop a state for another: never what a live sequence goes on from."""
    return not stored.is_live


def displacing(world: World, tiers: Tiers, placement: Placement) -> World:
    """Count what leaves the arena for another and is lost, because no file holds it."""
    for victim in placement.victims:
        if tiers.on_shelf(victim.id) is None:
            world = lost(world, victim, Tier.KV_RAM)
    return world


def lost(world: World, victim: Stored, tier: Tier) -> World:
    """Count a retained state that a tier gives up and no other one has."""
    use = Use.USED if victim.hits else Use.UNUSED
    return tally(world, "discarded", (tier, victim.kind, use))
