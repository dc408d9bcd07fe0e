"""Clients that leave, devices and threads that fail, while state moves between the tiers."""

import asyncio
import random
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from ignisd.engine.types import Finished, FinishReason, Phase, Tier
from state.chain import chain_of
from state.retention import Marks
from state.spec import Class
from state.tiers.format import name_of
from tests.cases.test_disk import KEPT, asked, filed, filing
from tests.engine.below import Tiered, check_bytes
from tests.engine.harness import words
from tests.engine.serving import PATIENCE_S, serving
from tests.engine.test_loop import read, until
from tests.planting import catches
from tests.state.tiers.faulty_disk import FaultyDisk


@catches("a-completion-needs-its-request")
def test_v91_a_file_that_comes_for_nobody_is_kept_and_ends_nothing() -> None:
    for first in ("it left", "the file came"):
        harness = filing()
        filed(harness, 1)
        harness.slow_files = True
        gone = harness.submit(words(300, 1), marks=Marks(opener=300))
        harness.turn()
        assert harness.phase(gone) is Phase.RESTORING
        if first == "it left":
            harness.cancel(gone)
            harness.file()
        else:
            harness.file()
            harness.cancel(gone)
        harness.slow_files = False
        harness.settle()
        assert harness.on_disk(words(300, 1), KEPT) is not None
        assert asked(harness, 1) == KEPT
        harness.assert_leak_free()


@catches("a-completion-needs-its-request", "orphans-stay")
def test_v91_an_evicted_request_that_leaves_while_its_file_moves_takes_the_file_along() -> None:
    for moves in ("down", "up"):
        harness = filing(num_lanes=1)
        agent = harness.submit(words(200, 1), max_tokens=90, cls=Class.AGENT, reuse=False)
        harness.until_stepped(agent, 5)
        harness.slow_files = moves == "down"
        person = harness.submit(words(80, 2), max_tokens=40)
        harness.until_phase(Phase.EVICTED, agent)
        harness.until(partial(_is_filed, harness))
        if moves == "up":
            harness.until(partial(_has_files, harness))
            harness.slow_files = True
            harness.until_phase(Phase.RESTORING, agent)
            assert harness.tiers.reading
        harness.cancel(agent)
        harness.slow_files = False
        harness.drain()
        harness.settle()
        harness.assert_cold(person)
        assert not [path for path in harness.files() if path.name.startswith("live")]
        harness.assert_leak_free()


def _has_files(harness: Tiered) -> bool:
    return len(harness.shelf.index) > 0


def _is_filed(harness: Tiered) -> bool:
    return bool(harness.tiers.writing) or _has_files(harness)


def _stands(harness: Tiered, request_id: int, state: str) -> bool:
    """Whether a request has come so far."""
    if state == "reading":
        return bool(harness.tiers.reading)
    if state == "raised":
        return harness.world.sequences[request_id].moved_pages > 0
    if state == "ending":
        return harness.stepped(request_id) >= 5
    return harness.phase(request_id) == state


@catches("a-read-file-is-held-for-ever")
def test_v92_who_leaves_in_whatever_state_gives_back_what_it_had_reserved() -> None:
    for state in ("queued", "reading", "raised", "prefilling", "decoding", "ending"):
        harness = filing(num_lanes=1, window_pages=1, chunk_tokens=64, max_context=2048)
        filed(harness, 1)
        harness.slow_files = state == "reading"
        if state == "queued":
            harness.submit(words(70, 50), max_tokens=20)
        gone = harness.submit(
            [*words(300, 1), *words(400, 3)], marks=Marks(opener=700), max_tokens=6
        )
        harness.until(partial(_stands, harness, gone, state))
        harness.cancel(gone)
        harness.slow_files = False
        harness.drain()
        harness.settle()
        assert all(one.held == 0 for one in (*harness.shelf.index, *harness.arena.index)), state
        finish = harness.ask(words(300, 1), marks=Marks(opener=300))
        assert finish.cached_tokens == KEPT, state
        harness.assert_leak_free()


@catches("a-match-holds-pages-while-it-waits", "the-queue-ignores-departures")
def test_v94_a_hundred_that_matched_and_left_hold_nothing_back() -> None:
    harness = Tiered(num_lanes=2, num_pages=30, max_context=1600, num_host_slots=3, num_cells=60)
    prompts = [words(300, who) for who in range(3)]
    for prompt in prompts:
        harness.ask(prompt, marks=Marks(opener=300))
    agent = harness.submit(words(500, 9), max_tokens=200, reuse=False)
    harness.until_stepped(agent, 3)
    waiting = [
        harness.submit([*prompts[who % 3], *words(900, 10 + who)], max_tokens=2)
        for who in range(100)
    ]
    for _ in range(5):
        harness.turn()
    for key in waiting:
        harness.cancel(key)
    large = harness.submit(words(1200, 50), marks=Marks(opener=1200), max_tokens=2)
    harness.drain()
    harness.assert_cold(agent, large)
    assert harness.rows(*waiting) == 0
    assert sum(harness.on_device(prompt, 256) for prompt in prompts) < 3, "what matched gave way"
    harness.assert_leak_free()


@catches("an-end-on-the-way-down-leaks", "orphans-stay", "cancel-that-leaks")
def test_l74_a_storm_of_departures_below_the_device_leaves_all_as_it_was() -> None:
    rng = random.Random(74)
    harness = filing(
        num_lanes=2, num_host_slots=3, num_pages=50, num_cells=60, low_cells=30, window_pages=2
    )
    left: dict[Phase | None, int] = {}
    for departure in range(220):
        prompt = words(rng.randint(40, 700), departure % 9)
        cls = rng.choice((Class.AGENT, Class.INTERACTIVE))
        harness.submit(prompt, marks=Marks(opener=len(prompt)), max_tokens=80, cls=cls)
        for _ in range(rng.randint(0, 7)):
            harness.slow_files = rng.random() < 0.7
            harness.turn()
        if len(harness.world.sequences) < 5:
            continue
        victim = rng.choice(list(harness.world.sequences))
        if departure % 3 == 0:
            short = (Phase.EVICTING, Phase.EVICTED, Phase.RESTORING)
            moving = [key for key in harness.world.sequences if harness.phase(key) in short]
            victim = rng.choice(moving or [victim])
        phase = harness.phase(victim)
        left[phase] = left.get(phase, 0) + 1
        harness.cancel(victim)
    for key in list(harness.world.sequences):
        harness.cancel(key)
    harness.slow_files = False
    assert set(left) >= set(Phase), left
    assert sum(left.values()) > 150
    assert harness.ask(words(100, 50)).cached_tokens == 0
    harness.assert_leak_free()


@catches("window-holds-decoding-up")
def test_l79_lanes_step_in_every_round_that_moves_a_window() -> None:
    harness = Tiered(num_lanes=3, window_pages=1, num_pages=60, max_context=2048, decode_share=0)
    streams = [harness.submit(words(60, who), max_tokens=500) for who in range(2)]
    agent = harness.submit(words(900, 9), max_tokens=300, cls=Class.AGENT, reuse=False)
    harness.until_stepped(agent, 10)
    harness.submit(words(1900, 10), max_tokens=3)
    moving = 0
    while harness.phase(agent) in (Phase.DECODING, Phase.EVICTING):
        work = harness.turn()
        assert work is not None
        if work.lowers:
            moving += 1
            assert {step.sequence_id for step in work.decode} >= set(streams)
    assert moving > 5
    harness.drain()
    harness.assert_cold()


@catches("a-departure-goes-uncounted")
def test_l85_who_leaves_while_it_is_away_is_counted_with_what_it_had_said() -> None:
    harness = Tiered(num_lanes=1)
    agents = [harness.submit(words(80, who), max_tokens=90, cls=Class.AGENT) for who in range(2)]
    harness.until_said(agents[0], 20)
    person = harness.submit(words(80, 5), max_tokens=30)
    harness.until_phase(Phase.EVICTED, agents[0])
    said = len(harness.answers[agents[0]])
    harness.cancel(agents[0])
    finish = harness.finishes[agents[0]]
    assert (finish.reason, finish.generated_tokens) == (FinishReason.CANCELLED, said)
    assert finish.evictions == 1
    harness.drain()
    counters = harness.world.counters
    assert counters.finished[FinishReason.CANCELLED] == 1
    assert counters.generated_tokens == said + 30 + 90
    assert person in harness.finishes


class Gate(FaultyDisk):
    """A disk on which writes wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.threads: set[int] = set()

    def write(self, fd: int, parts: Sequence[memoryview], offset: int) -> int:
        """Wait, then write."""
        assert self.go_on.wait(PATIENCE_S)
        self.threads.add(threading.get_ident())
        return super().write(fd, parts, offset)


@catches("files-hold-the-engine-up")
def test_l68_files_are_written_by_threads_that_touch_no_device_and_hold_nobody_up() -> None:
    async def serve() -> None:
        made = filing(num_lanes=2)
        made.disk = gate = Gate()
        async with serving(made) as below:
            timer = threading.Timer(10.0, gate.go_on.set)
            timer.start()
            for who in range(6):
                prompt = words(300, who)
                _, finish = await read(below.submit(prompt))
                assert finish.reason is FinishReason.LENGTH
            assert below.engine.world.tiers is not None
            assert below.engine.world.tiers.writing, "the first file still waits"
            assert not gate.go_on.is_set()
            timer.cancel()
            gate.go_on.set()
            await until(lambda: below.engine.world.counters.files_written > 0)
            _, finish = await read(below.submit(words(300, 0)))
            assert finish.reuse.tier in (Tier.KV_DISK, Tier.KV_RAM)
            assert len(below.device.threads) == 1
            assert gate.threads
            assert not gate.threads & below.device.threads

    asyncio.run(asyncio.wait_for(serve(), PATIENCE_S))


def names(root: Path) -> set[str]:
    """The files of states below a folder."""
    return {path.name for path in root.rglob("*.state*")}


@catches("what-is-retained-is-written-after-an-engine-error")
def test_l122_after_an_engine_error_nothing_more_is_written() -> None:
    async def die(made: Tiered, after: int) -> None:
        async with serving(made, drain_ms=5_000.0) as below:
            for who in range(3):
                await read(below.submit(words(300, who)))
            await until(lambda: below.engine.world.counters.files_written >= 2)
            below.device.fails_at = below.engine.world.next_round + after
            stream = below.submit(words(700, 5), max_tokens=40)
            async for event in stream:
                if isinstance(event, Finished):
                    assert event.finish.reason is FinishReason.ERROR
            await until(below.task.done)
            with pytest.raises(RuntimeError):
                below.task.result()

    good = {name_of(chain_of(words(KEPT, who)), None) for who in range(3)}
    assert chain_of(words(300, 0)).prefix(KEPT) == chain_of(words(KEPT, 0))
    for after in (3, 16):
        made = filing(chunk_tokens=64)
        asyncio.run(asyncio.wait_for(die(made, after), PATIENCE_S))
        assert names(made.root) <= good
        again = filing(root=made.root)
        finish = again.ask(words(700, 5), marks=Marks(opener=700))
        assert finish.cached_tokens == 0
        assert asked(again, 0) == KEPT
        check_bytes(again)
