"""Faults of the engine's bookkeeping: what is written, held, claimed and told."""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ignisd.engine import admission, captures, check, delivery, leaving, room, scheduler
from ignisd.engine.stats import SkipReason
from ignisd.engine.types import Capture, DecodeLane, LaneSave, LaneStart, Round
from ignisd.engine.world import World, finish, with_sequence
from state import groups, retention, reuse
from state.chain import Chain
from state.reuse import Match
from tests.planting import mutant


@mutant
def publish_early() -> AbstractContextManager[Any]:
    """A capture is findable when it is planned, before its round has run."""
    real = scheduler.plan

    def plan(world: World, now_ms: float, *more: Any) -> tuple[World, Round | None]:
        world, work = real(world, now_ms, *more)
        if work is not None:
            slots = frozenset(one.slot for one in world.pending)
            world = captures.publish(world, work.number, slots, now_ms)
        return world, work

    return patch.object(scheduler, "plan", plan)


@mutant
def publish_unwritten() -> AbstractContextManager[Any]:
    """A capture is published although the device did not write its slot."""
    real = captures.publish

    def publish(world: World, number: int, written: frozenset[int], now_ms: float) -> World:
        return real(world, number, frozenset(range(world.slots.num_slots)), now_ms)

    return patch.object(scheduler, "publish", publish)


@mutant
def capture_before_write() -> AbstractContextManager[Any]:
    """The slot of a capture receives what the lane held before the chunk was read."""
    real = scheduler.plan

    def plan(world: World, now_ms: float, *more: Any) -> tuple[World, Round | None]:
        world, work = real(world, now_ms, *more)
        if work is None or work.prefill is None or not work.prefill.captures:
            return world, work
        read = work.prefill
        saves = [LaneSave(read.lane, one.slot, read.start) for one in read.captures]
        started = any(start.lane == read.lane for start in work.starts)
        if started:
            return world, work
        late = replace(read, captures=())
        return world, replace(work, saves=(*work.saves, *saves), prefill=late)

    return patch.object(scheduler, "plan", plan)


@mutant
def state_one_token_off() -> AbstractContextManager[Any]:
    """An image is taken one token before the position that it is filed under."""
    return patch.object(captures, "Capture", lambda position, slot: Capture(position - 1, slot))


@mutant
def wrong_slot() -> AbstractContextManager[Any]:
    """A claim reads the neighbouring slot."""

    def start(*, slot: int | None, **more: Any) -> LaneStart:
        return LaneStart(slot=None if slot is None else slot ^ 1, **more)

    return patch.object(admission, "LaneStart", start)


class _ShortTable:
    """A retained state that hides its last page."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.table = real.table[:-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@mutant
def stale_page() -> AbstractContextManager[Any]:
    """The last page of a claim is a fresh one, with whatever it held before."""
    real = admission.look_up

    def look_up(world: World, request: Any) -> Any:
        found = real(world, request)
        if isinstance(found, Match):
            found = replace(found, retained=_ShortTable(found.retained))  # type: ignore[arg-type]
        return found

    stack = ExitStack()
    stack.enter_context(patch.object(admission, "look_up", look_up))
    stack.enter_context(patch.object(check, "look_up", look_up))
    return stack


@mutant
def pages_out_of_order() -> AbstractContextManager[Any]:
    """A retained state lists its pages in another order than its tokens."""

    def wish(kind: Any, chain: Any, length: int, table: tuple[int, ...], cls: Any) -> Any:
        return room.Wish(kind, chain, length, table[::-1], cls)

    return patch.object(captures, "Wish", wish)


@mutant
def freed_page_reused() -> AbstractContextManager[Any]:
    """A capture takes no share of its pages, so that they are free when its sequence ends."""
    real = captures._add_pending

    def add_pending(world: World, *more: Any) -> World:
        return replace(real(world, *more), pages=world.pages)

    return patch.object(captures, "_add_pending", add_pending)


@mutant
def match_by_hash_alone() -> AbstractContextManager[Any]:
    """Equal digests are taken for equal tokens."""
    return patch.object(Chain, "is_prefix_of", lambda self, other: True)


@mutant
def whole_prompt_hit() -> AbstractContextManager[Any]:
    """A prompt may resume at its very end, with no token left to read."""

    def points(num_tokens: int) -> range:
        return range(64, num_tokens + 1, 64)

    stack = ExitStack()
    for module in (groups, retention, reuse):
        stack.enter_context(patch.object(module, "resume_points", points))
    return stack


@mutant
def cancel_that_leaks() -> AbstractContextManager[Any]:
    """A cancelled request keeps its pages."""
    real = scheduler.cancel

    def cancel(world: World, request_id: int, *more: Any) -> World:
        seq = world.sequences.get(request_id)
        if seq is not None:
            world = with_sequence(world, replace(seq, table=()))
        return real(world, request_id, *more)

    return patch.object(scheduler, "cancel", cancel)


@mutant
def claim_consumes() -> AbstractContextManager[Any]:
    """A state is gone once it was claimed."""
    real = admission._admit

    def admit(world: World, seq: Any, look: Any, lane: int, now_ms: float) -> Any:
        admitted = real(world, seq, look, lane, now_ms)
        if admitted is None or not isinstance(look.found, Match):
            return admitted
        held = admitted[0].index.get(look.found.retained.id)
        assert held is not None
        return room.discard(admitted[0], held), admitted[1]

    return patch.object(admission, "_admit", admit)


@mutant
def double_finish() -> AbstractContextManager[Any]:
    """The end of a request is told twice."""

    def twice(*args: Any, **more: Any) -> World:
        ended = finish(*args, **more)
        return replace(ended, events=(*ended.events, ended.events[-1]))

    return patch.object(delivery, "finish", twice)


@mutant
def answer_past_its_stop() -> AbstractContextManager[Any]:
    """A stop token is treated as any other."""
    real = delivery._end

    def end(seq: Any, token: int) -> Any:
        return real(replace(seq, request=replace(seq.request, stop_ids=frozenset())), token)

    return patch.object(delivery, "_end", end)


@mutant
def decode_one_position_off() -> AbstractContextManager[Any]:
    """A step writes its token where the one before it lies."""

    def step(sequence_id: int, lane: int, position: int, table: tuple[int, ...]) -> DecodeLane:
        return DecodeLane(sequence_id, lane, position - 1, table)

    return patch.object(scheduler, "DecodeLane", step)


@mutant
def interrupted_behind_its_lane() -> AbstractContextManager[Any]:
    """A cancelled prefill is filed one page before where its lane stands."""
    real = captures.interrupt

    def interrupt(world: World, seq: Any) -> World:
        world = real(world, seq)
        if not world.interrupted or world.interrupted[-1].length <= 64:
            return world
        noted = world.interrupted[-1]
        short = replace(noted, length=noted.length - 64, table=noted.table[:-1])
        pages = world.pages.drop(noted.table[-1:])
        return replace(world, pages=pages, interrupted=(*world.interrupted[:-1], short))

    return patch.object(leaving, "interrupt", interrupt)


@mutant
def two_owners_of_a_slot() -> AbstractContextManager[Any]:
    """A capture takes the slot of the lowest ranked state, which stays findable."""

    def reserve(world: World, wish: Any, now_ms: float) -> Any:
        reserved = room.reserve_slot(world, wish, now_ms)
        lowest = next(world.index.victims(now_ms, world.limits.ttl_ms), None)
        if lowest is None or isinstance(reserved, SkipReason) or world.slots.num_free:
            return reserved
        return replace(world, next_retained_id=world.next_retained_id + 1), lowest[1].slot

    return patch.object(captures, "reserve_slot", reserve)


@mutant
def retained_state_delays() -> AbstractContextManager[Any]:
    """Nothing retained gives way when pages are short."""

    def make_room(world: World, num_pages: int, now_ms: float) -> World | None:
        return world if world.pages.num_free >= num_pages else None

    stack = ExitStack()
    for module in (admission, scheduler):
        stack.enter_context(patch.object(module, "make_room", make_room))
    return stack


@mutant
def everybody_leads() -> AbstractContextManager[Any]:
    """Identical prompts that come together are each read."""
    stack = ExitStack()
    for module in (admission, check):
        stack.enter_context(patch.object(module, "awaits_leader", lambda *args: False))
    return stack


@mutant
def followers_never_wake() -> AbstractContextManager[Any]:
    """A request waits on for a prefix although the capture it waited for was skipped."""
    real = admission.awaits_leader

    def awaits_leader(world: World, request: Any, found: Any) -> bool:
        skipped = world.counters.skipped[SkipReason.NO_SLOT] > 0
        return real(world, request, found) or (skipped and not isinstance(found, Match))

    stack = ExitStack()
    for module in (admission, check):
        stack.enter_context(patch.object(module, "awaits_leader", awaits_leader))
    return stack
