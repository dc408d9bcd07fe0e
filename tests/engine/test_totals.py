"""What the tiers are said to hold is what lies there, state by state and byte by byte."""

import random
from collections import Counter

from ignisd.engine.totals import Group, Owner, TierTotals, totals_of
from ignisd.engine.types import Tier
from ignisd.engine.world import World
from state.retained import Retained
from state.tiers.stored import Stored
from tests.engine.below import Tiered
from tests.engine.simulation import Simulation

PAGE, IMAGE = 1000, 7


def told(world: World) -> dict[Tier, TierTotals]:
    """The totals by tier."""
    return {one.tier: one for one in totals_of(world, PAGE, IMAGE)}


def check_kv_ram(world: World, said: TierTotals) -> None:
    """Every cell is counted once, by walking all of them."""
    assert world.tiers is not None
    arena = world.tiers.arena
    states: dict[int, Stored] = {one.id: one for one in arena.index}
    landed = set(states)
    states |= arena.pending
    owners: dict[int, set[tuple[Group, Owner]]] = {}
    for id, one in states.items():
        place = arena.located(id)
        for cell in place.image_cells:
            owner = Owner.LIVE if one.is_live else Owner.MOVING
            owner = Owner.RETAINED if id in landed and not one.is_live else owner
            owners.setdefault(cell, set()).add((Group.LINEAR, owner))
        for page, cell in enumerate(place.page_cells):
            fresh = page in place.missing and not one.is_live
            owner = Owner.LIVE if one.is_live else Owner.MOVING if fresh else Owner.RETAINED
            owners.setdefault(cell, set()).add((Group.FULL, owner))
    counted: Counter[tuple[Group, Owner]] = Counter()
    for whose in owners.values():
        live = [one for one in whose if one[1] is Owner.LIVE]
        kept = [one for one in whose if one[1] is Owner.RETAINED]
        counted[(live or kept or list(whose))[0]] += 1
    counted[Group.OTHER, Owner.FREE] = arena.num_cells - len(owners)
    found = {key: size // arena.cell_bytes for key, size in said.num_bytes.items() if size}
    assert found == {key: count for key, count in counted.items() if count}


def check_kv_disk(world: World, said: TierTotals) -> None:
    assert world.tiers is not None
    shelf = world.tiers.shelf
    assert shelf is not None
    sizes: Counter[Owner] = Counter()
    for one in shelf.index:
        sizes[Owner.LIVE if one.is_live else Owner.RETAINED] += shelf.file_bytes(one)
    for owner in (Owner.LIVE, Owner.RETAINED):
        assert said.bytes_of(owner) == sizes[owner]
    assert said.key_bytes == sum(map(key_bytes, shelf.index))
    known = said.bytes_of(*Owner) - said.bytes_of(Owner.FREE)
    assert known == shelf.used_bytes
    assert all(size >= 0 for size in said.num_bytes.values()), said.num_bytes


def key_bytes(one: Retained | Stored) -> int:
    """Four bytes a token, sixteen a digest."""
    return 4 * one.chain.num_tokens + 16 * len(one.chain.digests)


def check(world: World) -> None:
    """The totals of a world agree with a walk through everything."""
    found = told(world)
    device = found[Tier.DEVICE]
    assert device.num_states == len(world.index)
    assert device.tokens == sum(one.length for one in world.index)
    assert device.ceiling_bytes == (
        (world.pages.num_pages - 1) * PAGE + world.slots.num_slots * IMAGE
    )
    assert device.bytes_of(*Owner) == device.ceiling_bytes
    assert all(size >= 0 for size in device.num_bytes.values())
    assert device.key_bytes == sum(map(key_bytes, world.index))
    if world.tiers is None:
        assert found[Tier.KV_RAM].ceiling_bytes == found[Tier.KV_DISK].ceiling_bytes == 0
        return
    ram, arena = found[Tier.KV_RAM], world.tiers.arena
    assert ram.num_states == sum(not one.is_live for one in arena.index)
    assert ram.num_live == sum(one.is_live for one in arena.index)
    assert ram.bytes_of(*Owner) == ram.ceiling_bytes == arena.num_cells * arena.cell_bytes
    assert ram.key_bytes == sum(map(key_bytes, (*arena.index, *arena.pending.values())))
    check_kv_ram(world, ram)
    if world.tiers.shelf is not None:
        check_kv_disk(world, found[Tier.KV_DISK])


class Watched(Simulation):
    """Random traffic whose totals are checked after many rounds."""

    def _check_disk(self) -> None:
        super()._check_disk()
        if self.watching.random() < 0.1:
            check(self.world)

    watching = random.Random(5)


def test_the_totals_agree_with_what_lies_there_in_random_traffic() -> None:
    for seed in range(40):
        Watched(seed).run()


def test_a_state_that_lies_in_no_tier_counts_nowhere() -> None:
    found = told(Tiered(disk_bytes=1 << 20).world)
    assert [one.num_states for one in found.values()] == [0, 0, 0]
    assert [one.bytes_of(Owner.LIVE, Owner.RETAINED) for one in found.values()] == [0, 0, 0]
