"""POST /v1/reuse/explain: what a prompt would resume from, in every tier, and why not from more."""

from collections.abc import Iterator

from ignisd.engine.accounts import cuts_of, reuse_of
from ignisd.engine.admission import look_up
from ignisd.engine.restoring import brought_up, longest_in, look_below
from ignisd.engine.tiers import shown_floor
from ignisd.engine.types import Request, Reuse, Tier
from ignisd.engine.world import Below, World
from ignisd.http.listing import Told
from ignisd.http.reuse import reuse_object
from state.nearest import helpful_interval, nearest
from state.reuse import Match, Miss, MissReason

_HELP: dict[MissReason, tuple[str, str | None]] = {
    MissReason.REUSE_OFF: ("reuse was switched off", "--reuse-prompt on, and no reuse: false"),
    MissReason.TOO_SHORT: ("a prompt of more than one page of 64 tokens", None),
    MissReason.NO_MATCH: ("a prompt that begins like an earlier one", None),
    MissReason.DIVERGED: ("the same beginning; see diverged_at", None),
    MissReason.STATE_MISSING: (
        "a state closer to where the prompt parts from what was kept",
        "--reuse-retention-interval",
    ),
    MissReason.EVICTED: (
        "more room: the state was kept once",
        "--reuse-retained-host, --reuse-kv-host-pool-bytes, --kv-disk-bytes, or a pin",
    ),
    MissReason.NO_SLOT: ("more slots: none was left for the state", "--reuse-retained-host"),
    MissReason.SALT: ("the salt or the key of an earlier prompt", "cache_salt, --reuse-scope"),
}
"""What would have helped, and the flag or field that does it."""

_FLOORS = {Tier.KV_RAM: "--reuse-kv-ram-floor", Tier.KV_DISK: "--kv-disk-floor"}


def explanation(world: World, asked: Request, model: str, now_ms: float) -> Told:
    """What a request would be told of its reuse if it came now, and what it would leave."""
    device = look_up(world, asked)
    found, below = look_below(world, asked, device)
    restored = None if below is None else (below.stored, below.tier)
    reuse = reuse_of(world, asked, found, restored)
    length = reuse.cached_tokens
    if restored is None:
        why = found.shortfall if isinstance(found, Match) else found.reason
    else:
        why = reuse.shortfall
    tiers = _tiers(world, asked, device)
    return {
        "object": "reuse.explanation",
        "model": model,
        "prompt_tokens": asked.prompt_tokens,
        "recomputed_tokens": asked.prompt_tokens - length,
        "ignis_reuse": reuse_object(reuse),
        "state": _resumed(found, below),
        "nearest": _nearest(world, asked),
        "why_not_more": why,
        "lost_tokens": reuse.lost_tokens,
        "tiers": tiers,
        "restore": None if below is None else _restore(world, below, now_ms),
        "would_have_helped": list(_helpful(why, reuse, tiers)),
        "would_keep": [
            {"tokens": cut.position, "kind": cut.kind}
            for cut in cuts_of(world, asked, found)
            if cut.position > length
        ],
    }


def _resumed(found: Match | Miss, below: Below | None) -> int | None:
    if below is not None:
        return below.stored.id
    return found.retained.id if isinstance(found, Match) else None


def _tiers(world: World, asked: Request, device: Match | Miss) -> dict[str, Told]:
    """The longest state of each tier that the prompt continues, whether or not it would be used."""
    held = device.retained.id if isinstance(device, Match) else None
    told: dict[str, Told] = {Tier.DEVICE.value: {"tokens": device.length, "state": held}}
    tiers = world.tiers
    if tiers is None or not (world.limits.reuse and asked.reuse):
        return told
    limits = tiers.limits
    indexes = [(Tier.KV_RAM, tiers.arena.index, limits.ram_floor_tokens)]
    if tiers.shelf is not None:
        indexes.append((Tier.KV_DISK, tiers.shelf.index, limits.disk_floor_tokens))
    for tier, index, floor_tokens in indexes:
        stored = longest_in(tiers, index, asked)
        told[tier.value] = {
            "tokens": 0 if stored is None else stored.length,
            "state": None if stored is None else stored.id,
            "floor_tokens": shown_floor(floor_tokens),
        }
    return told


def _restore(world: World, below: Below, now_ms: float) -> Told:
    """What is copied up, and whether kv_ram has room for what lies in a file."""
    tiers = world.tiers
    assert tiers is not None
    num_cells = tiers.arena.image_cells + below.stored.num_pages
    return {
        "tier": below.tier,
        "tokens": below.stored.length,
        "bytes": num_cells * tiers.arena.cell_bytes,
        "has_room": brought_up(world, below.stored, now_ms) is not None,
    }


def _nearest(world: World, asked: Request) -> Told | None:
    """The state of the device that shares most with the prompt, resumable from or not."""
    found = nearest(world.index, asked.chain) if world.limits.reuse and asked.reuse else None
    if found is None:
        return None
    held, shared = found
    return {
        "state": held.id,
        "kind": held.kind,
        "tokens": held.length,
        "shared_tokens": shared,
        "groups": sorted(held.groups),
    }


def _helpful(why: MissReason | None, reuse: Reuse, tiers: dict[str, Told]) -> Iterator[Told]:
    """What would have saved more, the flag for it, and how many tokens it would have saved."""
    length = reuse.cached_tokens
    helped = None if why is None else _HELP.get(why)
    if helped is not None:
        what, flag = helped
        finer = helpful_interval(length, reuse.matched_tokens)
        if why is MissReason.STATE_MISSING and finer is not None:
            interval, point = finer
            flag = f"{flag} {interval}"
            yield {"what": what, "flag": flag, "tokens": point - length}
        else:
            yield {"what": what, "flag": flag, "tokens": None}
    for tier, floor_flag in _FLOORS.items():
        tokens = tiers.get(tier.value, {}).get("tokens", 0)
        assert isinstance(tokens, int), f"{tokens} tokens in {tier}"
        if tokens > length:
            what = f"a lower floor: {tier} has {tokens - length} tokens more"
            yield {"what": what, "flag": floor_flag, "tokens": tokens - length}
