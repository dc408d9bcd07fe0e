"""The answers to one request, which may ask for several: their steps as they come."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from starlette.requests import Request

from ignisd.chat.output import AnswerReader
from ignisd.engine.types import Request as Wanted
from ignisd.errors import Draining, IgnisError
from ignisd.http.reply import Outcome, Reply, Step, Usage
from ignisd.http.serving import Serving

_TAKEN = "ignisd.taken"


@dataclass(frozen=True, slots=True)
class Said:
    """A step of one of the answers, which are counted from 0."""

    index: int
    step: Step


class Choices:
    """An asynchronous iterator over the steps of some replies, in the order in which they come.

    A call that is cancelled loses nothing. Leaving `async with` cancels what has not finished.

    Raises, from the iteration, what one of the replies raises.
    """

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = tuple(replies)
        self._next: dict[asyncio.Task[Step | None], int] = {}
        self._begun = False

    @property
    def num_choices(self) -> int:
        """How many answers there are."""
        return len(self._replies)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Said:
        if len(self._replies) == 1:
            return Said(0, await anext(self._replies[0]))
        if not self._begun:
            self._begun = True
            for index in range(len(self._replies)):
                self._await_next(index)
        while self._next:
            await asyncio.wait(self._next, return_when=asyncio.FIRST_COMPLETED)
            done = next(task for task in self._next if task.done())
            index = self._next.pop(done)
            step = done.result()
            if step is not None:
                self._await_next(index)
                return Said(index, step)
        raise StopAsyncIteration

    def _await_next(self, index: int) -> None:
        self._next[asyncio.create_task(_step_of(self._replies[index]))] = index

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel what has not finished."""
        for task in self._next:
            task.cancel()
        await asyncio.gather(*self._next, return_exceptions=True)
        for reply in self._replies:
            await reply.aclose()


async def take(
    request: Request,
    into: Serving,
    wanted: Sequence[Wanted],
    readers: Sequence[AnswerReader],
) -> Choices:
    """Submit what a request asks for, all of it or nothing; one reader reads each answer.

    Raises:
        Overloaded, EngineFailure: the engine does not take it.
        ModelSwitching, Draining: it takes nothing any more.
    """
    replies: list[Reply] = []
    try:
        while len(replies) < len(wanted):
            place = len(replies)
            stream = into.engine.submit(wanted[place])
            replies.append(Reply(stream, readers[place], into.cut))
    except IgnisError as error:
        await Choices(replies).aclose()
        # An engine that takes nothing more does not know why.
        raise into.closing() if isinstance(error, Draining) else error from None
    request.scope[_TAKEN] = True
    return Choices(replies)


def was_taken(request: Request) -> bool:
    """Whether the engine has taken what a request asks for; else an error is its refusal."""
    return bool(request.scope.get(_TAKEN))


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """What several answers to one prompt amount to, which the first of them read."""
    first = outcomes[0]
    if len(outcomes) == 1:
        return first
    lasts = [one.timings.last_token_ms for one in outcomes if one.timings.last_token_ms is not None]
    return replace(
        first,
        usage=Usage(
            prompt_tokens=first.usage.prompt_tokens,
            cached_tokens=first.usage.cached_tokens,
            completion_tokens=sum(each.usage.completion_tokens for each in outcomes),
            reasoning_tokens=sum(each.usage.reasoning_tokens for each in outcomes),
        ),
        timings=replace(first.timings, last_token_ms=max(lasts, default=None)),
        num_choices=len(outcomes),
    )


async def _step_of(reply: Reply) -> Step | None:
    """The next step, None after the last."""
    return await anext(reply, None)
