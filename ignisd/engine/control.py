"""What an operator changes: what is retained goes, and a state stays or may go again."""

from dataclasses import dataclass, replace

from ignisd.engine.demotion import may_pin_cells, may_pin_files
from ignisd.engine.room import flush, flush_device
from ignisd.engine.tiers import Tiers, given_up, without_file
from ignisd.engine.types import Tier
from ignisd.engine.world import World, count
from state.chain import Chain
from state.retained import Retained
from state.tiers.stored import Stored


@dataclass(frozen=True, slots=True)
class TooManyPins:
    """A pin that was refused: pinned states may take half of a tier.

    Args:
        tier: where the state lies.
        unit: what there would be too many of: slots, pages or bytes.
        wanted: that pinned states would take with this one.
        most: that they may take.
    """

    tier: Tier
    unit: str
    wanted: int
    most: int


def located(world: World, state_id: int) -> tuple[Tier, Retained | Stored] | None:
    """A retained state and the tier that it lies in; None where there is none of that id.

    One that was read from its file for a restore lies in that file; one that waits to be given
    back lies nowhere.
    """
    held = world.index.get(state_id)
    if held is not None:
        return Tier.DEVICE, held
    tiers = world.tiers
    if tiers is None or state_id in tiers.orphans:
        return None
    filed = tiers.on_shelf(state_id)
    stored = tiers.arena.index.get(state_id)
    if stored is not None and not (state_id in tiers.transient and filed is not None):
        return None if stored.is_live else (Tier.KV_RAM, stored)
    return None if filed is None or filed.is_live else (Tier.KV_DISK, filed)


def pin(world: World, state_id: int, pinned: bool) -> tuple[World, TooManyPins | None]:
    """The world in which a state is pinned, or none of its tokens is; and why it could not be.

    A pin is of one state in its tier, and goes down with it. To take it back concerns every copy,
    as the one on the device has a copy below.
    """
    found = located(world, state_id)
    if found is None:
        return world, None
    tier, one = found
    if not pinned:
        return _unpinned(world, one.chain), None
    refused = None if one.pinned else _refused(world, tier, one)
    if refused is not None:
        return world, refused
    if tier is Tier.DEVICE:
        return replace(world, index=world.index.pin(state_id, True)), None
    tiers = world.tiers
    assert tiers is not None
    if tier is Tier.KV_RAM:
        tiers = replace(tiers, arena=tiers.arena.pin(state_id, True))
    else:
        assert tiers.shelf is not None
        tiers = replace(tiers, shelf=tiers.shelf.pin(state_id, True))
    return replace(world, tiers=tiers), None


def flushed(world: World, tier: Tier | None) -> World:
    """Give up everything retained, in one tier or in all; pinned states as well.

    Nothing of it goes down or comes up again. What moves goes when it has arrived.
    """
    if tier is None:
        return flush(world)
    if tier is Tier.DEVICE:
        return flush_device(world)
    if world.tiers is None:
        return world
    tiers, num_gone = (_without_ram if tier is Tier.KV_RAM else _without_disk)(world.tiers)
    return count(replace(world, tiers=tiers), flushed=num_gone)


def _refused(world: World, tier: Tier, one: Retained | Stored) -> TooManyPins | None:
    """Why one state more may not be pinned there."""
    if isinstance(one, Retained):
        pinned = world.index.pinned | {one.id}
        most = world.slots.num_slots // 2
        if len(pinned) > most:
            return TooManyPins(tier, "slots", len(pinned), most)
        wanted = len({page for id in pinned for page in world.index.entries[id].table})
        most = (world.pages.num_pages - 1) // 2
        return TooManyPins(tier, "pages", wanted, most) if wanted > most else None
    tiers = world.tiers
    assert tiers is not None
    if tier is Tier.KV_RAM:
        arena = tiers.arena
        if may_pin_cells(arena, one.id):
            return None
        wanted = arena.num_pinned_cells(one.id) * arena.cell_bytes
        return TooManyPins(tier, "bytes", wanted, arena.num_cells // 2 * arena.cell_bytes)
    shelf = tiers.shelf
    assert shelf is not None
    if may_pin_files(shelf, one):
        return None
    wanted = shelf.pinned_bytes + shelf.file_bytes(one)
    return TooManyPins(tier, "bytes", wanted, shelf.ceiling_bytes // 2)


def _unpinned(world: World, chain: Chain) -> World:
    """No state of exactly these tokens is pinned, in any tier or on the way there."""
    index = world.index
    for state_id in index.pinned:
        if index.entries[state_id].chain == chain:
            index = index.pin(state_id, False)
    world = replace(world, index=index)
    if world.tiers is None:
        return world
    arena, shelf = world.tiers.arena, world.tiers.shelf
    for one in (*arena.index.pinned(), *arena.pending.values()):
        if one.pinned and one.chain == chain:
            arena = arena.pin(one.id, False)
    if shelf is not None:
        for one in tuple(shelf.index.pinned()):
            if one.chain == chain:
                shelf = shelf.pin(one.id, False)
    return replace(world, tiers=replace(world.tiers, arena=arena, shelf=shelf))


def _without_ram(tiers: Tiers) -> tuple[Tiers, int]:
    """Nothing retained stays in the arena but what a restore is reading from a file."""
    gone = {one.id for one in tiers.arena.index if not one.is_live} - tiers.transient
    gone |= {one.id for one in tiers.arena.pending.values() if not one.is_live} - tiers.reading
    gone -= tiers.orphans
    for stored_id in sorted(gone):
        tiers = given_up(tiers, stored_id)
    return tiers, len(gone)


def _without_disk(tiers: Tiers) -> tuple[Tiers, int]:
    """No retained state keeps a file, nor gets the one that is being written."""
    shelf = tiers.shelf
    if shelf is None:
        return tiers, 0
    gone = sorted(one.id for one in shelf.index if not one.is_live)
    for stored_id in gone:
        tiers = without_file(tiers, stored_id)
    assert tiers.shelf is not None
    shelf = tiers.shelf
    for stored_id, one in shelf.pending.items():
        if not one.stored.is_live:
            shelf = shelf.forsake(stored_id)
    return replace(tiers, shelf=shelf), len(gone)
