"""How a request gets to the model that it is for: at once, or after a wait until that is loaded."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct, json
from starlette.requests import Request

from ignisd.chat import codec
from ignisd.chat.asked import AGENT_SUFFIX
from ignisd.chat.checkpoint import ModelInfo
from ignisd.errors import Loading, ModelNotFound, Overloaded
from ignisd.http.body import read_json_body, while_connected
from ignisd.http.intake import Intake
from ignisd.http.options import HttpOptions
from ignisd.http.service import Service, ServicePhase
from ignisd.http.serving import Serving

P = TypeVar("P")


class _WireName(Struct):
    """As much of any body as names a model."""

    model: str | None = None


_NAME = json.Decoder(_WireName)


class Entrance:
    """Lets requests in.

    Args:
        service: what serves.
        intake: decodes bodies in its threads.
        options: bounds.
    """

    def __init__(self, service: Service, intake: Intake, options: HttpOptions) -> None:
        self._service = service
        self._intake = intake
        self._options = options

    async def read(self, request: Request) -> bytes:
        """The body of a request that may be served.

        Raises:
            IgnisError: nothing serves, or the body cannot be read.
        """
        self._service.check()
        return await read_json_body(request, self._options)

    @asynccontextmanager
    async def admitted(
        self, request: Request, body: bytes, prepare: Callable[[ModelInfo], Coroutine[Any, Any, P]]
    ) -> AsyncIterator[tuple[Serving, P]]:
        """What serves a request, and the request prepared for just that.

        Until the block is left the engine is not stopped, but for want of time.

        Args:
            request: whose client may leave meanwhile.
            body: read already.
            prepare: makes the body ready for a model; raises ModelNotFound when it is for another.

        Raises:
            IgnisError: the request is refused.
            ClientGone: nobody waits for the answer any more.
        """
        with ExitStack() as held:
            name = await self._name_if_none_serves(body)
            serving = await self._let_in(request, name, held)
            try:
                prepared = await while_connected(request, prepare(serving.model))
            except ModelNotFound as error:
                held.close()
                serving = await self._let_in(request, error.wanted, held)
                prepared = await while_connected(request, prepare(serving.model))
            yield serving, prepared

    async def _name_if_none_serves(self, body: bytes) -> str | None:
        """The model that a body names, where it is better known before another one is loaded."""
        if self._service.phase is ServicePhase.READY:
            return None
        return await self._intake.run(partial(_named, body))

    async def _let_in(self, request: Request, name: str | None, held: ExitStack) -> Serving:
        if self._service.num_waiting >= self._options.max_preparing:
            raise Overloaded(self._options.max_preparing)
        place = held.enter_context(self._service.line_up(name))
        if place.settled:
            return await place.wait()
        try:
            async with asyncio.timeout(self._options.load_wait_s):
                return await while_connected(request, place.wait())
        except TimeoutError as error:
            after_s = self._service.retry_after_s()
            raise Loading(self._service.progress, retry_after_s=after_s) from error


def _named(body: bytes) -> str | None:
    name = codec.decode(body, _NAME).model
    return None if name is None else name.removesuffix(AGENT_SUFFIX)
