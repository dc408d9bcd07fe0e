"""Who enters next, from where it resumes, and with which pages and lane; or that it waits."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from ignisd.engine.room import gainable, make_room
from ignisd.engine.types import LaneStart, Phase, Place, Request, Reuse, Tier
from ignisd.engine.volatile import Volatile
from ignisd.engine.world import (
    Sequence,
    World,
    count,
    free_lane,
    notice,
    pages_for,
    standing,
    tally,
    with_sequence,
)
from state.chain import Chain
from state.retained import Kind
from state.retention import Cut, Marks
from state.reuse import Match, Miss, MissReason
from state.spec import PAGE_TOKENS

NO_MARKS = Marks()

Look = Callable[[World, Request], Match | Miss]


def admit_all(
    world: World, now_ms: float, look: Look | None = None
) -> tuple[World, tuple[LaneStart, ...]]:
    """Admit from the queue in order of standing until one must wait for a lane or for pages.

    Nobody overtakes a request that waits for these, or a large one could wait for ever. A request
    that waits for another's prefix holds nobody up. `look` stands for `look_up`, for a caller that
    times it.
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
            seq = replace(seq, looked=(world.index, (look or look_up)(world, seq.request)))
            world = with_sequence(world, seq)
        assert seq.looked is not None
        found = seq.looked[1]
        world = mark_partings(world, seq.request, found)
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


def awaits_leader(world: World, request: Request, found: Match | Miss) -> bool:
    """Whether a prefill under way will publish a state that makes waiting for it worth while.

    Asked anew in every round, so followers wake by themselves when the leader has published, was
    cancelled, or found no slot; the first of them then goes ahead and the others follow it.
    """
    if not (world.limits.reuse and request.reuse):
        return False
    least = found.length + world.limits.single_flight_tokens
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


def mark_partings(world: World, request: Request, found: Match | Miss) -> World:
    """Let prefills under way be cut where a waiting request parts from them.

    Nobody has published anything there, so the index cannot know; but the leader will read these
    tokens anyway, and the request, which now waits for the cut, need not.
    """
    if not (world.limits.reuse and request.reuse and world.slots.num_slots):
        return world
    for seq in world.running:
        if seq.phase is not Phase.PREFILLING or not seq.keeps:
            continue
        position = _parting(request.chain, seq.request.chain)
        before = max((cut.position for cut in seq.cuts if cut.position <= position), default=0)
        gain = position - max(before, found.length)
        if position <= seq.position or gain < world.limits.single_flight_tokens:
            continue
        if seq.request.chain.num_shared(request.chain) < position:
            continue
        cuts = sorted((*seq.cuts, Cut(position, Kind.JUNCTION)), key=lambda cut: cut.position)
        world = with_sequence(world, replace(seq, cuts=tuple(cuts)))
    return world


def _parting(one: Chain, other: Chain) -> int:
    """Where two prompts part, by their digests: whole pages that leave both a token to read."""
    shortest = min(one.num_tokens, other.num_tokens)
    pages = range((shortest - 1) // PAGE_TOKENS)
    shared = bisect_left(pages, True, key=lambda page: one.digests[page] != other.digests[page])
    return shared * PAGE_TOKENS


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
    length = found.length
    world, cuts = _cuts(world, request, found, now_ms)
    world, reuse = _account(world, request, found)
    seq = replace(
        seq,
        phase=Phase.PREFILLING,
        lane=lane,
        looked=None,
        table=(*shared, *new),
        position=length,
        cuts=cuts,
        kept_at=length,
        reuse=reuse,
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
    return with_sequence(world, seq), start


def _cuts(
    world: World, request: Request, found: Match | Miss, now_ms: float
) -> tuple[World, tuple[Cut, ...]]:
    """Where the request's prefill will be cut beyond what it claims; the claim is noted.

    Where it parts from what was seen before, beyond the claim, its own state is cut: the next
    sibling resumes there. What it claims takes the kind that the request would have cut it for, if
    that is higher.
    """
    if not (world.limits.reuse and request.reuse):
        return world, ()
    parts = found.diverged_at is not None and found.lost_tokens > 0
    junctions = (found.matched_tokens,) if parts else ()
    cuts = world.policy.cuts(request.marks, request.prompt_tokens, 0, junctions)
    if isinstance(found, Match) and found.retained.id in world.index:
        index = world.index.touch(found.retained.id, now_ms)
        for cut in cuts:
            if cut.position == found.length:
                index = index.promote(found.retained.id, cut.kind)
        world = replace(world, index=index)
    return world, tuple(cut for cut in cuts if cut.position > found.length)


def _account(world: World, request: Request, found: Match | Miss) -> tuple[World, Reuse]:
    """What the request is told of its reuse, counted: at admission and not before, so that waiting
    counts nothing twice.
    """
    world, volatile = _first_segment(world, request, found)
    reuse = reuse_of(world, found, request.marks)
    reuse = replace(reuse, volatile_at=None if volatile is None else volatile.offset)
    world = count(
        world,
        lookups=1,
        queried_tokens=request.prompt_tokens,
        matched_tokens=found.matched_tokens,
        lost_tokens=found.lost_tokens,
        volatile=volatile is not None,
    )
    if isinstance(found, Miss):
        return tally(world, "misses", found.reason), reuse
    return tally(world, "hits", found.retained.kind), reuse


def reuse_of(world: World, found: Match | Miss, marks: Marks = NO_MARKS) -> Reuse:
    """What a request with these marks reports that resumes there, or why it does not resume."""
    parted = found.diverged_at
    reuse = Reuse(
        cached_tokens=found.length,
        matched_tokens=found.matched_tokens,
        diverged_at=parted,
        segment=None if parted is None else marks.segment_at(parted),
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
    world: World, request: Request, found: Match | Miss
) -> tuple[World, Volatile | None]:
    """Compare the request's system block with those before it."""
    system_end = request.marks.system_end
    if system_end is None or not (world.limits.reuse and request.reuse):
        return world, None
    shared = found.matched_tokens if found.diverged_at is None else found.diverged_at
    segments, volatile = world.first_segments.seen(request.chain, system_end, shared)
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
