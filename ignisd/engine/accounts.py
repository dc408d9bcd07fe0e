"""What a request is told of its reuse, and where its own prefill is cut, once it resumes."""

from dataclasses import replace

from ignisd.engine.types import Place, Request, Reuse, Tier
from ignisd.engine.volatile import Volatile
from ignisd.engine.world import World, count, notice, tally
from state.retention import Cut
from state.reuse import Match, Miss
from state.tiers.stored import Stored


def claimed(world: World, request: Request, found: Match | Miss, now_ms: float) -> World:
    """The claim of a state on the device is noted.

    What is claimed takes the kind that the request would have cut it for, if that is higher.
    """
    if not isinstance(found, Match) or found.retained.id not in world.index:
        return world
    index = world.index.touch(found.retained.id, now_ms)
    for cut in cuts_of(world, request, found):
        if cut.position == found.length:
            index = index.promote(found.retained.id, cut.kind)
    return replace(world, index=index)


def cuts_of(world: World, request: Request, found: Match | Miss) -> tuple[Cut, ...]:
    """Where the whole prompt is cut.

    Where it parts from what was seen before, beyond what it claims, its own state is cut: the next
    sibling resumes there.
    """
    if not (world.limits.reuse and request.reuse):
        return ()
    parts = found.diverged_at is not None and found.lost_tokens > 0
    junctions = (found.matched_tokens,) if parts else ()
    return world.policy.cuts(request.marks, request.prompt_tokens, 0, junctions)


def account(
    world: World,
    request: Request,
    found: Match | Miss,
    restored: tuple[Stored, Tier] | None = None,
) -> tuple[World, Reuse]:
    """What the request is told of its reuse, counted: when the claim or the restore has succeeded
    and not before, so that waiting counts nothing twice.

    Args:
        world: before.
        request: who resumes, or does not.
        found: what the device had for it.
        restored: what a lower tier had beyond that.
    """
    reuse = reuse_of(world, request, found, restored)
    shared = reuse.matched_tokens if reuse.diverged_at is None else reuse.diverged_at
    world, volatile = _first_segment(world, request, shared)
    reuse = replace(reuse, volatile_at=None if volatile is None else volatile.offset)
    world = count(
        world,
        lookups=1,
        queried_tokens=request.prompt_tokens,
        matched_tokens=reuse.matched_tokens,
        lost_tokens=reuse.lost_tokens,
        volatile=volatile is not None,
    )
    if reuse.kind is not None:
        return tally(world, "hits", reuse.kind), reuse
    assert isinstance(found, Miss)
    return tally(world, "misses", found.reason), reuse


def reuse_of(
    world: World,
    request: Request,
    found: Match | Miss,
    restored: tuple[Stored, Tier] | None = None,
) -> Reuse:
    """What a request reports that resumes there, or why it does not resume."""
    parted = found.diverged_at
    reuse = Reuse(
        cached_tokens=found.length,
        matched_tokens=found.matched_tokens,
        diverged_at=parted,
        segment=None if parted is None else request.marks.segment_at(parted),
    )
    if restored is not None:
        stored, tier = restored
        length, matched = stored.length, max(found.matched_tokens, stored.length)
        if parted is not None and parted < length:
            # It parts there from what the device has, and not from what is restored.
            reuse = replace(reuse, diverged_at=None, segment=None)
        return replace(
            reuse,
            cached_tokens=length,
            matched_tokens=matched,
            kind=stored.kind,
            tier=tier,
            shortfall=world.index.shortfall(request.chain, request.prompt_tokens, length, matched),
        )
    if isinstance(found, Miss):
        return replace(reuse, miss=found)
    held = found.retained
    return replace(
        reuse,
        kind=held.kind,
        tier=Tier.DEVICE,
        place=Place.HOST if world.slots.is_host(held.slot) else Place.DEVICE,
        shortfall=found.shortfall,
    )


def _first_segment(
    world: World, request: Request, shared_tokens: int
) -> tuple[World, Volatile | None]:
    """Compare the request's system block with those before it."""
    system_end = request.marks.system_end
    if system_end is None or not (world.limits.reuse and request.reuse):
        return world, None
    segments, volatile = world.first_segments.seen(request.chain, system_end, shared_tokens)
    world = replace(world, first_segments=segments)
    if volatile is not None and volatile.warn:
        world = notice(
            world,
            "volatile system prompt",
            id=request.name,
            offset=volatile.offset,
            system_tokens=system_end,
            in_a_row=volatile.in_a_row,
        )
    return world, volatile
