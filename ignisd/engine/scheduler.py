"""The deciding half of the engine: pure functions from a world to the next.

The order of calls is: any of `submit`, `cancel`, `hold`; `plan`; `commit` of the round before the
one just planned; and again. So a plan never knows the tokens of the round before it. It knows their
number: positions advance when a step is planned. A lane may thereby run one step past its stop;
that step's token arrives for a sequence that is gone, and is dropped.
"""

import sys
from dataclasses import replace

from ignisd.engine.admission import LookUp, admit_all, entry_pages
from ignisd.engine.ahead import landed_ahead, plan_ahead
from ignisd.engine.captures import plan_captures, plan_saves, publish
from ignisd.engine.delivery import fold_tokens
from ignisd.engine.eviction import evict_for_page, landed, plan_windows
from ignisd.engine.leaving import keep_read, plan_sinking
from ignisd.engine.moves import Order
from ignisd.engine.pacing import may_prefill, paced
from ignisd.engine.restoring import plan_raises
from ignisd.engine.room import make_room
from ignisd.engine.spilling import plan_spills
from ignisd.engine.stats import LOWER_TIERS
from ignisd.engine.tiers import round_done
from ignisd.engine.types import (
    DecodeLane,
    Event,
    FinishReason,
    Notice,
    Phase,
    PrefillWork,
    Request,
    Round,
    RoundResult,
    Started,
    Tier,
    Timings,
)
from ignisd.engine.world import (
    InFlight,
    Sequence,
    World,
    count,
    finish,
    pages_for,
    standing,
    with_sequence,
    with_sequences,
)
from state.spec import PAGE_TOKENS, Class

_MOVING = (Phase.EVICTING, Phase.RESTORING)


def submit(world: World, request: Request, now_ms: float) -> World:
    """Queue a request; one that could not fit into an empty pool ends at once, saying why."""
    assert request.id not in world.sequences, f"request {request.id} is in flight already"
    assert request.prompt_tokens > 0, f"request {request.id} has no tokens"
    room = world.limits.max_context - request.prompt_tokens
    seq = Sequence(
        request=request,
        limit_tokens=max(min(request.max_tokens, room), 0),
        timings=Timings(request.arrival_ms),
        waits_from_ms=request.arrival_ms,
    )
    world = with_sequence(count(world, submitted=1), seq)
    wanted, limit = entry_pages(world, seq), world.pages.num_pages - 1
    if room < 0 or wanted > limit:
        message = (
            f"the prompt has {request.prompt_tokens} tokens and needs {wanted} pages to enter; the "
            f"context is {world.limits.max_context} tokens (--model-max-context) and the pool has "
            f"{limit} pages (--vram-kv-pool-bytes)"
        )
        return finish(world, seq, FinishReason.ERROR, now_ms, message)
    return replace(world, queue=(*world.queue, request.id))


def cancel(
    world: World, request_id: int, now_ms: float, reason: FinishReason = FinishReason.CANCELLED
) -> World:
    """End a request in whatever phase it is; one that has ended already is left alone.

    What it had captured stays, also what is captured by a round under way. A prefill that is not
    through leaves its last page boundary behind, on the device or below.
    """
    seq = world.sequences.get(request_id)
    if seq is None:
        return world
    world, seq = keep_read(world, seq)
    return finish(world, seq, reason, now_ms)


def hold(world: World, request_id: int, held: bool) -> World:
    """Pause a request whose reader is behind, or let it go on."""
    seq = world.sequences.get(request_id)
    if seq is None or seq.held is held:
        return world
    return with_sequence(count(world, holds=held), replace(seq, held=held))


def take_events(world: World) -> tuple[World, tuple[Event, ...]]:
    """The events that are due, and the world without them."""
    if not world.events:
        return world, ()
    return replace(world, events=()), world.events


def take_notices(world: World) -> tuple[World, tuple[Notice, ...]]:
    """What is due for the log, and the world without it."""
    if not world.notices:
        return world, ()
    return replace(world, notices=()), world.notices


def take_orders(world: World) -> tuple[World, tuple[Order, ...]]:
    """What the threads of files are to do, and the world without it."""
    tiers = world.tiers
    if tiers is None or not tiers.orders:
        return world, ()
    return replace(world, tiers=replace(tiers, orders=())), tiers.orders


def plan(world: World, now_ms: float, look: LookUp | None = None) -> tuple[World, Round | None]:
    """The next round, and the world in which it is under way; None when there is nothing to do.

    When nothing can be done although lanes wait for pages, and no round is under way that could
    free some, the lowest ranked of the waiting sequences ends with an error, rather than all wait
    for ever.
    """
    while True:
        planned, work = _plan(world, now_ms, look)
        if work is not None:
            return planned, work
        victim = _unplaceable(planned, now_ms)
        if victim is None:
            return planned, None
        message = (
            f"no page for the next token: wanted 1, free 0 of {world.pages.num_pages - 1}, after "
            f"{victim.position} tokens in {len(victim.table)} pages; raise --vram-kv-pool-bytes, "
            "or lower max_tokens or --spec-decode-lanes"
        )
        world = count(finish(planned, victim, FinishReason.ERROR, now_ms, message), unplaced=1)


def _plan(world: World, now_ms: float, look: LookUp | None) -> tuple[World, Round | None]:
    number = world.next_round
    if world.tiers is not None:
        window_bytes = world.tiers.limits.window_bytes
        if world.tiers.draining:
            window_bytes = sys.maxsize
        world = replace(world, tiers=replace(world.tiers, left_bytes=window_bytes))
    world = plan_windows(plan_sinking(world), now_ms)
    world, saves = plan_saves(world, now_ms)
    world, decode = _plan_decode(world, now_ms)
    world, starts = admit_all(world, now_ms, look)
    world, restored = plan_raises(world, now_ms)
    world, prefill = _plan_prefill(world, bool(decode), now_ms)
    world = plan_spills(plan_ahead(world, now_ms), now_ms)
    work = Round(number, (), saves, (), (*starts, *restored), prefill, decode)
    if world.tiers is not None:
        work = replace(work, lowers=world.tiers.lowers, raises=world.tiers.raises)
        world = replace(world, tiers=replace(world.tiers, lowers=(), raises=()))
    if not (work.lowers or saves or work.raises or work.starts or prefill or decode):
        return world, None
    under_way = InFlight(number, now_ms, prefill is not None, len(decode))
    world = replace(world, next_round=number + 1, in_flight=(*world.in_flight, under_way))
    return world, work


def _unplaceable(world: World, now_ms: float) -> Sequence | None:
    """Whom to give up when every lane waits for a page; None while anything may still change."""
    moving = world.sinking or any(seq.phase in _MOVING for seq in world.sequences.values())
    if world.in_flight or moving or any(seq.held for seq in world.running):
        return None
    parked = [seq for seq in world.running if seq.parked]
    ranked = sorted(parked, key=lambda seq: (seq.request.cls is Class.INTERACTIVE, *_latest(seq)))
    return ranked[0] if ranked else None


def _latest(seq: Sequence) -> tuple[float, int]:
    return -seq.request.arrival_ms, -seq.request.id


def _plan_decode(world: World, now_ms: float) -> tuple[World, tuple[DecodeLane, ...]]:
    """One step for every decoding lane that has a page for it."""
    lanes = [
        seq
        for seq in world.running
        if seq.phase is Phase.DECODING and not seq.held and seq.issued < seq.limit_tokens
    ]
    lanes.sort(key=lambda seq: standing(seq, world.limits, now_ms))
    for lane in lanes:
        seq = world.sequences[lane.request.id]
        if seq.phase is Phase.DECODING:
            world = _next_page(world, seq, now_ms)
    steps: list[DecodeLane] = []
    stepped: list[Sequence] = []
    for lane in lanes:
        seq = world.sequences[lane.request.id]
        if seq.parked or seq.phase is not Phase.DECODING:
            continue
        world, seq = _pages_ahead(world, seq)
        assert seq.lane is not None, f"request {seq.request.id} decodes without a lane"
        steps.append(DecodeLane(seq.request.id, seq.lane, seq.position, seq.table))
        stepped.append(replace(seq, position=seq.position + 1, issued=seq.issued + 1))
    steps.sort(key=lambda step: step.lane)
    return with_sequences(world, stepped), tuple(steps)


def _next_page(world: World, seq: Sequence, now_ms: float) -> World:
    """Give a lane the page that its next token goes to; retained states give way for it.

    A lane that gets none is parked, and tried again in every round, the best standing first.
    """
    if pages_for(seq.position + 1) <= len(seq.table):
        return world
    roomy = make_room(world, 1, now_ms)
    if roomy is None:
        if not seq.parked:
            world = with_sequence(count(world, parks=1), replace(seq, parked=True))
        return evict_for_page(world, seq, now_ms)
    pages, new = roomy.pages.take(1)
    seq = replace(seq, table=(*seq.table, *new), parked=False)
    return with_sequence(replace(roomy, pages=pages), seq)


def _pages_ahead(world: World, seq: Sequence) -> tuple[World, Sequence]:
    """Give a lane the pages ahead of it, of those that are free when every lane has its next."""
    ahead = min(seq.total_tokens, seq.position + 1 + world.limits.ahead_tokens)
    wanted = min(pages_for(ahead) - len(seq.table), world.pages.num_free)
    if wanted <= 0:
        return world, seq
    pages, new = world.pages.take(wanted)
    return replace(world, pages=pages), replace(seq, table=(*seq.table, *new))


def _plan_prefill(
    world: World, others_decode: bool, now_ms: float
) -> tuple[World, PrefillWork | None]:
    """One chunk of the prompt of best standing, unless it is the turn of decoding."""
    reading = [seq for seq in world.running if seq.phase is Phase.PREFILLING]
    if not reading or (others_decode and not may_prefill(world)):
        return world, None
    seq = min(reading, key=lambda seq: standing(seq, world.limits, now_ms))
    request, start = seq.request, seq.position
    end = min(start + world.limits.chunk_tokens, request.prompt_tokens)
    world, seq, end, captures = plan_captures(world, seq, end, now_ms)
    last = end == request.prompt_tokens
    assert seq.lane is not None, f"request {request.id} prefills without a lane"
    assert last or end % PAGE_TOKENS == 0, f"chunk of request {request.id} ends at {end}"
    work = PrefillWork(
        sequence_id=request.id,
        lane=seq.lane,
        tokens=request.chain.tokens[start:end],
        start=start,
        table=seq.table,
        captures=captures,
        last=last,
    )
    phase = Phase.DECODING if last else Phase.PREFILLING
    seq = replace(seq, position=end, phase=phase, issued=int(last))
    return with_sequence(world, seq), work


def commit(world: World, result: RoundResult, now_ms: float) -> tuple[World, tuple[Event, ...]]:
    """Fold an executed round in: publish what it captured, deliver what it sampled."""
    assert world.in_flight, f"result of round {result.number}, but none is under way"
    done = world.in_flight[0]
    assert done.number == result.number, f"result of round {result.number}, not {done.number}"
    world = replace(
        world, in_flight=world.in_flight[1:], pace=paced(world.pace, world.limits, done, now_ms)
    )
    late = sum(request_id not in world.sequences for request_id in result.tokens)
    world = count(
        world,
        late_tokens=late,
        generated_tokens=len(result.tokens) - late,
        rounds=1,
        prefill_chunks=done.prefill,
        decode_steps=done.num_decode > 0,
        computed_tokens=result.prefill_rows,
    )
    world = publish(world, result.number, frozenset(result.captured), now_ms)
    world = _started(world, result)
    world = fold_tokens(world, result.tokens, now_ms)
    world = _moved(world, result.number, now_ms)
    return take_events(world)


def _moved(world: World, number: int, now_ms: float) -> World:
    """What the round carried has arrived: it is findable, or its sequence is off the device."""
    tiers = world.tiers
    if tiers is None:
        return world
    arrived = [stored_id for at, stored_id in tiers.landings if at <= number]
    left = tuple(one for one in tiers.landings if one[0] > number)
    arriving = tuple(one for one in tiers.arriving if one.stored_id not in arrived)
    before, tiers = tiers, replace(tiers, landings=left, arriving=arriving)
    for stored_id in arrived:
        if stored_id not in tiers.orphans:
            tiers = replace(tiers, arena=tiers.arena.land(stored_id))
    world = replace(world, tiers=round_done(tiers, number))
    for seq in list(world.sequences.values()):
        if seq.phase is Phase.EVICTING and seq.stored_id in arrived:
            world = landed(world, seq, now_ms)
    for ahead in before.arriving:
        if ahead.stored_id in arrived:
            world = landed_ahead(world, ahead)
    return world


def _started(world: World, result: RoundResult) -> World:
    """Say what was reused: the claims of the round have been executed."""
    for seq in world.running:
        if seq.start_round == result.number and seq.lane is not None and not seq.told:
            reuse = seq.reuse
            if reuse.tier in LOWER_TIERS:
                reuse = replace(reuse, restore_ms=reuse.restore_ms + result.raised_ms)
            event = Started(seq.request.id, seq.lane, reuse)
            if reuse.tier is not None:
                world = count(world, **{_CACHED[reuse.tier]: reuse.cached_tokens})
            world = with_sequence(world, replace(seq, reuse=reuse, told=True))
            world = replace(world, events=(*world.events, event))
    return world


_CACHED = {Tier.DEVICE: "device_tokens", Tier.KV_RAM: "ram_tokens", Tier.KV_DISK: "disk_tokens"}
