"""Around every request: its identity, the key, and the rest of a body that nobody read."""

import asyncio
import re
from collections.abc import Callable, Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ignisd.errors import IgnisError, Unauthorized
from ignisd.http.answers import error_response
from ignisd.http.options import HttpOptions

OPEN_PATHS = ("/health",)
"""Paths that ask for no key."""

_DRAIN_S = 2.0
_SCOPE_KEY = "ignisd.key"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def scope_key(request: Request) -> bytes | None:
    """The API key by which the request's prompts are kept apart; None where all are shared."""
    key: bytes | None = request.scope.get(_SCOPE_KEY)
    return key


class Guard:
    """Gives each answer its `x-request-id`, refuses requests from the wrong page, under the wrong
    name or without a known key, and reads off what is left of a body once the answer has begun.

    The last matters because a server that waits to hand over the rest of a body would never end
    the request, and because a client that is still sending would lose the answer.

    Args:
        app: what is guarded.
        options: keys, names and origins, and the source of identities.
        on_error: told of each refusal.
    """

    def __init__(
        self, app: ASGIApp, options: HttpOptions, on_error: Callable[[IgnisError], None]
    ) -> None:
        self._app = app
        self._options = options
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Guard one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req-{self._options.draw_name()}"
        readable = self._options.origins.answer_headers(headers)
        body = _Body(receive)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update({"x-request-id": request_id, **readable})
            elif not message.get("more_body", False):
                await body.drain()
            await send(message)

        app = self._app
        if scope["path"] not in OPEN_PATHS:
            try:
                app = self._admitted(scope, headers)
            except IgnisError as error:
                self._on_error(error)
                app = error_response(error)
        await app(scope, body.receive, send_guarded)

    def _admitted(self, scope: Scope, headers: Headers) -> ASGIApp:
        """What answers the request, once name, origin and key have been checked."""
        options = self._options
        options.origins.check(headers)
        if scope["method"] == "OPTIONS":
            preflight = options.origins.preflight(headers)
            if preflight is not None:  # a browser asks this without a key
                return Response(status_code=204, headers=preflight)
        if options.keys.num_keys:
            key = options.keys.find(_given_keys(headers))
            if key is None:
                raise Unauthorized("No valid API key was given: send it as a Bearer token.")
            if options.scoped:
                scope[_SCOPE_KEY] = key
        return self._app


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
