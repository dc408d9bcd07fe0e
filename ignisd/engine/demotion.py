"""Retained state that the device gives up goes down to the arena, if the round can still carry it.

The copy down is planned before whatever takes the slot and the pages, so these are free at once
and nobody waits. What the window of the round cannot carry on the spot is demoted ahead, a window a
round, while it is next to give way.
"""

from dataclasses import replace

from ignisd.engine.moves import Lower
from ignisd.engine.stats import NotDemoted
from ignisd.engine.tiers import Tiers, given_up
from ignisd.engine.world import World, count, tally
from state.retained import Retained
from state.tiers.cells import Placement
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
        return count(replace(world, tiers=_renewed(tiers, stored)), demoted_present=1)
    placement = tiers.arena.plan(stored, now_ms, limits.ttl_ms, may_give_way)
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
    tiers = replace(
        tiers.charged(num_moving, 1).touching(stored_id, world.next_round),
        arena=arena,
        lowers=(*tiers.lowers, lower),
        landings=(*tiers.landings, (world.next_round, stored_id)),
    )
    return tally(replace(world, tiers=tiers), "demoted", victim.kind)


def lies_below(tiers: Tiers, victim: Retained) -> bool:
    """Whether exactly this state is in a lower tier, or on its way there."""
    if tiers.arena.holds(victim.chain, victim.length) is not None:
        return True
    return tiers.shelf is not None and tiers.shelf.holds(victim.chain, victim.length) is not None


def _renewed(tiers: Tiers, stored: Stored) -> Tiers:
    """What lies below of the state was used as lately as what comes down again."""
    held = tiers.arena.index.find(stored.chain, stored.length)
    if held is not None:
        tiers = replace(tiers, arena=tiers.arena.renew(replace(stored, id=held.id)))
    if tiers.shelf is not None:
        held = tiers.shelf.index.find(stored.chain, stored.length)
        if held is not None:
            tiers = replace(tiers, shelf=tiers.shelf.renew(replace(stored, id=held.id)))
    return tiers


def may_give_way(stored: Stored) -> bool:
    """Whether the arena may drop a state for another: never what a live sequence goes on from."""
    return not stored.is_live


def displacing(world: World, tiers: Tiers, placement: Placement) -> World:
    """Count what leaves the arena for another and is lost, because no file holds it."""
    for victim in placement.victims:
        if tiers.on_shelf(victim.id) is None:
            world = count(world, **{"lost_used" if victim.hits else "lost_unused": 1})
    return world
