"""Large retained states go down before they must: one at a time, a window a round.

What a round can carry is demoted on the spot, when its slot or its pages are taken. A state of many
windows would be lost then. So while the device is short of slots or pages and the state that is
next to give way is too large for one window, it is copied down ahead, and leaves the device when
all of it has landed; unless somebody has claimed it meanwhile.
"""

from dataclasses import replace

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
    """All of a state lies below: it leaves the device, unless it was claimed on its way."""
    victim = world.index.get(ahead.retained_id)
    if victim is None or victim.hits != ahead.hits:
        return world
    return tally(discard(world, victim), "demoted", victim.kind)


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
    if found is None or lies_below(tiers, found[1]):
        return world
    victim = found[1]
    stored = replace(stored_of(victim), id=world.next_retained_id)
    placement = tiers.arena.plan(stored, now_ms, tiers.limits.ttl_ms, may_give_way)
    if placement is None:
        return world
    num_moving = stored.num_pages - placement.num_shared
    if num_moving * tiers.arena.cell_bytes + tiers.limits.image_bytes <= tiers.limits.window_bytes:
        return world
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
