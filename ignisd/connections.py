"""Connections of the HTTP server that end when their client does, and descriptors for many of them.

hypercorn keeps a connection whose client has closed it until the keep-alive time is over: its
idle timer is a task that the connection waits for. Short connections then pile up until there is
no descriptor left.
"""

import asyncio
import logging
import resource
from typing import Any

import hypercorn.asyncio.run
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Event, Updated

from ignisd import log

_log = logging.getLogger("ignisd.connections")
_QUIET_S = 10.0


class Connection(TCPServer):
    """A connection that waits for nothing once its client has closed it."""

    async def protocol_send(self, event: Event) -> None:
        """Sends what the protocol says; an idle connection at its end starts no timer."""
        if isinstance(event, Updated) and self.reader.at_eof():
            await self.idle_task.stop()
        else:
            await super().protocol_send(event)

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()


def install() -> None:
    """Makes hypercorn use such connections, and raises the limit of descriptors to what is allowed.

    hypercorn has no setting for its connection class.
    """
    setattr(hypercorn.asyncio.run, "TCPServer", Connection)  # noqa: B010 - it exports no such name
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
