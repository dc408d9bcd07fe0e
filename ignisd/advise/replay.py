"""Plays a trace through the daemon's own scheduler, on virtual bytes.

Two ways. `follow` repeats the recorded turns with the recorded settings: the same rounds are
planned at the same times with the same requests, and since the scheduler is a function of these,
each request reuses what it reused then. `simulate` lets requests arrive when they arrived and has a
clock of its own, made of measured rates, so it answers for settings that were never tried.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from ignisd.advise.trace import Asked, Head, Session
from ignisd.engine import scheduler
from ignisd.engine.admission import look_up
from ignisd.engine.limits import Limits
from ignisd.engine.tiers import TierLimits, Tiers
from ignisd.engine.totals import Owner, pool_pages
from ignisd.engine.types import (
    Event,
    Finish,
    Finished,
    FinishReason,
    Request,
    Round,
    RoundResult,
    SamplingParams,
)
from ignisd.engine.world import World, new_world
from state.chain import Chain, chain_of
from state.retention import Marks, RetentionPolicy
from state.reuse import Match, Miss
from state.spec import PAGE_TOKENS, Class, Fingerprint
from state.tiers.arena import Arena

_GOES_ON, _STOP = 0, 1
"""The tokens of a virtual device."""

_IDLE_MS = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What is tried: an interval, slots in host memory, and cells of kv_ram (0 is none)."""

    interval_tokens: int
    host_slots: int
    num_cells: int


@dataclass(slots=True)
class Seen:
    """What a replay saw.

    Args:
        finishes: by request.
        peak_points, peak_pages: most that were retained on the device at a time.
        looked_s, lookups: time that lookups took here, and how many there were.
        world: as it was in the end.
    """

    finishes: dict[int, Finish] = field(default_factory=dict)
    peak_points: int = 0
    peak_pages: int = 0
    looked_s: float = 0.0
    lookups: int = 0
    world: World | None = None


def recorded(head: Head) -> Setting:
    """The setting of the recording."""
    cells = 0 if head.tiers is None else int(head.tiers["num_cells"])
    return Setting(head.interval_tokens, head.host_slots, cells)


def world_of(head: Head, setting: Setting) -> World:
    """An empty world of the recorded daemon with another setting."""
    known = {one.name for one in fields(Limits)}
    limits = Limits(**{name: value for name, value in head.limits.items() if name in known})
    tiers = None
    if head.tiers is not None and setting.num_cells:
        arena = Arena.empty(setting.num_cells, head.tiers["image_cells"], head.tiers["cell_bytes"])
        tiers = Tiers(TierLimits(**head.tiers["limits"]), arena)
    return new_world(
        limits,
        RetentionPolicy(setting.interval_tokens, head.min_interrupted_tokens),
        Fingerprint.of(trace=head.model),
        num_pages=head.num_pages,
        num_device_slots=head.device_slots,
        num_host_slots=setting.host_slots,
        tiers=tiers,
    )


def chain_for(asked: Asked) -> Chain:
    """Tokens that share pages with those of other requests exactly where the real ones did."""
    names = [*asked.pages, asked.tail]
    rows = [_page(name) for name in names]
    return chain_of(np.concatenate(rows)[: asked.prompt_tokens])


def _page(name: str) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    words = np.frombuffer(bytes.fromhex(name), "<u4") & np.uint32(0x7FFFFFFF)
    return np.resize(words.astype(np.int32), PAGE_TOKENS)


class VirtualRunner:
    """A device that does what a round says and takes no time: it samples as was recorded."""

    def __init__(self, asked: Mapping[int, Asked]) -> None:
        self._asked = asked
        self._said: dict[int, int] = {}

    def run(self, work: Round) -> RoundResult:
        """The result of a round."""
        captured = [save.slot for save in work.saves]
        captured += [start.keep_slot for start in work.starts if start.keep_slot is not None]
        sampling = [step.sequence_id for step in work.decode]
        rows = 0
        if work.prefill is not None:
            rows = len(work.prefill.tokens)
            captured += [one.slot for one in work.prefill.captures]
            if work.prefill.last:
                sampling.append(work.prefill.sequence_id)
        tokens = {id: self._next(id) for id in sampling}
        return RoundResult(work.number, tokens, tuple(captured), rows)

    def _next(self, id: int) -> int:
        self._said[id] = self._said.get(id, 0) + 1
        asked = self._asked[id]
        stops = asked.reason == FinishReason.STOP and self._said[id] >= asked.generated
        return _STOP if stops else _GOES_ON


class _Playing:
    """A world under way."""

    def __init__(self, session: Session, setting: Setting) -> None:
        self.asked = {one.id: one for one in session.requests}
        self.runner = VirtualRunner(self.asked)
        self.world = world_of(session.head, setting)
        self.under_way: list[RoundResult] = []
        self.seen = Seen()

    def submit(self, id: int, now_ms: float, max_tokens: int | None = None) -> None:
        asked = self.asked[id]
        request = Request(
            id=id,
            name=str(id),
            chain=chain_for(asked),
            marks=Marks(asked.system_end, asked.turn_open, asked.opener),
            sampling=SamplingParams(temperature=0.0),
            max_tokens=asked.max_tokens if max_tokens is None else max_tokens,
            stop_ids=frozenset({_STOP}),
            cls=Class(asked.cls),
            reuse=asked.reuse,
            arrival_ms=asked.arrival_ms,
        )
        self.world = scheduler.submit(self.world, request, now_ms)

    def plan(self, now_ms: float) -> Round | None:
        before = self.world.index
        self.world, work = scheduler.plan(self.world, now_ms, self._look)
        self.world, _ = scheduler.take_orders(self.world)
        if work is not None:
            self.under_way.append(self.runner.run(work))
        self.world, events = scheduler.take_events(self.world)
        self._hear(events)
        if self.world.index is not before:
            self._measure()
        return work

    def commit(self, now_ms: float) -> None:
        before = self.world.index
        self.world, events = scheduler.commit(self.world, self.under_way.pop(0), now_ms)
        self._hear(events)
        if self.world.index is not before:
            self._measure()

    def cancel(self, id: int, now_ms: float) -> None:
        self.world = scheduler.cancel(self.world, id, now_ms)
        self.world, events = scheduler.take_events(self.world)
        self._hear(events)

    def done(self) -> Seen:
        self.seen.world = self.world
        return self.seen

    def _look(self, world: World, request: Request) -> Match | Miss:
        began_s = time.perf_counter()
        found = look_up(world, request)
        self.seen.looked_s += time.perf_counter() - began_s
        self.seen.lookups += 1
        return found

    def _hear(self, events: tuple[Event, ...]) -> None:
        for event in events:
            if isinstance(event, Finished):
                self.seen.finishes[event.request_id] = event.finish

    def _measure(self) -> None:
        self.seen.peak_points = max(self.seen.peak_points, len(self.world.index))
        pages = pool_pages(self.world)[Owner.RETAINED]
        self.seen.peak_pages = max(self.seen.peak_pages, pages)


def follow(session: Session) -> Seen:
    """Repeat the recorded turns with the recorded setting."""
    playing = _Playing(session, recorded(session.head))
    now_ms = 0.0
    for turn in session.turns:
        now_ms = turn.planned_ms
        for id in turn.came:
            playing.submit(id, now_ms)
        for id in turn.left:
            playing.cancel(id, now_ms)
        playing.plan(now_ms)
        for committed_ms in turn.committed_ms:
            now_ms = committed_ms
            if playing.under_way:
                playing.commit(committed_ms)
    while playing.under_way:
        playing.commit(now_ms)
    return playing.done()


def simulate(session: Session, setting: Setting) -> Seen:
    """Let the recorded requests arrive at another setting; what was cancelled goes to its end."""
    playing = _Playing(session, setting)
    rates = rates_of(session)
    waiting = list(reversed(session.requests))
    now_ms = waiting[-1].arrival_ms
    while waiting or playing.world.sequences:
        while waiting and waiting[-1].arrival_ms <= now_ms:
            asked = waiting.pop()
            most = asked.max_tokens if asked.reason == FinishReason.STOP else asked.generated
            playing.submit(asked.id, now_ms, max_tokens=most)
        work = playing.plan(now_ms)
        if work is None:
            if waiting:
                now_ms = max(waiting[-1].arrival_ms, now_ms + _IDLE_MS)
            elif playing.world.sequences:
                break  # what is left cannot go on, as without room for anything
            continue
        now_ms += _took_ms(work, rates)
        playing.commit(now_ms)
    return playing.done()


def _took_ms(work: Round, rates: Mapping[str, float]) -> float:
    """What a round would take on the recorded machine."""
    took_ms = rates["decode_ms"] if work.decode else 0.0
    if work.prefill is not None:
        took_ms += 1000.0 * len(work.prefill.tokens) / rates["prefill_tokens_s"]
    raised = sum(len(one.cells) for one in work.raises)
    return took_ms + 1000.0 * raised * rates["cell_bytes"] / rates["raise_bytes_s"]


def rates_of(session: Session) -> Mapping[str, float]:
    """What was measured at load; without that, reading as fast as the recorded misses were read."""
    if session.head.rates:
        return session.head.rates
    timed = [one for one in session.requests if one.ttft_ms]
    took_ms = sum(one.ttft_ms or 0.0 for one in timed)
    read = sum(one.prompt_tokens - one.cached for one in timed)
    tokens_s = 1000.0 * read / took_ms if took_ms and read else 1000.0
    return {
        "prefill_tokens_s": tokens_s, "decode_ms": 0.0, "raise_bytes_s": 1e9, "cell_bytes": 0.0
    }  # fmt: skip
