"""Large retained states go down before they must: one at a time, a window a round.

What a round can carry is demoted on the spot, when its slot or its pages are taken. A state of many
windows would be lost then. So while the device is short of slots or pages and the state that is
next to give way is too large for one window, it is copied down ahead, and leaves the device when
all of it has landed; unless somebody has claimed it meanwhile. A pinned state is copied down at
once, whatever its size, and stays: should live work need its pages, all of it lies below.
"""

from dataclasses import replace
from operator import is_

from ignisd.engine.demotion import displacing, lies_below, may_give_way
from ignisd.engine.room import discard, victims
from ignisd.engine.tiers import Ahead, Tiers, given_up
from ignisd.engine.windows import send_window
from ignisd.engine.world import World, pages_for, tally
from state.retained import Retained
from state.tiers.stored import stored_of


def plan_ahead(world: World, now_ms: float) -> World:
    """Move the next window of the state that goes down ahead, if the round moves nothing else."""
    tiers = world.tiers
    if tiers is None or tiers.left_bytes < tiers.limits.window_bytes:
        return world
    if tiers.ahead is None:
        world = _pinned(world, tiers, now_ms)
        tiers = world.tiers
    if tiers is not None and tiers.ahead is None:
        world = _chosen(world, now_ms)
        tiers = world.tiers
    if tiers is None or tiers.ahead is None:
        return world
    ahead = tiers.ahead
    victim = world.index.get(ahead.retained_id)
    unwanted = ahead.stored_id not in tiers.arena.pending or ahead.stored_id in tiers.orphans
    if victim is None or unwanted:
        return replace(world, tiers=given_up(replace(tiers, ahead=None), ahead.stored_id))
    return replace(world, tiers=_window(tiers, ahead, victim, world.next_round))


def landed_ahead(world: World, ahead: Ahead) -> World:
    """All of a state lies below: it leaves the device, unless it was claimed on its way, or is
    pinned.
    """
    victim = world.index.get(ahead.retained_id)
    if victim is None:
        return world
    world = tally(world, "demoted", victim.kind)
    return world if victim.pinned or victim.hits != ahead.hits else discard(world, victim)


def _chosen(world: World, now_ms: float) -> World:
    """The world in which the state that is next to give way goes down, if it should."""
    tiers = world.tiers
    assert tiers is not None
    short = world.slots.num_free == 0 or world.pages.num_free < pages_for(world.limits.step_tokens)
    if not short:
        return world
    if tiers.ahead_asked is world.index:
        return world  # it was too small for this, or lies below, and is still the next to go
    tiers = replace(tiers, ahead_asked=world.index)
    world = replace(world, tiers=tiers)
    found = next(victims(world, now_ms), None)
    if found is None or found[1].pinned or lies_below(tiers, found[1]):
        return world
    return _begun(world, tiers, found[1], now_ms) or world


def _pinned(world: World, tiers: Tiers, now_ms: float) -> World:
    """The world in which a pinned state that does not lie below goes down, if there is one.

    It is counted without what it shares with others: half of the arena is enough for pins.
    """
    arena, pinned = tiers.arena, world.index.pinned
    asked = (pinned, arena.index, None if tiers.shelf is None else tiers.shelf.index)
    if not pinned or all(map(is_, asked, tiers.pins_seen)):
        return world
    below = (one for one in (*arena.index.pinned(), *arena.pending.values()) if one.pinned)
    free = arena.num_cells // 2 - sum(arena.image_cells + one.num_pages for one in below)
    for retained_id in sorted(pinned):
        victim = world.index.entries[retained_id]
        if arena.image_cells + len(victim.table) <= free and not lies_below(tiers, victim):
            begun = _begun(world, tiers, victim, now_ms)
            if begun is not None:
                return begun
    return replace(world, tiers=replace(tiers, pins_seen=asked))


def _begun(world: World, tiers: Tiers, victim: Retained, now_ms: float) -> World | None:
    """The world in which a state goes down ahead; None where it has no room, or needs no time."""
    stored = replace(stored_of(victim), id=world.next_retained_id)
    placement = tiers.arena.plan(stored, now_ms, world.limits.ttl_ms, may_give_way)
    if placement is None:
        return None
    num_moving = stored.num_pages - placement.num_shared
    cost = num_moving * tiers.arena.cell_bytes + tiers.limits.image_bytes
    if cost <= tiers.limits.window_bytes and not victim.pinned:
        return None
    world = displacing(world, tiers, placement)
    arena, _ = tiers.arena.place(stored, placement)
    tiers = replace(tiers, arena=arena, ahead=Ahead(victim.id, stored.id, victim.hits))
    return replace(world, tiers=tiers, next_retained_id=stored.id + 1)


def _window(tiers: Tiers, ahead: Ahead, victim: Retained, number: int) -> Tiers:
    """The next pages go down, the image with the first of them."""
    slot = None if ahead.image_sent else victim.slot
    tiers, moved = send_window(
        tiers, ahead.stored_id, victim.table, ahead.moved_pages, number, slot=slot
    )
    ahead = replace(ahead, moved_pages=moved, image_sent=True)
    if tiers.landings and tiers.landings[-1] == (number, ahead.stored_id):
        return replace(tiers, ahead=None, arriving=(*tiers.arriving, ahead))
    return replace(tiers, ahead=ahead)
