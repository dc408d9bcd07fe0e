"""Around every request: its identity, the key, and the rest of a body that nobody read."""

import asyncio
import hmac
import re
from collections.abc import Callable, Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ignisd.errors import IgnisError, Unauthorized
from ignisd.http.answers import error_response
from ignisd.http.options import HttpOptions

OPEN_PATHS = ("/health",)
"""Paths that ask for no key."""

_DRAIN_S = 2.0
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Guard:
    """Gives each answer its `x-request-id`, refuses requests without a known key, and reads off
    what is left of a body once the answer has begun.

    The last matters because a server that waits to hand over the rest of a body would never end
    the request, and because a client that is still sending would lose the answer.

    Args:
        app: what is guarded.
        options: the keys, and the source of identities.
        on_error: told of each refusal.
    """

    def __init__(
        self, app: ASGIApp, options: HttpOptions, on_error: Callable[[IgnisError], None]
    ) -> None:
        self._app = app
        self._keys = tuple(key.encode() for key in options.api_keys)
        self._draw_name = options.draw_name
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Guard one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req-{self._draw_name()}"
        body = _Body(receive)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            elif not message.get("more_body", False):
                await body.drain()
            await send(message)

        if scope["path"] not in OPEN_PATHS and not self._is_known(headers):
            error = Unauthorized("No valid API key was given: send it as a Bearer token.")
            self._on_error(error)
            await error_response(error)(scope, body.receive, send_guarded)
            return
        await self._app(scope, body.receive, send_guarded)

    def _is_known(self, headers: Headers) -> bool:
        if not self._keys:
            return True
        known = False
        for given in _given_keys(headers):
            for key in self._keys:
                # No early end: the time taken must not tell which key came near.
                known |= hmac.compare_digest(given, key)
        return known


class _Body:
    """A request's body, with the knowledge whether it was read to its end."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ended = False

    async def receive(self) -> Message:
        """The next message of the client."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._ended = True
        return message

    async def drain(self) -> None:
        """Read off the rest, for a short while."""
        try:
            async with asyncio.timeout(_DRAIN_S):
                while not self._ended:
                    await self.receive()
        except TimeoutError:
            return


def _given_keys(headers: Headers) -> Iterable[bytes]:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield token.strip().encode("latin-1")
    if "x-api-key" in headers:
        yield headers["x-api-key"].encode("latin-1")
