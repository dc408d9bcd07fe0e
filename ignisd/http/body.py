"""Reading a request's body within bounds, and noticing when its client has gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from ignisd.errors import BodyTimeout, BodyTooLarge, UnsupportedMediaType
from ignisd.http.options import HttpOptions

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def read_json_body(
    request: Request, options: HttpOptions, most_bytes: int | None = None
) -> bytes:
    """The whole body, not yet parsed; `most_bytes` is a limit below the one of all requests.

    Raises:
        UnsupportedMediaType: it is declared as something other than plain JSON.
        BodyTooLarge: it is over the limit; the rest is left unread.
        BodyTimeout: it did not arrive in time.
        ClientGone: the client left while sending.
    """
    _check_media_type(request)
    limit_bytes = options.max_body_bytes
    if most_bytes is not None:
        limit_bytes = min(limit_bytes, most_bytes)
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit_bytes:
        raise BodyTooLarge(limit_bytes, int(announced))
    try:
        async with asyncio.timeout(options.body_timeout_s):
            return await _read(request, limit_bytes)
    except TimeoutError as error:
        raise BodyTimeout(options.body_timeout_s) from error


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves first.

    The body must have been read before.

    Raises:
        ClientGone: the client left.
    """
    gone = asyncio.create_task(_until_gone(request))
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        # Leaving comes first: it is told once, and whoever watches next would wait in vain.
        if gone.done():
            raise ClientGone
        return task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(gone, task, return_exceptions=True)


async def _read(request: Request, limit_bytes: int) -> bytes:
    chunks, size = [], 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _check_media_type(request: Request) -> None:
    declared = request.headers.get("content-type", "")
    media_type = declared.partition(";")[0].strip().lower()
    if media_type and media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaType(f"The body is {media_type!r}, but must be application/json.")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise UnsupportedMediaType(f"The body is encoded as {encoding!r}, but must not be encoded.")
