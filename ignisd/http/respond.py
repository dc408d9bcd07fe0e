"""From an answer in the making to a response, plain or as a stream, tied to its reader."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from ignisd.engine.types import Started
from ignisd.errors import RequestTimeout
from ignisd.http.answer import Answer
from ignisd.http.body import while_connected
from ignisd.http.choices import Said
from ignisd.http.counters import HttpCounters
from ignisd.http.options import HttpOptions
from ignisd.http.reuse import HEADER, reuse_header
from ignisd.http.sse import EventStream


async def respond(
    request: Request, answer: Answer, options: HttpOptions, counters: HttpCounters, *, stream: bool
) -> Response:
    """The response; a client that leaves first ends its request.

    Raises:
        ClientGone: nobody waits for it any more.
        IgnisError: it failed before its first byte.
    """
    if stream:
        try:
            return await while_connected(request, _streamed(answer, options, counters))
        except BaseException:
            await answer.choices.aclose()
            raise
    async with answer.choices:
        return await while_connected(request, _plain(answer, options))


async def _plain(answer: Answer, options: HttpOptions) -> Response:
    limit_s = options.request_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            return await answer.collect()
    except TimeoutError as error:
        raise RequestTimeout(limit_s or 0.0) from error


async def _streamed(answer: Answer, options: HttpOptions, counters: HttpCounters) -> Response:
    """The response, once it is known what was reused, or after a short wait for it."""
    first: list[Said] = []
    try:
        async with asyncio.timeout(options.header_wait_s):
            first.append(await anext(answer.choices))
    except TimeoutError:
        pass
    headers = dict(answer.headers)
    if first and isinstance(first[0].step, Started):
        headers[HEADER] = reuse_header(first[0].step.reuse)
    return EventStream(answer.choices, first, answer.chunks, options, headers, counters.count_error)
