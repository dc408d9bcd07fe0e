"""Who enters next, from where it resumes, and with which pages and lane; or that it waits."""

from dataclasses import replace

from ignisd.engine.room import gainable, make_room
from ignisd.engine.types import LaneStart, Phase, Place, Request, Reuse, Tier
from ignisd.engine.world import (
    Sequence,
    World,
    count,
    free_lane,
    pages_for,
    standing,
    tally,
    with_sequence,
)
from state.chain import Chain
from state.retention import Cut
from state.reuse import Match, Miss, MissReason


def admit_all(world: World, now_ms: float) -> tuple[World, tuple[LaneStart, ...]]:
    """Admit from the queue in order of standing until one must wait for a lane or for pages.

    Nobody overtakes a request that waits for these, or a large one could wait for ever. A request
    that waits for another's prefix holds nobody up.
    """
    starts: list[LaneStart] = []
    waiting = sorted(
        (world.sequences[key] for key in world.queue),
        key=lambda seq: standing(seq, world.limits, now_ms),
    )
    for seq in waiting:
        lane = free_lane(world)
        if lane is None:
            break
        if seq.looked is None or seq.looked[0] is not world.index:
            seq = replace(seq, looked=(world.index, look_up(world, seq.request)))
            world = with_sequence(world, seq)
        assert seq.looked is not None
        found = seq.looked[1]
        if awaits_leader(world, seq.request, found):
            continue
        admitted = _admit(world, seq, found, lane, now_ms)
        if admitted is None:
            break
        world, start = admitted
        starts.append(start)
    return world, tuple(starts)


def look_up(world: World, request: Request) -> Match | Miss:
    """The longest retained state to resume from, or why there is none."""
    if not (world.limits.reuse and request.reuse):
        return Miss(MissReason.REUSE_OFF)
    return world.index.longest_match(request.chain, request.prompt_tokens)


def _length(found: Match | Miss) -> int:
    return found.length if isinstance(found, Match) else 0


def awaits_leader(world: World, request: Request, found: Match | Miss) -> bool:
    """Whether a prefill under way will publish a state that makes waiting for it worth while.

    Asked anew in every round, so followers wake by themselves when the leader has published, was
    cancelled, or found no slot; the first of them then goes ahead and the others follow it.
    """
    if not (world.limits.reuse and request.reuse):
        return False
    least = _length(found) + world.limits.single_flight_tokens
    for one in world.pending:
        if _shares(request, one.chain, one.length, least):
            return True
    return any(
        _shares(request, seq.request.chain, cut.position, least)
        for seq in world.running
        if seq.phase is Phase.PREFILLING
        for cut in reversed(seq.cuts)
    )


def _shares(request: Request, chain: Chain, length: int, least: int) -> bool:
    """Whether the first `length` tokens of a chain would serve a request, and well enough."""
    return (
        least <= length < request.prompt_tokens
        and chain.digest_at(length) == request.chain.digest_at(length)
        and chain.num_shared(request.chain) >= length
    )


def entry_pages(world: World, seq: Sequence) -> int:
    """Pages that a request is charged for when it enters: its prompt and one step of answer."""
    prompt = seq.request.prompt_tokens
    return pages_for(min(seq.total_tokens, prompt + world.limits.step_tokens))


def headroom_pages(world: World, seq: Sequence, now_ms: float) -> int:
    """Pages to leave for running sequences that rank above; never more than they may still take.

    Nothing when none ranks above, so that no request waits for ever.
    """
    limits = world.limits
    mine = standing(seq, limits, now_ms)
    wanted = sum(
        max(pages_for(other.total_tokens) - len(other.table), 0)
        for other in world.running
        if standing(other, limits, now_ms) < mine
    )
    return min(wanted, pages_for(limits.headroom_steps * limits.step_tokens))


def _admit(
    world: World, seq: Sequence, found: Match | Miss, lane: int, now_ms: float
) -> tuple[World, LaneStart] | None:
    """The world with the request in a lane, or None when its pages cannot be had.

    The pages of the match are shared first, so that making room cannot free them. What does not
    fit is dropped as a value: nothing has to be given back.
    """
    request = seq.request
    shared = found.retained.table if isinstance(found, Match) else ()
    num_new = entry_pages(world, seq) - len(shared)
    headroom = headroom_pages(world, seq, now_ms)
    trial = replace(world, pages=world.pages.share(shared))
    if trial.pages.num_free < num_new + headroom and gainable(trial) < num_new + headroom:
        return None
    roomy = make_room(trial, num_new, now_ms)
    if roomy is None:
        return None
    world = roomy
    pages, new = world.pages.take(num_new)
    length = _length(found)
    cuts: tuple[Cut, ...] = ()
    if world.limits.reuse and request.reuse:
        cuts = world.policy.cuts(request.marks, request.prompt_tokens, length)
    if isinstance(found, Match) and found.retained.id in world.index:
        world = replace(world, index=world.index.touch(found.retained.id, now_ms))
    seq = replace(
        seq,
        phase=Phase.PREFILLING,
        lane=lane,
        looked=None,
        table=(*shared, *new),
        position=length,
        cuts=cuts,
        kept_at=length,
        reuse=_reuse(world, found),
        parent_id=found.retained.id if isinstance(found, Match) else None,
        start_round=world.next_round,
        timings=replace(seq.timings, admitted_ms=now_ms),
    )
    world = replace(
        world, pages=pages, queue=tuple(key for key in world.queue if key != request.id)
    )
    start = LaneStart(
        lane=lane,
        slot=found.retained.slot if isinstance(found, Match) else None,
        position=length,
        sampling=request.sampling,
        prompt=request.chain.tokens,
    )
    return _counted(with_sequence(world, seq), seq, found), start


def _reuse(world: World, found: Match | Miss) -> Reuse:
    if isinstance(found, Miss):
        return Reuse(matched_tokens=found.matched_tokens, miss=found)
    held = found.retained
    return Reuse(
        cached_tokens=found.length,
        matched_tokens=found.matched_tokens,
        kind=held.kind,
        tier=Tier.DEVICE,
        place=Place.HOST if world.slots.is_host(held.slot) else Place.DEVICE,
    )


def _counted(world: World, seq: Sequence, found: Match | Miss) -> World:
    """Count a lookup, at admission and not before, so that waiting counts nothing twice."""
    world = count(
        world,
        lookups=1,
        queried_tokens=seq.request.prompt_tokens,
        matched_tokens=seq.reuse.matched_tokens,
    )
    if isinstance(found, Miss):
        return tally(world, "misses", found.reason)
    return tally(world, "hits", found.retained.kind)
