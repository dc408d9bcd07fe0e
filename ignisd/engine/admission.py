"""Who enters next, from where it resumes, and with which pages and lane; or that it waits."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from ignisd.engine.accounts import account, claimed, cuts_of
from ignisd.engine.eviction import compute_anew, evict_for_entry
from ignisd.engine.restoring import brought_up, look_below
from ignisd.engine.room import gainable, make_room
from ignisd.engine.types import LaneStart, Phase, Request
from ignisd.engine.world import (
    Below,
    Look,
    Sequence,
    World,
    aged,
    free_lane,
    pages_for,
    standing,
    with_sequence,
)
from state.chain import Chain
from state.retained import Kind
from state.retention import Cut
from state.reuse import Match, Miss, MissReason
from state.spec import PAGE_TOKENS, Class

LookUp = Callable[[World, Request], Match | Miss]
"""What the device has for a request; who wants to time it passes one that does."""


def admit_all(
    world: World, now_ms: float, look: LookUp | None = None
) -> tuple[World, tuple[LaneStart, ...]]:
    """Admit from the queue in order of standing until one must wait for a lane or for pages.

    Nobody overtakes a request that waits for these, or a large one could wait for ever. A request
    that waits for another's prefix holds nobody up. Evicted sequences wait in the same order.
    """
    starts: list[LaneStart] = []
    waiting = sorted(
        (world.sequences[key] for key in world.queue),
        key=lambda seq: standing(seq, world.limits, now_ms),
    )
    for seq in waiting:
        if seq.phase is Phase.EVICTED and seq.held:
            continue
        lane = free_lane(world)
        if lane is None:
            world = evict_for_entry(world, seq, 0, now_ms)
            break
        if seq.phase is Phase.EVICTED:
            resumed = _resume(world, seq, lane, now_ms)
            if resumed is None:
                wanted = entry_pages(world, seq) + headroom_pages(world, seq, now_ms)
                if gainable(world) < wanted:
                    world = evict_for_entry(world, seq, wanted, now_ms)
                break
            world = resumed
            continue
        world, seq, seen = _looked(world, seq, look or look_up)
        world = mark_partings(world, seq.request, seen.found)
        if awaits_leader(world, seq.request, seen.found):
            continue
        admitted = _admit(world, seq, seen, lane, now_ms)
        if admitted is None:
            wanted = wanted_pages(world, seq, seen.found, now_ms)
            world = evict_for_entry(world, seq, wanted, now_ms)
            break
        world, start = admitted
        starts += start
    return world, tuple(starts)


def _looked(world: World, seq: Sequence, look_up: LookUp) -> tuple[World, Sequence, Look]:
    """What the tiers have for a request; they are asked again only when one of them has changed."""
    look = seq.looked
    tiers = world.tiers
    arena = None if tiers is None else tiers.arena.index
    shelf = None if tiers is None or tiers.shelf is None else tiers.shelf.index
    asked = (world.index, arena, shelf)
    if look is None or any(one is not now for one, now in zip(look.asked, asked, strict=True)):
        found, below = look_below(world, seq.request, look_up(world, seq.request))
        look = Look(asked, found, below)
        seq = replace(seq, looked=look)
        world = with_sequence(world, seq)
    return world, seq, look


def look_up(world: World, request: Request) -> Match | Miss:
    """The longest retained state to resume from, or why there is none."""
    if not (world.limits.reuse and request.reuse):
        return Miss(MissReason.REUSE_OFF)
    return world.index.longest_match(request.chain, request.prompt_tokens)


def awaits_leader(world: World, request: Request, found: Match | Miss) -> bool:
    """Whether one under way will publish a state that makes waiting for it worth while: a prefill
    where it is cut, a restore where it resumes.

    Asked anew in every round, so followers wake by themselves when the leader has published, was
    cancelled, or found no slot; the first of them then goes ahead and the others follow it.
    """
    if not (world.limits.reuse and request.reuse):
        return False
    least = found.length + world.limits.single_flight_tokens
    for one in world.pending:
        if _shares(request, one.chain, one.length, least):
            return True
    for seq in world.running:
        restores = seq.phase is Phase.RESTORING and seq.found is not None
        if restores and _shares(request, seq.request.chain, seq.kept_at, least):
            return True
        if seq.phase in (Phase.PREFILLING, Phase.RESTORING) and any(
            _shares(request, seq.request.chain, cut.position, least) for cut in reversed(seq.cuts)
        ):
            return True
    return False


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
    read = max(seq.request.prompt_tokens, seq.position)
    return pages_for(min(seq.total_tokens, read + world.limits.step_tokens))


def wanted_pages(world: World, seq: Sequence, found: Match | Miss, now_ms: float) -> int:
    """Pages that a request must find free, or held by what gives way to it."""
    shared = len(found.retained.table) if isinstance(found, Match) else 0
    return entry_pages(world, seq) - shared + headroom_pages(world, seq, now_ms)


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


def _paged(
    world: World, seq: Sequence, shared: tuple[int, ...], now_ms: float
) -> tuple[World, tuple[int, ...]] | None:
    """The world with the pages that a request enters with, or None when they cannot be had.

    Shared pages are taken first, so that making room cannot free them. What does not fit is
    dropped as a value: nothing has to be given back.
    """
    num_new = entry_pages(world, seq) - len(shared)
    headroom = headroom_pages(world, seq, now_ms)
    trial = replace(world, pages=world.pages.share(shared))
    if trial.pages.num_free < num_new + headroom and gainable(trial) < num_new + headroom:
        return None
    roomy = make_room(trial, num_new, now_ms)
    if roomy is None:
        return None
    pages, new = roomy.pages.take(num_new)
    queue = tuple(key for key in world.queue if key != seq.request.id)
    return replace(roomy, pages=pages, queue=queue), (*shared, *new)


def _admit(
    world: World, seq: Sequence, look: Look, lane: int, now_ms: float
) -> tuple[World, tuple[LaneStart, ...]] | None:
    """The world with the request in a lane, or None when its pages cannot be had.

    It starts in this round, or restores first.
    """
    request, found = seq.request, look.found
    if look.below is not None:
        restoring = _restore(world, seq, found, look.below, lane, now_ms)
        if restoring is not None:
            return restoring, ()
    shared = found.retained.table if isinstance(found, Match) else ()
    paged = _paged(world, seq, shared, now_ms)
    if paged is None:
        return None
    world, table = paged
    if seq.corrupt and isinstance(found, Miss):
        found = replace(found, reason=MissReason.CORRUPT)
    world = claimed(world, request, found, now_ms)
    reuse = seq.reuse
    if not seq.told:
        # Who is computed anew was told and counted at its first admission.
        world, reuse = account(world, request, found)
    cuts = cuts_of(world, request, found)
    seq = replace(
        seq,
        phase=Phase.PREFILLING,
        lane=lane,
        looked=None,
        table=table,
        position=found.length,
        cuts=tuple(cut for cut in cuts if cut.position > found.length),
        kept_at=found.length,
        reuse=reuse,
        parent_id=found.retained.id if isinstance(found, Match) else None,
        start_round=world.next_round,
        spared_until_ms=_spared_until(world, seq, now_ms),
        timings=replace(seq.timings, admitted_ms=now_ms),
    )
    start = LaneStart(
        lane=lane,
        slot=found.retained.slot if isinstance(found, Match) else None,
        position=found.length,
        sampling=request.sampling,
        prompt=request.chain.tokens,
    )
    return with_sequence(world, seq), (start,)


def _spared_until(world: World, seq: Sequence, now_ms: float) -> float:
    """Until when nobody takes the place of a request that has waited so long for it, or of a
    person's that had to give way before.
    """
    limits = world.limits
    pushed = seq.evictions > 0 and seq.request.cls is Class.INTERACTIVE
    return now_ms + limits.ageing_ms if pushed or aged(seq, limits, now_ms) else 0.0


def _restore(
    world: World, seq: Sequence, found: Match | Miss, below: Below, lane: int, now_ms: float
) -> World | None:
    """The world in which a request restores a state; None when it cannot, and enters without it."""
    world_with = brought_up(world, below.stored, now_ms)
    if world_with is None:
        return None
    shared = found.retained.table if isinstance(found, Match) else ()
    paged = _paged(world_with, seq, shared, now_ms)
    if paged is None:
        return None
    world, table = paged
    length = below.stored.length
    cuts = cuts_of(world, seq.request, found)
    seq = replace(
        seq,
        phase=Phase.RESTORING,
        lane=lane,
        looked=None,
        table=table,
        position=found.length,
        cuts=tuple(cut for cut in cuts if cut.position > length),
        kept_at=length,
        stored_id=below.stored.id,
        moved_pages=len(shared),
        found=found,
        spared_until_ms=_spared_until(world, seq, now_ms),
        timings=replace(seq.timings, admitted_ms=now_ms),
    )
    return with_sequence(world, seq)


def _resume(world: World, seq: Sequence, lane: int, now_ms: float) -> World | None:
    """The world in which an evicted sequence comes up again; None while it must wait."""
    tiers = world.tiers
    assert tiers is not None
    assert seq.stored_id is not None
    stored = tiers.arena.index.get(seq.stored_id) or tiers.on_shelf(seq.stored_id)
    assert stored is not None, f"nothing lies below of request {seq.request.id}, which is evicted"
    coming = brought_up(world, stored, now_ms)
    if coming is None:
        # What fills the arena may be on its way to files; else it fills it for good.
        return None if tiers.writing or tiers.reading else compute_anew(world, seq)
    paged = _paged(coming, seq, (), now_ms)
    if paged is None:
        return None
    world, table = paged
    seq = replace(
        seq,
        phase=Phase.RESTORING,
        lane=lane,
        table=table,
        position=0,
        found=None,
        spared_until_ms=_spared_until(world, seq, now_ms),
    )
    return with_sequence(world, seq)
