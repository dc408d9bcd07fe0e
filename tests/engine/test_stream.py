"""A request's events between engine and reader."""

import asyncio

import pytest

from ignisd.engine.stream import Stream
from ignisd.engine.types import (
    Event,
    Finish,
    Finished,
    FinishReason,
    Request,
    Reuse,
    SamplingParams,
    Started,
    Timings,
    Token,
)
from state.chain import chain_of
from state.retention import Marks
from state.spec import Class

REQUEST = Request(7, "seven", chain_of([1, 2, 3]), Marks(), SamplingParams(), max_tokens=5)


def ended(reason: FinishReason = FinishReason.STOP) -> Finished:
    finish = Finish(7, "seven", Class.INTERACTIVE, reason, 3, 0, Reuse(), Timings(0.0))
    return Finished(7, finish)


class Recorder:
    """What a stream told its engine."""

    def __init__(self, depth: int = 4) -> None:
        self.left: list[tuple[int, FinishReason]] = []
        self.drained: list[int] = []
        self.stream = Stream(
            REQUEST,
            depth=depth,
            on_leave=lambda key, reason: self.left.append((key, reason)),
            on_drain=self.drained.append,
        )


async def test_events_come_in_order_and_end() -> None:
    stream = Recorder().stream
    events: list[Event] = [Started(7, 0, Reuse()), Token(7, 1), Token(7, 2), ended()]
    reader = asyncio.create_task(_read(stream))
    for event in events:
        await asyncio.sleep(0)
        stream.put(event)
    assert await reader == events
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def _read(stream: Stream) -> list[Event]:
    return [event async for event in stream]


async def test_leaving_cancels_once_and_not_after_the_end() -> None:
    recorder = Recorder()
    async with recorder.stream as stream:
        stream.put(Token(7, 1))
    await stream.aclose()
    assert recorder.left == [(7, FinishReason.CANCELLED)]
    assert await _read(stream) == []
    done = Recorder()
    async with done.stream as stream:
        stream.put(ended())
        assert await _read(stream) == [ended()]
    assert done.left == []


async def test_leaving_wakes_a_reader_in_another_task() -> None:
    stream = Recorder().stream
    reader = asyncio.create_task(_read(stream))
    await asyncio.sleep(0)
    await stream.aclose()
    assert await asyncio.wait_for(reader, 5) == []


async def test_a_stop_drops_tokens_and_still_ends() -> None:
    recorder = Recorder()
    stream = recorder.stream
    for token in range(3):
        stream.put(Token(7, token))
    assert await anext(stream) == Token(7, 0)
    stream.stop()
    stream.put(Token(7, 9))
    stream.put(ended())
    assert await _read(stream) == [ended()]
    assert recorder.left == [(7, FinishReason.STOP)]


async def test_full_until_half_is_taken() -> None:
    recorder = Recorder(depth=4)
    stream = recorder.stream
    for token in range(5):
        assert stream.full is (token >= 4)
        stream.put(Token(7, token))
    taken = 0
    while stream.full:
        await anext(stream)
        taken += 1
        assert stream.num_taken == taken
    assert taken == 3
    assert recorder.drained == [7]


async def test_nothing_follows_the_end() -> None:
    stream = Recorder().stream
    stream.put(ended())
    with pytest.raises(AssertionError, match="after its end"):
        stream.put(Token(7, 1))


async def test_a_cancelled_reader_can_read_again() -> None:
    stream = Recorder().stream
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.01)
    stream.put(Token(7, 1))
    assert await anext(stream) == Token(7, 1)
