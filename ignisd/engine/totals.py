"""What each tier holds, in states and bytes: cheap enough to be asked at every scrape.

Pages that several states share count once, those of a running or evicted request as its own. What
a tier's owners take together is its ceiling.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from ignisd.engine.tiers import Tiers
from ignisd.engine.types import Tier
from ignisd.engine.world import World
from state.retained import Kind
from state.tiers.arena import Arena
from state.tiers.shelf import Shelf
from state.tiers.tally import Tally


class Group(enum.StrEnum):
    """What bytes are for."""

    FULL = "full"  # keys and values of full attention, in pages
    LINEAR = "linear"  # images of the state of linear attention
    OTHER = "other"  # tokens and headers of files; and what is not yet for anything


class Owner(enum.StrEnum):
    """Whose bytes are."""

    LIVE = "live"  # requests that run, or that were evicted and wait
    RETAINED = "retained"
    MOVING = "moving"  # on their way to the tier, or waiting to be given back
    FOREIGN = "foreign"  # files that this process cannot use
    FREE = "free"


Bytes = Mapping[tuple[Group, Owner], int]


@dataclass(frozen=True, slots=True)
class TierTotals:
    """What a tier holds.

    Args:
        tier: which one.
        kinds: retained states by kind; one that lies in two tiers counts in both.
        tokens: the sum of their lengths.
        num_live: evicted sequences there.
        num_moving: states on their way there.
        num_pinned: pinned states.
        num_bytes: by what they are for and whose they are.
        ceiling_bytes: most that it can hold; 0 where there is no such tier.
        key_bytes: host memory beside it that holds the tokens and digests of its states.
    """

    tier: Tier
    kinds: Mapping[Kind, int]
    tokens: int
    num_live: int
    num_moving: int
    num_pinned: int
    num_bytes: Bytes
    ceiling_bytes: int
    key_bytes: int

    @property
    def num_states(self) -> int:
        """Retained states of all kinds."""
        return sum(self.kinds.values())

    def bytes_of(self, *owners: Owner) -> int:
        """Bytes of some owners, whatever they are for."""
        return sum(size for (_, owner), size in self.num_bytes.items() if owner in owners)


def totals_of(world: World, page_bytes: int, image_bytes: int) -> tuple[TierTotals, ...]:
    """Every tier from the device down, also those that are not there.

    Args:
        world: as it stands.
        page_bytes, image_bytes: sizes of the two halves of a state on the device.
    """
    tiers = world.tiers
    return (
        _device(world, page_bytes, image_bytes),
        _nothing(Tier.KV_RAM) if tiers is None else _kv_ram(tiers),
        _nothing(Tier.KV_DISK)
        if tiers is None or tiers.shelf is None
        else _kv_disk(tiers.shelf, tiers.arena.cell_bytes),
    )


def pool_pages(world: World) -> Mapping[Owner, int]:
    """Pages of the pool by who holds them; one that both hold is the request's.

    Pages of captures under way are retained already.
    """
    live = len({page for seq in world.sequences.values() for page in seq.table})
    free = world.pages.num_free
    retained = world.pages.num_pages - 1 - free - live
    return {Owner.LIVE: live, Owner.RETAINED: retained, Owner.FREE: free}


def _nothing(tier: Tier) -> TierTotals:
    return TierTotals(tier, Tally().kinds, 0, 0, 0, 0, {(Group.OTHER, Owner.FREE): 0}, 0, 0)


def _device(world: World, page_bytes: int, image_bytes: int) -> TierTotals:
    kinds, tokens = dict.fromkeys(Kind, 0), 0
    for held in world.index:
        kinds[held.kind] += 1
        tokens += held.length
    num_used, num_free = world.slots.num_used, world.slots.num_free
    num_bytes = {
        (Group.FULL, owner): count * page_bytes for owner, count in pool_pages(world).items()
    }
    num_bytes[Group.LINEAR, Owner.RETAINED] = num_used * image_bytes
    num_bytes[Group.LINEAR, Owner.FREE] = num_free * image_bytes
    return TierTotals(
        tier=Tier.DEVICE,
        kinds=kinds,
        tokens=tokens,
        num_live=0,
        num_moving=len(world.pending) + len(world.interrupted),
        num_pinned=len(world.index.pinned),
        num_bytes=num_bytes,
        ceiling_bytes=sum(num_bytes.values()),
        key_bytes=sum(held.chain.num_bytes for held in world.index),
    )


def _kv_ram(tiers: Tiers) -> TierTotals:
    arena, tally = tiers.arena, tiers.arena.index.tally
    pending = [one for one in arena.pending.values() if not one.is_live]
    return TierTotals(
        tier=Tier.KV_RAM,
        kinds=tally.kinds,
        tokens=tally.tokens,
        num_live=tally.num_live,
        num_moving=len(arena.pending),
        num_pinned=arena.index.num_pinned,
        num_bytes=_cells(arena, [one.id for one in pending]),
        ceiling_bytes=arena.num_cells * arena.cell_bytes,
        key_bytes=tally.key_bytes + sum(one.chain.num_bytes for one in arena.pending.values()),
    )


def _cells(arena: Arena, coming: list[int]) -> Bytes:
    """The cells of kv_ram in bytes; `coming` are the retained states that have not landed."""
    tally, images = arena.index.tally, arena.image_cells
    num_live = tally.num_live + len(arena.pending) - len(coming)
    live = arena.num_live_cells()
    moving = sum(len(arena.located(id).missing) for id in coming)
    taken = live + moving + (tally.num_retained + len(coming)) * images
    used = arena.num_cells - arena.num_free
    cells = {
        (Group.FULL, Owner.LIVE): live - num_live * images,
        (Group.FULL, Owner.RETAINED): used - taken,
        (Group.FULL, Owner.MOVING): moving,
        (Group.LINEAR, Owner.LIVE): num_live * images,
        (Group.LINEAR, Owner.RETAINED): tally.num_retained * images,
        (Group.LINEAR, Owner.MOVING): len(coming) * images,
        (Group.OTHER, Owner.FREE): arena.num_free,
    }
    return {key: count * arena.cell_bytes for key, count in cells.items()}


def _kv_disk(shelf: Shelf, cell_bytes: int) -> TierTotals:
    tally = shelf.index.tally
    image_bytes = shelf.layout.image_cells * cell_bytes
    unfinished, foreign, live = shelf.unfinished_bytes, shelf.foreign_bytes, shelf.live_bytes
    retained = shelf.used_bytes - unfinished - foreign - live
    full = {Owner.LIVE: tally.live_pages, Owner.RETAINED: tally.pages}
    images = {Owner.LIVE: tally.num_live, Owner.RETAINED: tally.num_retained}
    num_bytes = {(Group.FULL, owner): count * cell_bytes for owner, count in full.items()}
    num_bytes |= {(Group.LINEAR, owner): count * image_bytes for owner, count in images.items()}
    for owner, whole in ((Owner.LIVE, live), (Owner.RETAINED, retained)):
        cells = num_bytes[Group.FULL, owner] + num_bytes[Group.LINEAR, owner]
        num_bytes[Group.OTHER, owner] = whole - cells
    num_bytes[Group.OTHER, Owner.MOVING] = unfinished
    num_bytes[Group.OTHER, Owner.FOREIGN] = foreign
    num_bytes[Group.OTHER, Owner.FREE] = max(shelf.ceiling_bytes - shelf.used_bytes, 0)
    return TierTotals(
        tier=Tier.KV_DISK,
        kinds=tally.kinds,
        tokens=tally.tokens,
        num_live=tally.num_live,
        num_moving=len(shelf.pending),
        num_pinned=shelf.index.num_pinned,
        num_bytes=num_bytes,
        ceiling_bytes=shelf.ceiling_bytes,
        key_bytes=tally.key_bytes,
    )
