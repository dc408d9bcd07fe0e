"""The events of one request on their way to its reader: bounded, and left means cancelled."""

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ignisd.engine.types import Event, Finished, FinishReason, Request, Token

Leave = Callable[[int, FinishReason], None]
Drained = Callable[[int], None]


class Stream:
    """An asynchronous iterator over `Started`, `Token`… and one `Finished`.

    The engine puts events without waiting. At `depth` undelivered tokens the stream is `full`: the
    engine then stops stepping this one sequence, so that neither the round nor any other reader
    waits, and steps it again when the reader has taken half. Tokens of rounds that were under way
    still arrive, hence `depth` is passed by a few.

    Leaving `async with`, or `aclose`, cancels the request unless it has finished. All of it belongs
    to one event loop; there are no locks.

    Args:
        request: whose events.
        depth: undelivered tokens at which the stream counts as full.
        on_leave: called once with the request's id and a reason when the reader wants no more.
        on_drain: called with the request's id when a full stream has been read half empty.
    """

    def __init__(
        self,
        request: Request,
        *,
        depth: int = 256,
        on_leave: Leave = lambda request_id, reason: None,
        on_drain: Drained = lambda request_id: None,
    ) -> None:
        assert depth >= 1, f"a stream needs a depth of at least 1, had {depth}"
        self.request = request
        self._depth = depth
        self._on_leave = on_leave
        self._on_drain = on_drain
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._tokens = 0
        self._taken = 0
        self._full = False
        self._left = False
        self._finished = False
        self._ended = False

    @property
    def full(self) -> bool:
        """Whether the reader is so far behind that no more tokens should be made for it."""
        return self._full

    @property
    def num_taken(self) -> int:
        """Events that the reader has taken so far."""
        return self._taken

    @property
    def finished(self) -> bool:
        """Whether the last event was put (not: read)."""
        return self._finished

    def put(self, event: Event) -> None:
        """Append an event; tokens that come after the reader left are dropped."""
        assert not self._finished, f"request {self.request.id} got {event} after its end"
        if isinstance(event, Token):
            if self._left:
                return
            self._tokens += 1
            self._full = self._full or self._tokens >= self._depth
        self._finished = isinstance(event, Finished)
        self._events.append(event)
        self._wake()

    def stop(self) -> None:
        """End the answer here, as a stop: undelivered tokens vanish, `Finished` still comes."""
        self._leave(FinishReason.STOP)

    async def aclose(self) -> None:
        """Cancel the request unless it has finished; nothing more is delivered."""
        self._leave(FinishReason.CANCELLED)
        self._ended = True
        self._wake()

    def _leave(self, reason: FinishReason) -> None:
        if self._left:
            return
        self._left = True
        self._events = deque(event for event in self._events if not isinstance(event, Token))
        self._tokens = 0
        self._full = False
        if not self._finished:
            self._on_leave(self.request.id, reason)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events and not self._ended:
            assert self._waiter is None, f"request {self.request.id} has two readers"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._ended:
            raise StopAsyncIteration
        event = self._events.popleft()
        self._taken += 1
        if isinstance(event, Finished):
            self._ended = True
        elif isinstance(event, Token):
            self._tokens -= 1
            if self._full and self._tokens <= self._depth // 2:
                self._full = False
                self._on_drain(self.request.id)
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
