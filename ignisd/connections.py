"""The connections of the HTTP server: hypercorn's, where ours must behave otherwise.

hypercorn has no settings for any of this, so `install` puts the two classes of this module in the
place of its own:

- HTTP/1.1 and nothing else, also for clients that wish for HTTP/2 or a web socket. hypercorn keeps
  a task for an upgraded connection for ever once its client has gone; a server may pass over the
  wish.
- A message whose length is told twice is refused, and every refusal of malformed HTTP has the
  shape of the other errors.
- What a client sends ahead does not stop the reading, so that its leaving is noticed all the same.
- A client that has only closed its own side is answered. Whether it has left altogether the wire
  does not tell, so it is asked: see `Connection`.
- An idle connection ends with its client, and one that is not read ends too, so that neither
  holds a descriptor for long.
"""

import asyncio
import logging
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import h11
import hypercorn.asyncio.run
import hypercorn.protocol
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Response
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol

from ignisd import log
from ignisd.chat import codec
from ignisd.errors import IgnisError, MalformedRequest
from ignisd.http.answers import error_headers, error_object
from ignisd.http.sse import PING

_log = logging.getLogger("ignisd.connections")
_QUIET_S = 10.0
_READ_BYTES = 1 << 16
_AHEAD_BYTES = 1 << 16
_INCOMPLETE_BYTES = 1 << 14
_LAST_WORDS_S = 0.5
_FRAMING = (b"content-length", b"transfer-encoding")
_DOUBLY_FRAMED = "Content-Length and Transfer-Encoding contradict each other"
_DROPPED = (b"upgrade", b"http2-settings")


class ServerConfig(Config):
    """The HTTP server's settings.

    Args:
        on_refused: told of each request that is refused before it reaches the application.
    """

    def __init__(self, on_refused: Callable[[IgnisError], None] = lambda error: None) -> None:
        super().__init__()
        self.on_refused = on_refused
        self.h11_max_incomplete_size = _INCOMPLETE_BYTES


class Http1(H11Protocol):
    """One connection's HTTP: requests one after another, answers in the same order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turn = asyncio.Lock()
        self._ahead = False
        self._caught_up = asyncio.Event()
        self._stream_ended = asyncio.Event()
        self._eventful = False
        self._refused = False

    @property
    def answering(self) -> bool:
        """Whether the client has asked something that is not answered yet."""
        return self.stream is not None or self._ahead or self._turn.locked()

    async def handle(self, event: Event) -> None:
        """Takes what the client sent, nothing standing for its end; or the connection's end.

        Beyond an answer under way a client may send ahead; more than a little of that waits.
        """
        if not isinstance(event, RawData):
            self._ahead = False
            self._caught_up.set()
            await super().handle(event)
            return
        if self._refused:
            return
        self.connection.receive_data(event.data)
        if not self._ahead:
            await self._handle_events()
        elif len(self.connection.trailing_data[0]) > _AHEAD_BYTES:
            await self._caught_up.wait()

    async def stream_send(self, event: StreamEvent) -> None:
        """Sends a part of an answer, and goes on to what was sent ahead when that was its last."""
        if isinstance(event, Response):
            kinds = [value for name, value in event.headers if name == b"content-type"]
            self._eventful = any(kind.startswith(b"text/event-stream") for kind in kinds)
        await super().stream_send(event)

    async def probe(self) -> bool:
        """Sends a client something that it passes over; where nobody is left, a reset comes back.

        An interim answer, or a comment in a stream of events. The rest of an answer under way does
        as well. False means that there is nothing harmless to send: older clients than HTTP/1.1
        know no interim answers.
        """
        if self.connection.our_state is h11.SEND_RESPONSE:
            if self.connection.their_http_version == b"1.0":
                return False
            await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))
        elif self.connection.our_state is h11.SEND_BODY and self._eventful:
            await self._send_h11_event(h11.Data(data=PING))
        return True

    async def _check_protocol(self, event: h11.Request) -> None:
        """Where hypercorn would switch to HTTP/2; the request is answered as it came."""

    async def _handle_events(self) -> None:
        async with self._turn:
            while await self._handle_next():
                pass

    async def _handle_next(self) -> bool:
        """Takes the next part of what was received; whether there may be more."""
        if self.connection.they_are_waiting_for_100_continue:
            await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))
        try:
            event = self.connection.next_event()
            if isinstance(event, h11.Request):
                event = _plain(event)
        except h11.RemoteProtocolError as error:
            await self._refuse(error)
            return False
        if isinstance(event, h11.Request):
            await self.send(Updated(idle=False))
            await self._create_stream(event)
            return True
        if isinstance(event, h11.Data):
            await self._hand_over(Body(STREAM_ID, event.data))
            return True
        if isinstance(event, h11.EndOfMessage):
            await self._hand_over(EndBody(STREAM_ID))
            return True
        if event is h11.PAUSED:
            self._ahead = True
            self._caught_up.clear()
        return False

    async def _hand_over(self, part: StreamEvent) -> None:
        """Gives the application a part of a body, unless its answer has ended or ends meanwhile.

        It takes no more than a few parts that it does not read.
        """
        if self.stream is None:
            return
        giving = asyncio.create_task(self.stream.handle(part))
        ending = asyncio.create_task(self._stream_ended.wait())
        await asyncio.wait({giving, ending}, return_when=asyncio.FIRST_COMPLETED)
        giving.cancel()
        ending.cancel()
        await asyncio.gather(giving, ending, return_exceptions=True)

    async def _create_stream(self, request: h11.Request) -> None:
        self._stream_ended.clear()
        await super()._create_stream(request)

    async def _close_stream(self) -> None:
        self._stream_ended.set()
        await super()._close_stream()

    async def _maybe_recycle(self) -> None:
        await super()._maybe_recycle()
        if self._ahead and self.connection.our_state is h11.IDLE:
            # In a task of its own: this one is the answer's, which may be cancelled.
            self.task_group.spawn(self._catch_up)
        else:
            self._caught_up.set()

    async def _catch_up(self) -> None:
        self._ahead = False
        self._caught_up.set()
        await self._handle_events()

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        """Answers what is no HTTP, unless an answer is under way, and closes.

        After an answer what is still coming is read off for a moment: unread, it would turn the
        end into a reset, which takes the answer with it.
        """
        if self.connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            await self.send(Closed())
            return
        self._refused = True
        refusal = MalformedRequest(str(error), error.error_status_hint)
        if isinstance(self.config, ServerConfig):
            self.config.on_refused(refusal)
        body = codec.encode(error_object(refusal))
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **error_headers(refusal),
        }
        listed = [(name.encode(), value.encode()) for name, value in headers.items()]
        listed += self.config.response_headers("h11")
        await self._send_h11_event(h11.Response(status_code=refusal.status, headers=listed))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())
        await self._close_stream()
        self.task_group.spawn(self._close_soon)

    async def _close_soon(self) -> None:
        await asyncio.sleep(_LAST_WORDS_S)
        await self.send(Closed())


class Connection(TCPServer):
    """A connection that knows when its client has left.

    The end of what a client sends is no leaving: it may have closed its own side and read on. One
    that has closed both looks the same until something is sent to it, and then answers with a
    reset. So after a moment such a client is probed, and again from time to time.
    """

    unread_s = 60.0
    """How long a client may take nothing of what was sent."""
    grace_s = 0.2
    """Time between two looks for a reset; an answer that comes sooner needs no probe."""
    probe_s = 15.0
    """Time between two probes."""
    old_client_s = 1.0
    """How long a client that cannot be probed is answered after the end of what it sent."""
    _ended = False

    async def protocol_send(self, event: Event) -> None:
        """Sends what the protocol says; an idle connection at its end starts no timer.

        The end may have come first, where an answer notices late that its reader has left.
        """
        if isinstance(event, Updated) and (self._ended or self.reader.at_eof()):
            await self.idle_task.stop()
        elif isinstance(event, RawData):
            await self._send_bytes(event)
        else:
            await super().protocol_send(event)

    async def _send_bytes(self, event: RawData) -> None:
        try:
            async with asyncio.timeout(self.unread_s):
                await super().protocol_send(event)
        except TimeoutError:
            self.writer.transport.abort()
            await self.protocol.handle(Closed())

    async def _read_data(self) -> None:
        left = False
        while not left and not self.reader.at_eof():
            try:
                data = await self.reader.read(_READ_BYTES)
            except OSError:
                left = True
            else:
                # At the end this tells the protocol so, by no bytes at all.
                await self.protocol.handle(RawData(data))
        if not left:
            await self._answer_on()
        self._ended = True  # a reset is no end of what is read
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    async def _answer_on(self) -> None:
        """After the end of what the client sends: returns once it is answered or has left."""
        http = self.protocol.protocol
        assert isinstance(http, Http1)
        ended_s = self.loop.time()
        due_s = ended_s + self.grace_s
        while http.answering and not self.writer.is_closing() and not self._is_reset():
            now_s = self.loop.time()
            if now_s >= due_s:
                if await http.probe():
                    due_s = now_s + self.probe_s
                elif now_s - ended_s >= self.old_client_s:
                    return
            await asyncio.sleep(self.grace_s)

    def _is_reset(self) -> bool:
        """Whether the client's side has answered something with a reset."""
        connected: socket.socket = self.writer.get_extra_info("socket")
        return bool(connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    async def _close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.unread_s) as limit:
                await super()._close()
        if limit.expired():
            self.writer.transport.abort()


def install() -> None:
    """Makes hypercorn use the connections of this module, which it has no setting for."""
    setattr(hypercorn.asyncio.run, "TCPServer", Connection)  # noqa: B010 - it exports no such name
    setattr(hypercorn.protocol, "H11Protocol", Http1)  # noqa: B010 - nor such a one


def raise_descriptor_limit() -> None:
    """Allows this process as many descriptors, and so connections, as it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class LoopErrors:
    """The event loop's handler of what nobody caught.

    Without a descriptor for a new connection the loop reports once for each connection that waits,
    and again a second later; one line in ten seconds says as much.
    """

    def __init__(self) -> None:
        self._said_s = -_QUIET_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs a report, unless the same was said a moment ago."""
        if isinstance(context.get("exception"), asyncio.CancelledError):
            # A connection that was open at the stop; asyncio's own callback does not expect it.
            return
        message = str(context.get("message"))
        if "out of system resource" not in message:
            loop.default_exception_handler(context)
            return
        now_s = loop.time()
        if now_s - self._said_s >= _QUIET_S:
            self._said_s = now_s
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            log.write(_log, logging.ERROR, "no_descriptor", limit=limit, hint="raise ulimit -n")


def _plain(request: h11.Request) -> h11.Request:
    """The request with a path as its target and no wish for another protocol.

    Raises:
        h11.RemoteProtocolError: where its body ends is told twice, which two servers in a row
            may read differently.
    """
    names = [name for name, _ in request.headers]
    if all(name in names for name in _FRAMING):
        raise h11.RemoteProtocolError(_DOUBLY_FRAMED)
    authority, target = _parted(request.target)
    headers = list(_headers(request, authority))
    return h11.Request(
        method=request.method,
        target=target,
        headers=headers,
        http_version=request.http_version,
    )


def _headers(request: h11.Request, authority: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    for name, value in request.headers:
        if name == b"host" and authority is not None:
            yield name, authority
        elif name not in _DROPPED:
            yield name, value


def _parted(target: bytes) -> tuple[bytes | None, bytes]:
    """The authority of a target that is a whole URL, as proxies are sent, and its path."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return None, target
    cut = next((at for at, byte in enumerate(rest) if byte in b"/?"), len(rest))
    path = rest[cut:]
    return rest[:cut], path if path.startswith(b"/") else b"/" + path
