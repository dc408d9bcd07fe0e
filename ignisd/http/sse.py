"""A stream of server-sent events: pings in silence, errors as events, leaving cancels."""

import asyncio
from collections.abc import Callable, Iterable

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ignisd.chat import codec
from ignisd.errors import IgnisError
from ignisd.http.answers import error_object
from ignisd.http.choices import Choices, Said
from ignisd.http.options import HttpOptions

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

Encode = Callable[[Said], Iterable[object]]
"""From a step of an answer to the objects that are sent for it."""


def event(value: object) -> bytes:
    """One data event."""
    return b"data: " + codec.encode(value) + b"\n\n"


class EventStream(Response):
    """Sends answers step by step, and closes them when they end, fail, or the reader has gone.

    Args:
        choices: not iterated by anybody else from here on.
        first: steps taken from it already.
        encode: what to send for a step.
        options: how long silence and a stuck reader may last.
        headers: beside those of every event stream.
        on_error: told of an error that became the stream's last event.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        choices: Choices,
        first: Iterable[Said],
        encode: Encode,
        options: HttpOptions,
        headers: dict[str, str],
        on_error: Callable[[IgnisError], None],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._choices = choices
        self._first = tuple(first)
        self._encode = encode
        self._options = options
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the stream against the reader's leaving; whichever comes first ends both."""
        async with self._choices:
            writing = asyncio.create_task(self._write(send))
            leaving = asyncio.create_task(_until_gone(receive))
            try:
                await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if writing.done():
                    writing.result()
            finally:
                writing.cancel()
                leaving.cancel()
                await asyncio.gather(writing, leaving, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        start: Message = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        try:
            await self._send(send, start)
            await self._write_events(send)
            await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})
        except _ReaderStuckError:
            # Nothing more can be told to a reader that does not read; leaving cancels the request.
            return

    async def _write_events(self, send: Send) -> None:
        try:
            for step in self._first:
                await self._send_step(send, step)
            while True:
                try:
                    async with asyncio.timeout(self._options.ping_s):
                        step = await anext(self._choices)
                except TimeoutError:
                    await self._send_bytes(send, PING)
                except StopAsyncIteration:
                    break
                else:
                    await self._send_step(send, step)
            await self._send_bytes(send, DONE)
        except IgnisError as error:
            self._on_error(error)
            await self._send_bytes(send, event(error_object(error)))

    async def _send_step(self, send: Send, step: Said) -> None:
        body = b"".join(event(value) for value in self._encode(step))
        if body:
            await self._send_bytes(send, body)

    async def _send_bytes(self, send: Send, body: bytes) -> None:
        await self._send(send, {"type": "http.response.body", "body": body, "more_body": True})

    async def _send(self, send: Send, message: Message) -> None:
        try:
            async with asyncio.timeout(self._options.write_timeout_s):
                await send(message)
        except TimeoutError as error:
            raise _ReaderStuckError from error


class _ReaderStuckError(Exception):
    """The reader took nothing for as long as is allowed."""


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
