"""What the engine's loop times, and what may be changed while it runs."""

import itertools

import pytest

from ignisd.engine.types import Token
from ignisd.errors import Overloaded
from tests.engine.harness import words
from tests.engine.test_loop import read, running


def count(histogram: object) -> int:
    return [total for _, total in histogram.buckets()][-1]  # type: ignore[attr-defined,no-any-return]


async def test_lookups_and_captures_are_timed_by_the_clock_that_is_passed_in() -> None:
    ticks = itertools.count()
    async with running(clock=lambda: float(next(ticks))) as setup:
        for _ in range(2):
            await read(setup.submit(words(300, 1)))
        stats = setup.engine.stats()
        assert count(stats.lookup_s) == stats.counters.lookups == 2
        assert stats.lookup_s.sum == pytest.approx(0.002)  # a tick each
        assert count(stats.capture_s) == sum(stats.counters.captured.values()) > 0
        assert stats.capture_s.sum > 0
        before = stats.lookup_s.sum
        await read(setup.submit(words(300, 1)))
        assert stats.lookup_s.sum == before  # a picture, not a view
        assert setup.engine.stats().lookup_s.sum > before


async def test_the_queue_and_the_limits_can_be_changed_while_it_runs() -> None:
    async with running(num_lanes=1) as setup:
        stream = setup.submit(words(60, 1), max_tokens=2000)
        async for event in stream:
            if isinstance(event, Token):
                break
        setup.engine.adjust(1, decode_share=50, reuse=False)
        waiting = setup.submit(words(60, 2))
        with pytest.raises(Overloaded, match="the limit is 1 "):
            setup.submit(words(60, 3))
        assert setup.engine.stats().queue_limit == 1
        await stream.aclose()
        await read(waiting)
        assert setup.engine.world.limits.decode_share == 50
        assert setup.engine.world.limits.reuse is False
