"""Everything the scheduler may see, as one frozen value, and the small changes others share."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ignisd.engine.answer import Answer
from ignisd.engine.limits import Limits as Limits
from ignisd.engine.stats import Counters, SkipReason
from ignisd.engine.tiers import Tiers, given_up, let_go
from ignisd.engine.types import (
    Event,
    Finish,
    Finished,
    FinishReason,
    Notice,
    Phase,
    Request,
    Reuse,
    Tier,
    Timings,
)
from ignisd.engine.volatile import FirstSegments
from state.chain import Chain
from state.pages import PageLedger
from state.retained import Kind
from state.retention import Cut, RetentionPolicy
from state.reuse import Match, Miss, ReuseIndex
from state.slots import SlotLedger
from state.spec import PAGE_TOKENS, Class, Fingerprint
from state.tiers.stored import Stored


@dataclass(frozen=True, slots=True)
class Below:
    """A state below the device that is worth restoring, and the tier that it lies in."""

    stored: Stored
    tier: Tier


@dataclass(frozen=True, slots=True)
class Look:
    """What the tiers have for a request.

    Args:
        asked: the indexes that answered: of the device, the arena and the shelf.
        found: on the device.
        below: in a lower tier, where that saves enough more.
    """

    asked: tuple[object, ...]
    found: Match | Miss
    below: Below | None


@dataclass(frozen=True, slots=True)
class Sequence:
    """A request in flight.

    Args:
        request: what was asked.
        phase: QUEUED holds nothing; the others hold `lane` and `table`.
        limit_tokens: most tokens to generate, the request's wish cut to the context.
        looked: while queued, what the tiers answered, and which values of their indexes did:
            they are asked again only when one has changed.
        lane: row of the decode batch.
        table: its pages in order, shared ones of the reused state first.
        position: tokens that all rounds planned so far leave in its pages and state.
        cuts: places still to be captured, ascending.
        kept_at: deepest position claimed or planned to be captured.
        displaced: states of others given up for periodic states of this one.
        reuse: what was claimed, or why nothing was.
        parent_id: the retained state that its next capture continues.
        issued: tokens that planned rounds sample, those not yet fetched included.
        generated: tokens fetched.
        parked: waits for a page.
        held: waits for its reader.
        start_round: number of the round that begins it in its lane.
        timings: when things happened.
        told: its reader knows what was reused.
        answer: tokens fetched, which it goes on from if it has to give way.
        replaying: tokens that will be sampled once more, after it was computed anew.
        stored_id: while EVICTING and EVICTED, what lies below of it; while RESTORING, what it
            resumes from.
        moved_pages: how many of the pages that must be moved are, by rounds planned so far.
        corrupt: a file that it would have resumed from was of no use.
        found: while RESTORING, what the lookup answered, told when the restore has succeeded.
        evictions: times that it had to give way.
        recomputed: times that it was computed anew.
        spared_until_ms: until then nobody takes its place who comes to the door.
        waits_from_ms: when it arrived, or had to give way the last time.
    """

    request: Request
    limit_tokens: int
    timings: Timings
    phase: Phase = Phase.QUEUED
    looked: Look | None = None
    lane: int | None = None
    table: tuple[int, ...] = ()
    position: int = 0
    cuts: tuple[Cut, ...] = ()
    kept_at: int = 0
    displaced: int = 0
    reuse: Reuse = field(default_factory=Reuse)
    parent_id: int | None = None
    issued: int = 0
    generated: int = 0
    parked: bool = False
    held: bool = False
    start_round: int | None = None
    told: bool = False
    answer: Answer = field(default_factory=Answer)
    replaying: int = 0
    stored_id: int | None = None
    moved_pages: int = 0
    corrupt: bool = False
    found: Match | Miss | None = None
    evictions: int = 0
    recomputed: int = 0
    spared_until_ms: float = 0.0
    waits_from_ms: float = 0.0

    @property
    def total_tokens(self) -> int:
        """Prompt and the longest answer together."""
        return self.request.prompt_tokens + self.limit_tokens

    @property
    def fetched(self) -> int:
        """Of the tokens issued, those that have come."""
        return len(self.answer) - self.replaying

    @property
    def keeps(self) -> bool:
        """Whether it may leave retained state."""
        return self.request.reuse


@dataclass(frozen=True, slots=True)
class Pending:
    """A capture under way: it holds a slot and a share of its pages until its round is committed.

    It is independent of its sequence, which may be cancelled meanwhile. Not findable yet.
    """

    round_number: int
    retained_id: int
    sequence_id: int
    parent_id: int | None
    slot: int
    kind: Kind
    chain: Chain
    length: int
    table: tuple[int, ...]
    cls: Class


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A cancelled prefill whose state still stands in its lane, to be saved by the next round."""

    lane: int
    sequence_id: int
    parent_id: int | None
    chain: Chain
    length: int
    table: tuple[int, ...]
    cls: Class


@dataclass(frozen=True, slots=True)
class Sinking:
    """A prefill that was cancelled on its way down: its image is below, and some of its pages.

    Args:
        stored_id: in the arena, where it is retained as soon as all of it has come.
        table: its pages on the device, of which it holds a share.
        moved_pages: how many of the pages that must be moved are.
    """

    stored_id: int
    table: tuple[int, ...]
    moved_pages: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """A round that was planned and is not committed."""

    number: int
    planned_ms: float
    prefill: bool
    num_decode: int


@dataclass(frozen=True, slots=True)
class Pace:
    """What `--model-decode-share` needs to know of the past.

    Args:
        debt_ms: time that decoding is still owed before the next prefill chunk.
        chunk_ms: what the last prefill chunk took.
        decode_ms: what the last decode step took on its own.
        committed_ms: when the last round was committed.
    """

    debt_ms: float = 0.0
    chunk_ms: float = 0.0
    decode_ms: float = 0.0
    committed_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class World:
    """The host's whole picture. Functions take one and return the next; none is ever changed.

    Args:
        queue: ids of QUEUED sequences in order of arrival.
        pending: captures under way, in order of rounds and positions.
        interrupted: lanes to be saved by the next round.
        sinking: what requests that left have on its way down.
        in_flight: rounds dispatched and not committed, oldest first.
        events: not yet delivered.
        notices: for the log, not yet delivered.
        skipped_in_row: captures that failed since the last one that was published.
        first_segments: system blocks seen lately, to find those that change all the time.
        tiers: what lies below the device; None where nothing can.
    """

    limits: Limits
    policy: RetentionPolicy
    pages: PageLedger
    slots: SlotLedger
    index: ReuseIndex
    sequences: Mapping[int, Sequence] = field(default_factory=lambda: MappingProxyType({}))
    queue: tuple[int, ...] = ()
    pending: tuple[Pending, ...] = ()
    interrupted: tuple[Interrupted, ...] = ()
    sinking: tuple[Sinking, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    events: tuple[Event, ...] = ()
    notices: tuple[Notice, ...] = ()
    next_retained_id: int = 1
    next_round: int = 1
    pace: Pace = field(default_factory=Pace)
    counters: Counters = field(default_factory=Counters)
    skipped_in_row: int = 0
    first_segments: FirstSegments = field(default_factory=FirstSegments)
    tiers: Tiers | None = None

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences that hold a lane."""
        return tuple(seq for seq in self.sequences.values() if seq.lane is not None)


def new_world(
    limits: Limits,
    policy: RetentionPolicy,
    fingerprint: Fingerprint,
    *,
    num_pages: int,
    num_device_slots: int,
    num_host_slots: int,
    tiers: Tiers | None = None,
) -> World:
    """An empty world. `num_pages` counts the null page."""
    return World(
        tiers=tiers,
        limits=limits,
        policy=policy,
        pages=PageLedger.empty(num_pages),
        slots=SlotLedger.empty(num_device_slots, num_host_slots),
        index=ReuseIndex.empty(fingerprint),
    )


def pages_for(num_tokens: int) -> int:
    """Pages that so many tokens fill, the last one perhaps in part."""
    return -(-num_tokens // PAGE_TOKENS)


def with_sequence(world: World, seq: Sequence) -> World:
    """The world with one sequence put in or replaced."""
    return replace(world, sequences=MappingProxyType({**world.sequences, seq.request.id: seq}))


def with_sequences(world: World, changed: Iterable[Sequence]) -> World:
    """The world with some sequences replaced."""
    new = {seq.request.id: seq for seq in changed}
    if not new:
        return world
    return replace(world, sequences=MappingProxyType({**world.sequences, **new}))


def standing(seq: Sequence, limits: Limits, now_ms: float) -> tuple[int, float, int]:
    """Sorts sequences by who is served first: class, then arrival.

    Waiting turns an agent's up, and it stays there for as long as it is spared. Running does not:
    one that had to give way would be back at once, before whom it gave way to.
    """
    request = seq.request
    turned_up = seq.spared_until_ms > now_ms if seq.lane is not None else aged(seq, limits, now_ms)
    interactive = request.cls is Class.INTERACTIVE or turned_up
    return (0 if interactive else 1, request.arrival_ms, request.id)


def aged(seq: Sequence, limits: Limits, now_ms: float) -> bool:
    """Whether a sequence has waited so long that it waits no longer for its class."""
    return now_ms - seq.waits_from_ms >= limits.ageing_ms


def free_lane(world: World) -> int | None:
    """The lowest lane that no sequence holds."""
    used = {seq.lane for seq in world.running}
    return next((lane for lane in range(world.limits.num_lanes) if lane not in used), None)


def finish(
    world: World, seq: Sequence, reason: FinishReason, now_ms: float, message: str | None = None
) -> World:
    """End a sequence: drop what it holds, once, and say so.

    Its pages and lane are free at once, even while a dispatched round still writes to them. That
    is safe because the device executes rounds in order and this world only plans later ones: who
    takes a freed page or lane next writes it after the last stray write, and reads of it only what
    it wrote itself. Captures under way hold shares of their own.
    """
    request = seq.request
    done = Finish(
        request_id=request.id,
        name=request.name,
        cls=request.cls,
        reason=reason,
        prompt_tokens=request.prompt_tokens,
        generated_tokens=seq.generated,
        reuse=seq.reuse,
        timings=replace(seq.timings, finished_ms=now_ms),
        lane=seq.lane,
        evictions=seq.evictions,
        recomputed=seq.recomputed,
        message=message,
    )
    sequences = {key: value for key, value in world.sequences.items() if key != request.id}
    world = unstored(world, seq)
    return replace(
        world,
        pages=world.pages.drop(seq.table),
        sequences=MappingProxyType(sequences),
        queue=tuple(key for key in world.queue if key != request.id),
        events=(*world.events, Finished(request.id, done)),
        counters=world.counters.tally("finished", reason),
    )


def unstored(world: World, seq: Sequence) -> World:
    """Let go of what lies below for a sequence: its own goes, what it resumes from stays."""
    if seq.stored_id is None or world.tiers is None:
        return world
    tiers = world.tiers
    if seq.phase is Phase.RESTORING:
        tiers = let_go(tiers, seq.stored_id)
    if seq.found is None:
        tiers = given_up(tiers, seq.stored_id)
    return replace(world, tiers=tiers)


def tally(world: World, name: str, key: Hashable) -> World:
    """The world with one labelled counter raised by one."""
    return replace(world, counters=world.counters.tally(name, key))


def skip(world: World, reason: SkipReason) -> World:
    """The world after a capture was skipped."""
    failed = world.skipped_in_row + reason.is_failure
    return replace(tally(world, "skipped", reason), skipped_in_row=failed)


def notice(world: World, event: str, **facts: int | str) -> World:
    """The world with one notice more for the log."""
    return replace(world, notices=(*world.notices, Notice(event, MappingProxyType(facts))))


def count(world: World, **amounts: int) -> World:
    """The world with plain counters raised."""
    return replace(world, counters=world.counters.add(**amounts))
