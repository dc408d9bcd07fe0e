"""Live sequences that give way to others: whom, window by window, and what becomes of them.

One sequence is evicted at a time. It stops stepping at once; its lane is free with its first
window, which carries its image, and its pages when the last window has landed, so that what fails
on the way down is still on the device. Where there is no room below it is computed anew: its prompt
is read again and its answer sampled again, which gives the same tokens, and the first of them that
nobody has heard yet is the next that is delivered.
"""

from dataclasses import replace

from ignisd.engine.demotion import displacing, may_give_way
from ignisd.engine.room import gainable
from ignisd.engine.types import Phase
from ignisd.engine.windows import send_window
from ignisd.engine.world import (
    Sequence,
    World,
    aged,
    count,
    standing,
    unstored,
    with_sequence,
)
from state.chain import Chain
from state.spec import PAGE_TOKENS, Class
from state.tiers.stored import Stored


def evict_for_entry(world: World, seq: Sequence, wanted_pages: int, now_ms: float) -> World:
    """Let a sequence give way to a request that finds no lane or no pages.

    Nothing happens while another is on its way down, or when giving up all that may would not
    admit the request.
    """
    if goes_down(world):
        return world
    return _begin(world, below_entry(world, seq, now_ms), wanted_pages, now_ms)


def below_entry(world: World, seq: Sequence, now_ms: float) -> list[Sequence]:
    """Who may give way to a request at the door: agents' to a person's; and to an agent's that has
    waited its time whoever ranks below it, so that it waits for nobody who came later.
    """
    person = seq.request.cls is Class.INTERACTIVE
    if not (person or aged(seq, world.limits, now_ms)):
        return []
    mine = standing(seq, world.limits, now_ms)
    return [
        other
        for other in _movable(world)
        if other.spared_until_ms <= now_ms
        and standing(other, world.limits, now_ms) > mine
        and not (person and other.request.cls is Class.INTERACTIVE)
    ]


def evict_for_page(world: World, seq: Sequence, now_ms: float) -> World:
    """Let a sequence that ranks below a parked one give way, so that it gets its next page."""
    if goes_down(world):
        return world
    mine = standing(seq, world.limits, now_ms)
    lower = [
        other
        for other in _movable(world)
        if other.request.id != seq.request.id and standing(other, world.limits, now_ms) > mine
    ]
    return _begin(world, lower, 1, now_ms)


def plan_windows(world: World, now_ms: float) -> World:
    """Move the next window of the sequence that is on its way down."""
    for seq in _evicting(world):
        if seq.stored_id is None:
            placed = _placed(world, seq, now_ms)
            if placed is None:
                # A token that is still to come must not be taken for one that is sampled again.
                if seq.fetched == seq.issued:
                    world = compute_anew(world, seq)
                continue
            world, seq = placed
        world = _window(world, seq)
    return world


def compute_anew(world: World, seq: Sequence) -> World:
    """Drop all that a sequence holds and queue it again; what it told its reader stays told."""
    fresh = replace(
        seq,
        phase=Phase.QUEUED,
        looked=None,
        lane=None,
        table=(),
        position=0,
        cuts=(),
        kept_at=0,
        parent_id=None,
        issued=0,
        replaying=len(seq.answer),
        parked=False,
        start_round=None,
        stored_id=None,
        moved_pages=0,
        evictions=seq.evictions + 1,
        recomputed=seq.recomputed + 1,
    )
    queue = tuple(key for key in world.queue if key != seq.request.id)
    world = replace(
        unstored(world, seq), pages=world.pages.drop(seq.table), queue=(*queue, seq.request.id)
    )
    return count(with_sequence(world, fresh), recomputed=1)


def landed(world: World, seq: Sequence, now_ms: float) -> World:
    """All of a sequence lies below: its pages are free, and it waits to go on."""
    assert seq.phase is Phase.EVICTING, f"request {seq.request.id} has landed while {seq.phase}"
    down = replace(
        seq,
        phase=Phase.EVICTED,
        table=(),
        parked=False,
        moved_pages=0,
        evictions=seq.evictions + 1,
    )
    world = replace(world, pages=world.pages.drop(seq.table), queue=(*world.queue, seq.request.id))
    return count(with_sequence(world, down), evictions=1)


def _movable(world: World) -> list[Sequence]:
    """Sequences that could be evicted: they run, and the round that began them is committed."""
    oldest = min((one.number for one in world.in_flight), default=world.next_round)
    return [
        seq
        for seq in world.running
        if seq.phase in (Phase.PREFILLING, Phase.DECODING)
        and seq.position > 0
        and seq.start_round is not None
        and seq.start_round < oldest
    ]


def _evicting(world: World) -> list[Sequence]:
    return [seq for seq in world.sequences.values() if seq.phase is Phase.EVICTING]


def goes_down(world: World) -> bool:
    """Whether something is on its way down already, whose pages will be free."""
    return bool(world.sinking or _evicting(world))


def _begin(world: World, lower: list[Sequence], wanted_pages: int, now_ms: float) -> World:
    """The first to give way steps no more: agents' go first, those that still read, the latest.

    Its last round is still under way, so nothing moves before the next plan, when the tokens that
    lie in its pages are known.
    """
    if not lower or gainable(world, lower) < wanted_pages:
        return world
    victim = min(
        lower,
        key=lambda seq: (
            seq.request.cls is Class.INTERACTIVE,
            seq.phase is Phase.DECODING,
            -seq.request.arrival_ms,
            -seq.request.id,
        ),
    )
    victim = replace(victim, phase=Phase.EVICTING, parked=False, waits_from_ms=now_ms)
    return with_sequence(world, victim)


def _placed(world: World, seq: Sequence, now_ms: float) -> tuple[World, Sequence] | None:
    """The world with cells for the sequence, or None where there is no room below."""
    tiers = world.tiers
    if tiers is None:
        return None
    stored = _as_stored(seq, world.next_retained_id, now_ms)
    placement = tiers.arena.plan(stored, now_ms, world.limits.ttl_ms, may_give_way)
    if placement is None:
        return None
    world = displacing(world, tiers, placement)
    arena, _ = tiers.arena.place(stored, placement)
    world = replace(
        world,
        tiers=replace(tiers, arena=arena),
        next_retained_id=world.next_retained_id + 1,
    )
    return world, replace(seq, stored_id=stored.id, moved_pages=0)


def _as_stored(seq: Sequence, stored_id: int, now_ms: float) -> Stored:
    request = seq.request
    prompt = request.prompt_tokens
    num_common = min(seq.position, prompt) // PAGE_TOKENS
    written = seq.answer.tokens(max(seq.position - prompt, 0))
    chain = Chain(
        raw=request.chain.raw + written.astype("<i4").tobytes(),
        digests=request.chain.digests[:num_common],
        salt=request.chain.salt,
    )
    return Stored(
        id=stored_id,
        chain=chain,
        length=seq.position,
        num_common=num_common,
        kind=None,
        cls=request.cls,
        owner=request.id,
        hits=0,
        used_ms=now_ms,
    )


def _window(world: World, seq: Sequence) -> World:
    """The next pages of a sequence go down, its image with the first of them."""
    assert world.tiers is not None
    assert seq.stored_id is not None
    tiers, moved = send_window(
        world.tiers, seq.stored_id, seq.table, seq.moved_pages, world.next_round, lane=seq.lane
    )
    sent = moved - seq.moved_pages
    seq = replace(seq, lane=None, moved_pages=moved)
    return count(with_sequence(replace(world, tiers=tiers), seq), evicted_pages=sent)
