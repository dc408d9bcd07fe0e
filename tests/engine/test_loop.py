"""The engine as a whole: streams, departures, overload, death, overlap of host and device."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from ignisd.engine.loop import Engine
from ignisd.engine.stream import Stream
from ignisd.engine.types import (
    Finish,
    Finished,
    FinishReason,
    Notice,
    Request,
    Round,
    RoundResult,
    SamplingParams,
    Started,
    Token,
)
from ignisd.engine.world import Limits, new_world
from ignisd.errors import Draining, EngineFailure, Overloaded
from state.chain import chain_of
from state.retention import Marks, RetentionPolicy
from tests.engine.harness import FINGERPRINT, words
from tests.fake_device import FakeDevice, cold_answer

Clock = Callable[[], float]


@dataclass
class Watched:
    """A fake device that notes which calls came when and on which thread, and may be held up."""

    inner: FakeDevice
    calls: list[tuple[str, int]] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    gate: threading.Semaphore | None = None
    fails_at: int | None = None

    def run(self, work: Round) -> object:
        self.calls.append(("run", work.number))
        self.threads.add(threading.get_ident())
        if work.number == self.fails_at:
            raise RuntimeError("the device is on fire")
        return self.inner.run(work)

    def fetch(self, handle: object) -> RoundResult:
        result = self.inner.fetch(handle)
        if self.gate is not None:
            self.gate.acquire()
        self.calls.append(("fetch", result.number))
        self.threads.add(threading.get_ident())
        return result


@dataclass
class Setup:
    """A running engine."""

    engine: Engine
    device: Watched
    finishes: list[Finish]
    task: "asyncio.Task[None]"
    next_id: int = 0

    def submit(self, tokens: list[int], max_tokens: int = 5, **more: Any) -> Stream:
        self.next_id += 1
        return self.engine.submit(
            Request(
                id=self.next_id,
                name="test",
                chain=chain_of(tokens),
                sampling=SamplingParams(),
                max_tokens=max_tokens,
                **{"marks": Marks(opener=len(tokens)), **more},
            )
        )


def _clock() -> float:
    return time.monotonic() * 1000.0


@asynccontextmanager
async def running(
    *, num_lanes: int = 2, num_pages: int = 100, clock: Clock = _clock, **options: Any
) -> AsyncIterator[Setup]:
    """An engine on a fake device; stopped, and found leak-free, at the end."""
    limits = Limits(num_lanes, max_context=4096, chunk_tokens=64)
    world = new_world(
        limits,
        RetentionPolicy(),
        FINGERPRINT,
        num_pages=num_pages,
        num_device_slots=0,
        num_host_slots=4,
    )
    device = Watched(FakeDevice(num_pages, num_lanes, 4, 64))
    finishes: list[Finish] = []
    engine = Engine(world, device, clock=clock, check=True, on_finish=finishes.append, **options)
    task = asyncio.create_task(engine.run())
    yield Setup(engine, device, finishes, task)
    if not task.done():
        await asyncio.wait_for(engine.stop(), 30)
        await task
        assert not engine.world.sequences
        assert not engine.world.pending


async def read(stream: Stream) -> tuple[list[int], Finish]:
    """All tokens, and how it ended."""
    tokens: list[int] = []
    async with stream:
        async for event in stream:
            if isinstance(event, Token):
                tokens.append(event.token)
            elif isinstance(event, Finished):
                return tokens, event.finish
    raise AssertionError("the stream ended without an end")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the engine will do."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen within 20 s")


def cold(tokens: list[int], count: int) -> list[int]:
    return cold_answer(tokens, SamplingParams(), count, frozenset())


async def test_requests_are_answered_and_reused() -> None:
    async with running() as setup:
        prompt = words(300, 1)
        first = await read(setup.submit(prompt))
        second = await read(setup.submit(prompt))
        assert first[0] == second[0] == cold(prompt, 5)
        assert (first[1].cached_tokens, second[1].cached_tokens) == (0, 256)
        assert [finish.reason for finish in setup.finishes] == [FinishReason.LENGTH] * 2
        assert setup.engine.stats().counters.device_tokens == 256


async def test_a_round_is_dispatched_before_the_one_before_is_fetched() -> None:
    async with running() as setup:
        await read(setup.submit(words(60, 1), max_tokens=8))
        calls = setup.device.calls
        assert calls[:5] == [("run", 1), ("run", 2), ("fetch", 1), ("run", 3), ("fetch", 2)]
        assert len(setup.device.threads) == 1
        assert threading.get_ident() not in setup.device.threads


async def test_many_at_once_with_departures() -> None:
    async with running(num_lanes=3) as setup:
        prompts = [words(40 + 37 * place, place % 5) for place in range(30)]
        streams = [setup.submit(prompt, max_tokens=20) for prompt in prompts]

        async def leave_early(stream: Stream) -> None:
            async with stream:
                async for event in stream:
                    if isinstance(event, Started):
                        return

        tasks = [
            asyncio.create_task(leave_early(stream) if place % 3 == 0 else read(stream))
            for place, stream in enumerate(streams)
        ]
        answers = await asyncio.wait_for(asyncio.gather(*tasks), 60)
        for place, answer in enumerate(answers):
            if answer is not None:
                assert answer[0] == cold(prompts[place], 20)
        reasons = [finish.reason for finish in setup.finishes]
        assert len(reasons) == 30
        assert reasons.count(FinishReason.CANCELLED) == 10


async def test_a_stream_that_is_closed_unread_cancels() -> None:
    async with running(num_lanes=1) as setup:
        blocker = setup.submit(words(60, 1), max_tokens=50)
        queued = setup.submit(words(60, 2))
        await queued.aclose()
        await read(blocker)
        cancelled = [finish for finish in setup.finishes if finish.request_id == 2]
        assert [finish.reason for finish in cancelled] == [FinishReason.CANCELLED]


async def test_a_stop_by_the_reader_counts_as_a_stop() -> None:
    async with running() as setup:
        stream = setup.submit(words(60, 1), max_tokens=500)
        async for event in stream:
            if isinstance(event, Token):
                stream.stop()
            if isinstance(event, Finished):
                assert event.finish.reason is FinishReason.STOP
        assert setup.finishes[0].generated_tokens < 500


async def test_overload_is_refused_with_limit_and_flag() -> None:
    async with running(num_lanes=1, queue_limit=3) as setup:
        setup.device.gate = threading.Semaphore(0)
        streams = [setup.submit(words(60, 1), max_tokens=30)]
        await until(lambda: bool(setup.engine.world.running))
        streams += [setup.submit(words(60, seed)) for seed in range(3)]
        with pytest.raises(Overloaded, match=r"limit is 3 \(--server-queue\)") as refused:
            setup.submit(words(60, 9))
        assert refused.value.status == 429
        setup.device.gate.release(1000)
        for stream in streams:
            await read(stream)
        assert setup.engine.stats().counters.refused == 1
        assert setup.engine.stats().counters.submitted == 4


async def test_a_slow_reader_holds_nobody_up() -> None:
    async with running(stream_depth=8) as setup:
        slow_prompt, prompt = words(60, 1), words(60, 2)
        slow = setup.submit(slow_prompt, max_tokens=100)
        answer, _ = await read(setup.submit(prompt, max_tokens=100))
        assert answer == cold(prompt, 100)
        held = setup.engine.world.sequences[slow.request.id]
        assert held.held
        assert 8 <= held.generated <= 11
        assert (await read(slow))[0] == cold(slow_prompt, 100)
        assert setup.engine.stats().counters.holds >= 1


async def test_a_reader_that_takes_nothing_is_cancelled() -> None:
    now_ms = 0.0
    async with running(stream_depth=4, clock=lambda: now_ms) as setup:
        stream = setup.submit(words(60, 1), max_tokens=100)
        await until(lambda: stream.full)
        now_ms = 59_000.0
        await read(setup.submit(words(60, 2), max_tokens=1))
        await anext(stream)
        now_ms = 61_000.0
        await read(setup.submit(words(60, 3), max_tokens=1))
        assert len(setup.finishes) == 2
        now_ms = 122_000.0
        await read(setup.submit(words(60, 4), max_tokens=1))
        reasons = {finish.request_id: finish.reason for finish in setup.finishes}
        assert reasons[stream.request.id] is FinishReason.CANCELLED


async def test_a_stalled_reader_is_noticed_while_nothing_else_happens() -> None:
    async with running(stream_depth=4, stall_ms=30.0) as setup:
        stream = setup.submit(words(60, 1), max_tokens=100)
        await until(lambda: stream.finished)
        assert setup.finishes[0].reason is FinishReason.CANCELLED


async def test_idle_costs_no_turns() -> None:
    async with running() as setup:
        await read(setup.submit(words(60, 1)))
        await asyncio.sleep(0.01)
        before = setup.engine.stats()
        calls = len(setup.device.calls)
        await asyncio.sleep(0.1)
        after = setup.engine.stats()
        assert (after.plan_ms, len(setup.device.calls)) == (before.plan_ms, calls)
        assert not after.busy


async def test_death_ends_every_stream_with_an_error() -> None:
    async with running(num_lanes=1) as setup:
        setup.device.fails_at = 4
        streams = [setup.submit(words(60, seed), max_tokens=50) for seed in range(3)]
        answers = await asyncio.wait_for(asyncio.gather(*map(read, streams)), 20)
        assert [finish.reason for _, finish in answers] == [FinishReason.ERROR] * 3
        assert answers[0][0] == cold(words(60, 0), 50)[: len(answers[0][0])]
        assert "RuntimeError" in (answers[0][1].message or "")
        with pytest.raises(RuntimeError, match="on fire"):
            await setup.task
        assert not setup.engine.stats().alive
        assert len(setup.finishes) == 3
        with pytest.raises(EngineFailure):
            setup.submit(words(60, 1))


async def test_stop_finishes_what_runs_and_takes_no_more() -> None:
    async with running() as setup:
        prompt = words(60, 1)
        stream = setup.submit(prompt, max_tokens=30)
        stopping = asyncio.create_task(setup.engine.stop())
        await asyncio.sleep(0)
        with pytest.raises(Draining):
            setup.submit(prompt)
        assert (await read(stream))[0] == cold(prompt, 30)
        await asyncio.wait_for(stopping, 20)
        await setup.task


async def test_stop_cuts_what_takes_longer_than_the_grace() -> None:
    async with running(num_lanes=1) as setup:
        setup.device.gate = threading.Semaphore(3)
        streams = [setup.submit(words(60, seed), max_tokens=500) for seed in range(2)]
        stopping = asyncio.create_task(setup.engine.stop(grace_ms=20.0))
        await asyncio.sleep(0.1)
        setup.device.gate.release(1000)
        await asyncio.wait_for(stopping, 20)
        for stream in streams:
            assert (await read(stream))[1].reason is FinishReason.CANCELLED


async def test_flush_gives_up_what_is_retained() -> None:
    async with running() as setup:
        prompt = words(300, 1)
        await read(setup.submit(prompt))
        assert sum(setup.engine.stats().retained.values()) == 1
        setup.engine.flush()
        assert (await read(setup.submit(prompt)))[1].cached_tokens == 0


async def test_progress_tells_a_stuck_device_from_an_idle_one() -> None:
    now_ms = 0.0
    async with running(clock=lambda: now_ms) as setup:
        setup.device.gate = threading.Semaphore(0)
        stream = setup.submit(words(60, 1))
        await until(lambda: bool(setup.device.calls))
        now_ms = 5000.0
        stats = setup.engine.stats()
        assert stats.busy
        assert stats.idle_ms == 5000.0
        setup.device.gate.release(1000)
        await read(stream)


async def test_rest_is_no_standstill_of_the_round_that_ends_it() -> None:
    now_ms = 0.0
    async with running(clock=lambda: now_ms) as setup:
        await read(setup.submit(words(60, 1)))
        await until(lambda: not setup.engine.stats().busy)
        now_ms = 3_600_000.0
        idle_ms = []
        plain = setup.device.run

        def run(work: Round) -> object:
            idle_ms.append(setup.engine.stats().idle_ms)
            return plain(work)

        setup.device.run = run  # type: ignore[method-assign]
        await read(setup.submit(words(60, 2)))
        assert idle_ms[0] == 0.0


async def test_a_device_that_does_not_answer_ends_the_engine() -> None:
    async with running(round_timeout_ms=50.0) as setup:
        setup.device.gate = threading.Semaphore(0)
        stream = setup.submit(words(60, 1))
        try:
            _, finish = await asyncio.wait_for(read(stream), 20)
            assert finish.reason is FinishReason.ERROR
            with pytest.raises(EngineFailure, match=r"not answered for 50 ms; lanes: \{0: 'decod"):
                await setup.task
        finally:
            setup.device.gate.release(1000)


async def test_what_the_operator_should_read_is_told_once() -> None:
    told: list[Notice] = []
    async with running(on_notice=told.append) as setup:
        for second in range(12):
            head = [*words(20, 1), second, *words(80, 2)]
            stream = setup.submit(head, marks=Marks(100, 101, 101))
            _, finish = await read(stream)
            assert (finish.reuse.volatile_at is None) is (second < 3)
    assert [notice.event for notice in told] == ["volatile system prompt"]
    assert told[0].facts["offset"] == 20
    assert setup.engine.stats().counters.volatile == 9
