"""Clients that leave, devices that hang, prompts that hold others up."""

import asyncio
import random
import threading

import pytest

from ignisd.engine.types import FinishReason, Phase
from ignisd.engine.world import World
from ignisd.errors import EngineFailure
from state.retention import Marks
from tests.engine.harness import Harness, words
from tests.engine.test_loop import read, running, until
from tests.planting import catches

PATIENCE_S = 30.0


def at_rest(world: World) -> bool:
    """Nothing in flight; pages and slots are held by retained states alone."""
    held = {page for one in world.index for page in one.table}
    return (
        not (world.sequences or world.queue or world.pending or world.interrupted)
        and world.pages.num_used == len(held)
        and world.slots.num_used == len(world.index)
    )


@catches("lanes-ignore-departures", "the-queue-ignores-departures", "cancel-that-leaks")
def test_l71_a_client_that_left_costs_one_step_in_any_phase() -> None:
    for phase, turns in ((Phase.QUEUED, 2), (Phase.PREFILLING, 3), (Phase.DECODING, 20)):
        harness = Harness(num_lanes=1, chunk_tokens=64, num_host_slots=4)
        if phase is Phase.QUEUED:
            blocker = harness.submit(words(70, 9), max_tokens=500)
        victim = harness.submit(words(400, 1), marks=Marks(opener=400), max_tokens=500)
        for _ in range(turns):
            harness.turn()
        assert harness.world.sequences[victim].phase is phase
        before = len(harness.device.rounds)
        harness.cancel(victim)
        if phase is Phase.QUEUED:
            harness.cancel(blocker)
        for _ in range(3):
            harness.turn()
        assert at_rest(harness.world)
        assert len(harness.device.rounds) <= before + 1
        assert harness.finishes[victim].reason is FinishReason.CANCELLED


@catches("the-queue-ignores-departures")
def test_l73_the_queue_forgets_those_who_left() -> None:
    harness = Harness(num_lanes=1)
    harness.submit(words(70, 1), max_tokens=40)
    queued = [harness.submit(words(90, 2 + who)) for who in range(10)]
    harness.turn()
    for number, request_id in enumerate(queued[:9]):
        harness.cancel(request_id)
        assert len(harness.world.queue) == 9 - number
    harness.drain()
    harness.assert_cold(queued[9])
    assert harness.rows(*queued[:9]) == 0


@catches("lanes-ignore-departures", "cancel-that-leaks")
def test_l74_two_hundred_departures_stop_nobody() -> None:
    rng = random.Random(74)
    harness = Harness(num_lanes=2, num_host_slots=4, num_pages=80)
    for departure in range(200):
        prompt = words(rng.randint(20, 700), departure % 7)
        victim = harness.submit(prompt, marks=Marks(opener=len(prompt)), max_tokens=200)
        for _ in range(rng.randint(0, 9)):
            harness.turn()
        harness.cancel(victim)
        assert victim in harness.finishes
        if departure % 10 == 0:
            harness.ask(words(100, 50))
    harness.drain(20)
    assert at_rest(harness.world)
    harness.assert_leak_free()


@catches("a-token-without-being-asked")
def test_l76_answers_without_a_token_are_ends_like_others() -> None:
    harness = Harness()
    prompt = words(90, 1)
    none = harness.ask(prompt, max_tokens=0)
    assert (none.reason, none.generated_tokens) == (FinishReason.LENGTH, 0)
    assert none.timings.ttft_ms is None
    assert none.timings.decode_ms == 0.0
    first = harness.ask(prompt, max_tokens=1)
    assert (first.generated_tokens, first.timings.decode_ms) == (1, 0.0)
    stop = frozenset(harness.answers[first.request_id])
    stopped = harness.ask(prompt, max_tokens=9, stop_ids=stop)
    assert (stopped.reason, harness.answers[stopped.request_id]) == (FinishReason.STOP, [])
    early = harness.submit(words(900, 2))
    harness.turn()
    harness.cancel(early)
    assert harness.finishes[early].timings.ttft_ms is None
    harness.drain()
    harness.assert_leak_free()


@catches("a-stuck-device-is-waited-for", "a-dead-engine-calls-itself-alive")
def test_l77_a_device_that_hangs_ends_the_engine_and_every_answer() -> None:
    async def hang() -> None:
        async with running(round_timeout_ms=200.0) as setup:
            setup.device.gate = threading.Semaphore(2)
            streams = [setup.submit(words(60, seed), max_tokens=50) for seed in range(2)]
            try:
                ends = await asyncio.wait_for(
                    asyncio.gather(*(read(stream) for stream in streams)), 5.0
                )
                for _, finish in ends:
                    assert finish.reason is FinishReason.ERROR
                    assert finish.message
                with pytest.raises(EngineFailure, match="has not answered for 200 ms; lanes:"):
                    await setup.task
                assert not setup.engine.stats().alive
            finally:
                setup.device.gate.release(1000)
                setup.task.cancel()
                await asyncio.gather(setup.task, return_exceptions=True)

    asyncio.run(hang())


@catches("a-dead-engine-calls-itself-alive")
def test_l34_an_engine_whose_loop_died_says_so() -> None:
    async def die() -> None:
        async with running() as setup:
            setup.device.fails_at = 3
            _, finish = await read(setup.submit(words(60, 1), max_tokens=50))
            assert finish.reason is FinishReason.ERROR
            await until(setup.task.done)
            assert isinstance(setup.task.exception(), RuntimeError)
            stats = setup.engine.stats()
            assert not stats.alive
            assert stats.counters.submitted == 1

    asyncio.run(asyncio.wait_for(die(), PATIENCE_S))


@catches("prefill-before-decode")
def test_l79_a_long_prompt_slows_others_by_a_chunk_at_most() -> None:
    harness = Harness(max_context=30_000, num_pages=600, chunk_tokens=1024, decode_share=25)
    streaming = harness.submit(words(60, 1), max_tokens=400)
    for _ in range(6):
        harness.turn()
    long = harness.submit(words(25_000, 2), max_tokens=2)
    waited, most = 0, 0
    while long not in harness.finishes:
        work = harness.turn(took_ms=20.0)
        assert work is not None
        stepped = any(step.sequence_id == streaming for step in work.decode)
        waited = 0 if stepped else waited + (work.prefill is not None)
        most = max(most, waited)
    assert most == 0
    harness.drain()
    harness.assert_cold()


@catches("a-departure-goes-uncounted")
def test_l85_every_request_that_came_is_in_one_counter() -> None:
    harness = Harness(num_lanes=2)
    prompt = words(100, 1)
    ids = [harness.submit(prompt, max_tokens=12) for _ in range(6)]
    ids.append(harness.submit(words(5000, 2)))
    stop = frozenset(words(509, 3))
    ids.append(harness.submit(prompt, max_tokens=12, stop_ids=stop | frozenset(range(509))))
    for _ in range(5):
        harness.turn()
    for request_id in ids[3:6]:
        harness.cancel(request_id)
        counters = harness.world.counters
        running_now = len(harness.world.sequences)
        assert counters.submitted == sum(counters.finished.values()) + running_now
    harness.drain()
    counters = harness.world.counters
    assert dict(counters.finished) == {
        FinishReason.STOP: 1,
        FinishReason.LENGTH: 3,
        FinishReason.CANCELLED: 3,
        FinishReason.ERROR: 1,
    }
    generated = sum(finish.generated_tokens for finish in harness.finishes.values())
    assert counters.generated_tokens == generated
