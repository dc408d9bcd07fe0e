"""A world with a fake device that a test drives round by round."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ignisd.engine import scheduler
from ignisd.engine.check import check_planned, check_world
from ignisd.engine.room import flush
from ignisd.engine.tiers import Tiers
from ignisd.engine.types import (
    Event,
    Finish,
    Finished,
    Request,
    Round,
    SamplingParams,
    Started,
    Token,
)
from ignisd.engine.world import Limits, new_world
from state.chain import Chain, chain_of
from state.retention import Marks, RetentionPolicy
from state.spec import Class, Fingerprint
from tests.fake_device import VOCABULARY, FakeDevice, cold_answer

FINGERPRINT = Fingerprint.of(model="fake")


def words(count: int, seed: int = 0) -> list[int]:
    """Some tokens; other seeds give others."""
    return [int(word) for word in np.random.default_rng(seed).integers(0, VOCABULARY, count)]


class Harness:
    """Drives the scheduler as the loop does: the plan of a round comes before the commit of the
    one before it. Every invariant is checked at every step.
    """

    def __init__(
        self,
        *,
        num_pages: int = 200,
        num_host_slots: int = 8,
        num_device_slots: int = 0,
        interval_tokens: int = 0,
        tiers: Tiers | None = None,
        **limits: Any,
    ) -> None:
        chosen: dict[str, Any] = {"num_lanes": 2, "max_context": 4096, "chunk_tokens": 256}
        self.limits = Limits(**(chosen | limits))
        self.world = new_world(
            self.limits,
            RetentionPolicy(interval_tokens),
            FINGERPRINT,
            num_pages=num_pages,
            num_device_slots=num_device_slots,
            num_host_slots=num_host_slots,
            tiers=tiers,
        )
        num_slots = num_device_slots + num_host_slots
        self.device = FakeDevice(
            num_pages,
            self.limits.num_lanes,
            num_slots,
            self.limits.chunk_tokens,
            0 if tiers is None else tiers.arena.num_cells,
        )
        self.now_ms = 0.0
        self.under_way: list[object] = []
        self.requests: dict[int, Request] = {}
        self.answers: dict[int, list[int]] = {}
        self.started: dict[int, Started] = {}
        self.finishes: dict[int, Finish] = {}

    def submit(
        self,
        tokens: Sequence[int] | Chain,
        *,
        marks: Marks | None = None,
        max_tokens: int = 3,
        cls: Class = Class.INTERACTIVE,
        reuse: bool = True,
        stop_ids: frozenset[int] = frozenset(),
        sampling: SamplingParams | None = None,
    ) -> int:
        """Queue a request and return its id."""
        chain = tokens if isinstance(tokens, Chain) else chain_of(tokens)
        request = Request(
            id=len(self.requests) + 1,
            name="test",
            chain=chain,
            marks=marks or Marks(),
            sampling=sampling or SamplingParams(),
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            cls=cls,
            reuse=reuse,
            arrival_ms=self.now_ms,
        )
        self.requests[request.id] = request
        self.answers[request.id] = []
        self.world = scheduler.submit(self.world, request, self.now_ms)
        self.take_events()
        return request.id

    def cancel(self, request_id: int) -> None:
        """Cancel a request between two rounds."""
        self.world = scheduler.cancel(self.world, request_id, self.now_ms)
        check_world(self.world)
        self.take_events()

    def plan(self) -> Round | None:
        """Plan and dispatch the next round."""
        self.world, work = scheduler.plan(self.world, self.now_ms)
        check_world(self.world)
        check_planned(self.world, work, self.now_ms)
        if work is not None:
            self.under_way.append(self.device.run(work))
        self.take_events()
        return work

    def commit(self) -> None:
        """Commit the oldest round under way."""
        result = self.device.fetch(self.under_way.pop(0))
        self.world, events = scheduler.commit(self.world, result, self.now_ms)
        check_world(self.world)
        self.hear(events)

    def turn(self, took_ms: float = 1.0) -> Round | None:
        """One turn of the engine: plan on, then commit the round before."""
        work = self.plan()
        self.now_ms += took_ms
        while len(self.under_way) > (work is not None):
            self.commit()
        return work

    def drain(self, most: int = 2000) -> None:
        """Turn until nothing is in flight."""
        for _ in range(most):
            if self.turn() is None and not self.world.sequences:
                return
        raise AssertionError(f"{len(self.world.sequences)} requests did not end")

    def ask(self, tokens: Sequence[int] | Chain, **wishes: Any) -> Finish:
        """A request on its own, to its end; the answer must be the cold one."""
        request_id = self.submit(tokens, **wishes)
        self.drain()
        self.assert_cold(request_id)
        return self.finishes[request_id]

    def assert_cold(self, *request_ids: int) -> None:
        """The answers are those of runs without any engine."""
        for request_id in request_ids or tuple(self.requests):
            request = self.requests[request_id]
            cold = cold_answer(
                request.chain.tokens.tolist(),
                request.sampling,
                request.max_tokens,
                request.stop_ids,
            )
            assert self.answers[request_id] == cold, f"request {request_id}"

    def assert_leak_free(self) -> None:
        """Nothing is in flight, and a flush gives everything back."""
        assert not self.world.sequences
        assert not self.world.pending
        empty = flush(self.world)
        check_world(empty)
        assert (empty.pages.num_used, empty.slots.num_used) == (0, 0)
        if empty.tiers is not None:
            assert empty.tiers.arena.num_free == empty.tiers.arena.num_cells

    def rows(self, *request_ids: int) -> int:
        """Prompt tokens that the device read for these requests."""
        return sum(
            len(work.prefill.tokens)
            for work in self.device.rounds
            if work.prefill is not None and work.prefill.sequence_id in request_ids
        )

    def take_events(self) -> None:
        """Hear what has not been delivered."""
        self.world, events = scheduler.take_events(self.world)
        self.hear(events)

    def hear(self, events: tuple[Event, ...]) -> None:
        """Note events, of which none may follow an end."""
        for event in events:
            assert event.request_id not in self.finishes, f"{event} after the end"
            if isinstance(event, Token):
                self.answers[event.request_id].append(event.token)
            elif isinstance(event, Started):
                self.started[event.request_id] = event
            elif isinstance(event, Finished):
                self.finishes[event.request_id] = event.finish
