"""GET /v1/reuse: what is kept in each tier, the best first, and what all of it adds up to.

No token and no text of a prompt is told, and of evicted requests only how many there are. Only the
states that are told are looked at one by one below the device; what they add up to is kept.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from ignisd.engine.room import victims
from ignisd.engine.tiers import shown_floor
from ignisd.engine.totals import Owner, TierTotals, totals_of
from ignisd.engine.types import Place, Tier
from ignisd.engine.world import World
from ignisd.http.occupancy import groups_told
from ignisd.http.serving import Facts
from state.retained import Kind, Rank, Retained
from state.tiers.index import TierIndex
from state.tiers.stored import Stored, standing_of

Told = dict[str, object]


def listing(world: World, facts: Facts, now_ms: float, limit: int, tier: Tier | None) -> Told:
    """The body of the answer.

    Args:
        world: at one moment.
        facts: sizes of the two halves of a state.
        now_ms: the time, on the engine's clock.
        limit: most states that are told one by one.
        tier: whose states these are; None is all, from the device down.
    """
    states = list(islice(_states(world, facts, now_ms, tier), limit))
    totals = totals_of(world, facts.page_bytes, facts.image_bytes)
    there = _there(world)
    counted = [one for one in totals if tier in (None, one.tier)]
    return {
        "object": "reuse",
        "on": world.limits.reuse,
        "fingerprint": str(world.index.fingerprint),
        "states": states,
        # What is about to be given back counts in a tier and is not told.
        "omitted": max(sum(one.num_states for one in counted) - len(states), 0),
        "live": {
            one.tier.value: {"sequences": one.num_live, "bytes": one.bytes_of(Owner.LIVE)}
            for one in totals[1:]
            if one.tier in there
        },
        "totals": _totals(world, facts, totals, there),
    }


def state_below(world: World, tier: Tier, stored: Stored, now_ms: float) -> Told:
    """A retained state of a lower tier."""
    tiers = world.tiers
    assert tiers is not None, f"state {stored.id} lies in {tier}, which is not there"
    if tier is Tier.KV_RAM:
        arena = tiers.arena
        num_bytes = (arena.image_cells + stored.num_pages) * arena.cell_bytes
        own_bytes = arena.num_sole(stored.id) * arena.cell_bytes
    else:
        assert tiers.shelf is not None, f"state {stored.id} lies in no file"
        num_bytes = own_bytes = tiers.shelf.file_bytes(stored)
    published = stored.published_ms
    return {
        "id": stored.id,
        "kind": stored.kind,
        "tokens": stored.length,
        "tier": tier,
        "slot": None,
        "bytes": num_bytes,
        "own_bytes": own_bytes,
        "rank": standing_of(stored, now_ms, world.limits.ttl_ms),
        "pinned": stored.pinned,
        "superseded": False,
        "class": stored.cls,
        "conversation": None,
        "hits": stored.hits,
        "age_s": None if published is None else _seconds(now_ms - published),
        "idle_s": _seconds(now_ms - stored.used_ms),
    }


def state_on_device(world: World, held: Retained, rank: Rank, facts: Facts, now_ms: float) -> Told:
    """A retained state of the device."""
    return {
        "id": held.id,
        "kind": held.kind,
        "tokens": held.length,
        "tier": Tier.DEVICE,
        "slot": Place.HOST if world.slots.is_host(held.slot) else Place.DEVICE,
        "bytes": len(held.table) * facts.page_bytes + facts.image_bytes,
        "own_bytes": world.pages.num_sole(held.table) * facts.page_bytes + facts.image_bytes,
        "rank": rank.name.lower(),
        "pinned": held.pinned,
        "superseded": held.superseded,
        "class": held.cls,
        "conversation": held.conversation,
        "hits": held.hits,
        "age_s": _seconds(now_ms - held.published_ms),
        "idle_s": _seconds(now_ms - held.used_ms),
    }


def pins_of(world: World, tier: Tier) -> Told:
    """How many states are pinned in a tier, what they take, and what they may."""
    if tier is Tier.DEVICE:
        pinned = [world.index.entries[state_id].table for state_id in world.index.pinned]
        return {
            "states": len(pinned),
            "pages": len({page for table in pinned for page in table}),
            "most_states": world.slots.num_slots // 2,
            "most_pages": (world.pages.num_pages - 1) // 2,
        }
    tiers = world.tiers
    assert tiers is not None
    if tier is Tier.KV_RAM:
        arena = tiers.arena
        return {
            "states": arena.index.num_pinned,
            "bytes": arena.num_pinned_cells() * arena.cell_bytes,
            "most_bytes": arena.num_cells // 2 * arena.cell_bytes,
        }
    shelf = tiers.shelf
    assert shelf is not None
    return {
        "states": shelf.index.num_pinned,
        "bytes": shelf.pinned_bytes,
        "most_bytes": shelf.ceiling_bytes // 2,
    }


def listed_pages(world: World) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    """The pages that retained states of the device list, each once."""
    tables = [np.asarray(held.table, np.intp) for held in world.index]
    return np.unique(np.concatenate(tables)) if tables else np.empty(0, np.intp)


def _states(world: World, facts: Facts, now_ms: float, tier: Tier | None) -> Iterator[Told]:
    """The states of a tier, or of all from the device down, the best of each first."""
    if tier in (None, Tier.DEVICE):
        for rank, held in reversed(list(victims(world, now_ms))):
            yield state_on_device(world, held, rank, facts, now_ms)
    tiers = world.tiers
    if tiers is None:
        return
    indexes: list[tuple[Tier, TierIndex]] = [(Tier.KV_RAM, tiers.arena.index)]
    if tiers.shelf is not None:
        indexes.append((Tier.KV_DISK, tiers.shelf.index))
    for below, index in indexes:
        if tier not in (None, below):
            continue
        passing = tiers.transient if below is Tier.KV_RAM else frozenset()
        for stored in index.best(now_ms, world.limits.ttl_ms):
            if stored.id not in tiers.orphans and stored.id not in passing:
                yield state_below(world, below, stored, now_ms)


def _there(world: World) -> tuple[Tier, ...]:
    """The tiers that this process has."""
    if world.tiers is None:
        return (Tier.DEVICE,)
    return tuple(Tier) if world.tiers.shelf is not None else (Tier.DEVICE, Tier.KV_RAM)


def _totals(
    world: World, facts: Facts, totals: tuple[TierTotals, ...], there: tuple[Tier, ...]
) -> Told:
    """Sums over all tiers and by tier; a state that lies in two tiers counts in both."""
    pages = listed_pages(world).size
    kinds = {kind: sum(one.kinds[kind] for one in totals) for kind in sorted(Kind)}
    return {
        "states": sum(one.num_states for one in totals),
        "tokens": sum(one.tokens for one in totals),
        "by_kind": {kind.value: times for kind, times in kinds.items() if times},
        "tiers": {
            one.tier.value: _tier(world, facts, one, pages) for one in totals if one.tier in there
        },
        "groups": groups_told(world, facts, totals, pages),
        "pages": {"total": world.pages.num_pages - 1, "free": world.pages.num_free},
        "slots": _slots(world),
    }


def _tier(world: World, facts: Facts, said: TierTotals, pages: int) -> Told:
    told: Told = {
        "states": said.num_states,
        "tokens": said.tokens,
        "by_kind": {kind.value: times for kind, times in said.kinds.items() if times},
        "ceiling_bytes": said.ceiling_bytes,
        "free_bytes": said.bytes_of(Owner.FREE),
        "key_bytes": said.key_bytes,
        "arriving": said.num_moving,
        "pinned": pins_of(world, said.tier),
    }
    if said.tier is Tier.DEVICE:
        num_bytes = pages * facts.page_bytes + said.num_states * facts.image_bytes
        return {**told, "pages": pages, "bytes": num_bytes}
    tiers = world.tiers
    assert tiers is not None
    told["bytes"] = said.bytes_of(Owner.RETAINED)
    if said.tier is Tier.KV_RAM:
        return {**told, "floor_tokens": shown_floor(tiers.limits.ram_floor_tokens)}
    assert tiers.shelf is not None
    writer = tiers.shelf.writer
    return {
        **told,
        "floor_tokens": shown_floor(tiers.limits.disk_floor_tokens),
        "unfinished_bytes": said.bytes_of(Owner.MOVING),
        "foreign_bytes": said.bytes_of(Owner.FOREIGN),
        "writer": {"condition": writer.condition, "why": writer.why or None},
    }


def _slots(world: World) -> Told:
    slots = world.slots
    total = {Place.DEVICE: slots.num_device, Place.HOST: slots.num_slots - slots.num_device}
    used = dict.fromkeys(Place, 0)
    for slot, _ in slots.owned():
        used[Place.HOST if slots.is_host(slot) else Place.DEVICE] += 1
    by_place = {place.value: {"total": total[place], "used": used[place]} for place in Place}
    return {"total": slots.num_slots, "used": slots.num_used, **by_place}


def _seconds(ms: float) -> float:
    return round(max(ms, 0.0) / 1000, 3)
