"""One answer in the making: the engine's events as pieces of text, then the outcome."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from ignisd.chat.output import AnswerReader, Piece
from ignisd.engine.stream import Stream
from ignisd.engine.types import Finished, FinishReason, Reuse, Started, Timings, Token
from ignisd.errors import Draining, EngineFailure, IgnisError


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request; `cached` of the prompt were not computed."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer ended. `finish_reason` is stop, length or tool_calls.

    `reasoning_open` tells that it ended before its reasoning did; `num_choices`, of how many
    answers usage and timings are the sum.
    """

    finish_reason: str
    usage: Usage
    reuse: Reuse
    timings: Timings
    reasoning_open: bool = False
    num_choices: int = 1


Step = Started | Piece | Outcome


class Reply:
    """An asynchronous iterator over `Started`, pieces and one `Outcome`.

    A call that is cancelled loses nothing: the next one goes on where it stopped. Leaving
    `async with` cancels the request unless it has finished.

    Raises, from the iteration:
        EngineFailure: the engine gave the request up.
        Draining, ModelSwitching: the daemon cut the request off.

    Args:
        stream: the engine's events.
        reader: makes text of its tokens.
        cut: why the daemon cuts off what it does.
    """

    def __init__(
        self, stream: Stream, reader: AnswerReader, cut: Callable[[], IgnisError] = Draining
    ) -> None:
        self._stream = stream
        self._reader = reader
        self._why_cut = cut
        self._steps: deque[Step] = deque()
        self._cut = False
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step:
        while not self._steps:
            if self._ended:
                raise StopAsyncIteration
            event = await anext(self._stream)
            match event:
                case Started():
                    self._steps.append(event)
                case Token(token=token):
                    self._take_token(token)
                case Finished():
                    self._take_end(event)
        return self._steps.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the request unless it has finished."""
        await self._stream.aclose()

    def _take_token(self, token: int) -> None:
        if self._cut:
            return
        self._steps.extend(self._reader.feed(token))
        if self._reader.stopped:
            self._cut = True
            self._stream.stop()

    def _take_end(self, event: Finished) -> None:
        self._ended = True
        finish, reader = event.finish, self._reader
        if finish.reason is FinishReason.ERROR:
            raise EngineFailure(finish.message or "The engine gave up this request.")
        if finish.reason is FinishReason.CANCELLED:
            raise self._why_cut()
        cut = finish.reason is not FinishReason.STOP
        self._steps.extend(reader.finish(cut=cut))
        usage = Usage(
            prompt_tokens=finish.prompt_tokens,
            cached_tokens=finish.cached_tokens,
            # Past a stop string the engine may have been a few tokens ahead; they do not count.
            completion_tokens=reader.num_tokens if self._cut else finish.generated_tokens,
            reasoning_tokens=reader.num_reasoning_tokens,
        )
        if cut and not reader.stopped:
            reason = "length"
        else:
            reason = "tool_calls" if reader.num_calls else "stop"
        outcome = Outcome(reason, usage, finish.reuse, finish.timings, reader.reasoning_open)
        self._steps.append(outcome)
