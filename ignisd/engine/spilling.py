"""From the arena to files: what is next to leave it is written out before it has to.

A state stays findable in the arena until its file is whole; then its cells are given back. So the
arena keeps a few cells free while its disk keeps up, and what must leave at once is lost if it
has no file yet. When the daemon ends, everything retained is written, the best first.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from ignisd.engine.demotion import lies_below, lost
from ignisd.engine.moves import WriteFile
from ignisd.engine.room import give_up, victims
from ignisd.engine.stats import FileWork
from ignisd.engine.tiers import Tiers, cleared_up, file_done
from ignisd.engine.types import Tier
from ignisd.engine.world import World, count, tally
from state.tiers.condition import Condition
from state.tiers.jobs import Outcome
from state.tiers.shelf import Room, Shelf
from state.tiers.stored import Stored

_MOST_LOOKED_AT = 64
"""States that a round considers for writing; what is passed over is asked again in the next."""


def plan_spills(world: World, now_ms: float) -> World:
    """Order files for what is next to leave the arena, and the removal of those unwanted."""
    tiers = world.tiers
    if tiers is None or tiers.shelf is None:
        return world
    world = replace(world, tiers=cleared_up(tiers, now_ms))
    if not tiers.shelf.may_write(now_ms):
        return world
    if tiers.draining:
        world = _emptied_device(world, now_ms)
    for stored in _candidates(world, now_ms):
        tiers = world.tiers
        assert tiers is not None
        assert tiers.shelf is not None
        if len(tiers.writing) >= tiers.limits.most_writes or not _is_low(tiers):
            break
        room = tiers.shelf.plan(stored, now_ms, world.limits.ttl_ms)
        if room is not None:
            world = _written_out(world, tiers, stored, room, now_ms)
    return world


def file_written(world: World, outcome: Outcome, now_ms: float) -> World:
    """A file is whole, and its cells are free; or it could not be written, and why."""
    tiers = world.tiers
    assert tiers is not None
    assert tiers.shelf is not None
    written = tiers.shelf.pending[outcome.id]
    arena, shelf = tiers.arena.release(outcome.id), tiers.shelf.settle(outcome, now_ms)
    tiers = replace(tiers, arena=arena, shelf=shelf)
    held = arena.index.get(outcome.id)
    stays = held is not None and held.pinned and not tiers.draining
    if outcome.id in shelf.index and not stays:
        # Who resumes from the state just now keeps its cells until it has.
        tiers = replace(tiers, transient=tiers.transient | {outcome.id})
    world = replace(world, tiers=file_done(tiers, outcome.id))
    if outcome.trouble is not None:
        return tally(world, "file_faults", FileWork.WRITE)
    if not outcome.landed:
        return world
    world = count(world, files_written=1, disk_written_bytes=written.num_bytes)
    if written.stored.kind is None:
        return count(world, evicted_to_disk=1)
    return tally(world, "spilled", written.stored.kind)


def draining(world: World) -> World:
    """From now on everything retained is written out, as fast as it goes."""
    if world.tiers is None:
        return world
    return replace(world, tiers=replace(world.tiers, draining=True))


def is_written_out(world: World, now_ms: float) -> bool:
    """Whether nothing is left that could still be written."""
    tiers = world.tiers
    if tiers is None or tiers.shelf is None or tiers.orders or tiers.writing:
        return tiers is None or tiers.shelf is None
    if tiers.shelf.writer.condition is Condition.DISABLED:
        return True
    left = any(not lies_below(tiers, held) for held in world.index)
    return not (left or tiers.landings or next(_candidates(world, now_ms), None))


def _emptied_device(world: World, now_ms: float) -> World:
    """Send down what the device retains, the best first, as far as the arena has free cells."""
    for _, victim in reversed(list(victims(world, now_ms))):
        tiers = world.tiers
        assert tiers is not None
        if tiers.ahead is not None or lies_below(tiers, victim):
            continue
        wanted = tiers.arena.image_cells + len(victim.table)
        if tiers.arena.num_free < wanted:
            break
        world = give_up(world, victim, now_ms)
    return world


def _is_low(tiers: Tiers) -> bool:
    """Whether the arena has fewer free cells than it should, when all that is written has left."""
    if tiers.draining:
        return True
    coming = sum(tiers.arena.num_sole(stored_id) for stored_id in tiers.writing)
    return tiers.arena.num_free + coming < tiers.limits.low_cells


def _candidates(world: World, now_ms: float) -> Iterator[Stored]:
    """What may be written: it has landed, nothing touches it, and no file holds it."""
    tiers = world.tiers
    assert tiers is not None
    index, ttl_ms = tiers.arena.index, world.limits.ttl_ms
    ordered = islice(index.victims(now_ms, ttl_ms), _MOST_LOOKED_AT)
    for stored in index.best(now_ms, ttl_ms) if tiers.draining else ordered:
        if stored.held:
            continue
        moving = stored.id in tiers.touched or stored.id in tiers.writing
        if not moving and stored.id not in tiers.orphans and not _is_filed(tiers.shelf, stored):
            yield stored


def _is_filed(shelf: Shelf | None, stored: Stored) -> bool:
    if shelf is None or stored.id in shelf.index:
        return shelf is not None
    return not stored.is_live and shelf.holds(stored.chain, stored.length) is not None


def _written_out(world: World, tiers: Tiers, stored: Stored, room: Room, now_ms: float) -> World:
    """The world in which a state's file is ordered, and what makes way for it is forgotten."""
    assert tiers.shelf is not None
    for victim in room.victims:
        if victim.id not in tiers.arena.index:
            world = lost(world, victim, Tier.KV_DISK)
    now_wall_ms = now_ms + tiers.limits.wall_offset_ms
    shelf, order = tiers.shelf.place(stored, room, now_ms, now_wall_ms)
    located = tiers.arena.located(stored.id)
    tiers = replace(
        tiers,
        arena=tiers.arena.hold(stored.id),
        shelf=shelf,
        writing=tiers.writing | {stored.id},
    )
    return replace(world, tiers=tiers.ordered(WriteFile(order, located.cells)))
