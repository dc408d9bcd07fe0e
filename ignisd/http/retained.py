"""GET /v1/reuse and POST /v1/reuse/explain, flush, pin, unpin: what is kept, and for how long.

The handlers read the engine's world, which is a value: what they tell held at one moment. No
token and no text of a prompt is told.
"""

import asyncio
from functools import partial
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ignisd.chat import codec
from ignisd.chat.checkpoint import ModelInfo
from ignisd.engine.control import located
from ignisd.engine.room import victims
from ignisd.engine.types import Tier
from ignisd.engine.world import World
from ignisd.errors import EngineFailure, PinsFull, RequestError, StateNotFound
from ignisd.http.answers import JsonResponse
from ignisd.http.body import read_json_body
from ignisd.http.entrance import Entrance
from ignisd.http.explaining import explanation
from ignisd.http.flushing import Flush
from ignisd.http.guard import scope_key
from ignisd.http.intake import Intake, Prepared, PreparedPlain
from ignisd.http.listing import Told, listing, pins_of, state_below, state_on_device
from ignisd.http.options import HttpOptions
from ignisd.http.service import Service
from ignisd.http.serving import Engine, Facts
from ignisd.http.tokens import is_chat
from state.retained import Retained

T = TypeVar("T")

_LISTED = 256
_MOST_LISTED = 10_000
_TOLD_S = 30.0
"""A change waits for the round under way, which may be a long chunk on a slow processor."""
_LOOK_S = 0.01
_MOST_LOOKS = 200
"""How often the answer to a flush looks whether what cannot go at once has gone: for 2 s."""


class FlushBody(msgspec.Struct):
    """The body of a flush; one without a body flushes all."""

    tier: Tier | None = None


class PinBody(msgspec.Struct):
    """The body of a pin: the id of a state, as it is listed."""

    id: int


_FLUSH = msgspec.json.Decoder(FlushBody)
_PIN = msgspec.json.Decoder(PinBody)


class RetainedStates:
    """The control plane of prompt reuse."""

    def __init__(
        self, service: Service, entrance: Entrance, intake: Intake, options: HttpOptions
    ) -> None:
        self._service = service
        self._entrance = entrance
        self._intake = intake
        self._options = options

    async def listing(self, request: Request) -> Response:
        """The states, the one that gives way last first in each tier, and what they add up to."""
        serving = self._service.require()
        limit, tier = _limit(request), _tier(request)
        world, now_ms = serving.engine.world, self._options.now_ms()
        told = partial(listing, world, serving.facts, now_ms, limit, tier)
        return JsonResponse(await self._intake.run(told))

    async def explain(self, request: Request) -> Response:
        """What a chat or a completion would reuse if it came now, and why not more."""
        body = await self._entrance.read(request)
        chat = await self._intake.run(lambda: is_chat(body))
        async with self._entrance.admitted(
            request, body, lambda model: self._prepared(chat, body, model, request)
        ) as (serving, prepared):
            world, model = serving.engine.world, serving.model
            asked = self._intake.unsubmitted(prepared, model)
            return JsonResponse(explanation(world, asked, model.name, self._options.now_ms()))

    async def _prepared(
        self, chat: bool, body: bytes, model: ModelInfo, request: Request
    ) -> Prepared | PreparedPlain:
        if chat:
            return await self._intake.prepare_chat(body, model, scope_key(request))
        return await self._intake.prepare_plain(body, model, scope_key(request))

    async def flush(self, request: Request) -> Response:
        """Give up what is retained, in one tier or in all, and say what that freed.

        Raises:
            EngineFailure: the engine did not come to it.
        """
        self._service.require()
        body = await read_json_body(request, self._options)
        tier = codec.decode(body, _FLUSH).tier if body.strip() else None
        serving = self._service.require()
        engine = serving.engine
        flush = Flush(tier, *await _told(engine.flush(tier), "flush"))
        await _settled(engine, flush)
        return JsonResponse(flush.told(engine.world, serving.facts))

    async def pin(self, request: Request) -> Response:
        """Keep a state whatever comes."""
        return await self._changed(request, pinned=True)

    async def unpin(self, request: Request) -> Response:
        """Let a state give way again, in every tier that has it."""
        return await self._changed(request, pinned=False)

    async def _changed(self, request: Request, *, pinned: bool) -> Response:
        """Pin or unpin a state, and tell of it.

        Raises:
            StateNotFound: there is no such state.
            PinsFull: enough is pinned where it lies.
            EngineFailure: the engine did not come to it.
        """
        self._service.require()
        state_id = codec.decode(await read_json_body(request, self._options), _PIN).id
        serving = self._service.require()
        world, refused = await _told(serving.engine.pin(state_id, pinned), "pin")
        if refused is not None:
            raise PinsFull(state_id, refused.tier, refused.unit, refused.wanted, refused.most)
        told = _state(world, state_id, serving.facts, self._options.now_ms())
        if told is None:
            raise StateNotFound(state_id)
        pins = pins_of(world, Tier(str(told["tier"])))
        body = {"object": "reuse.pin", "pinned": pinned, "state": told, "pins": pins}
        return JsonResponse(body)


async def _told(answer: "asyncio.Future[T]", what: str) -> T:
    """What the engine answers at its next round."""
    try:
        async with asyncio.timeout(_TOLD_S):
            return await answer
    except TimeoutError as error:
        raise EngineFailure(
            f"The engine did not {what} within {_TOLD_S:g} s; it may be stuck."
        ) from error


async def _settled(engine: Engine, flush: Flush) -> None:
    """Wait a little until all of a flush has gone."""
    for _ in range(_MOST_LOOKS):
        if flush.is_done(engine.world):
            return
        await asyncio.sleep(_LOOK_S)


def _state(world: World, state_id: int, facts: Facts, now_ms: float) -> Told | None:
    """A state as it is listed; None where there is none of that id."""
    found = located(world, state_id)
    if found is None:
        return None
    tier, one = found
    if not isinstance(one, Retained):
        return state_below(world, tier, one, now_ms)
    rank = next(rank for rank, held in victims(world, now_ms) if held.id == state_id)
    return state_on_device(world, one, rank, facts, now_ms)


def _tier(request: Request) -> Tier | None:
    text = request.query_params.get("tier")
    if text is None:
        return None
    if text not in tuple(Tier):
        raise RequestError(f"tier is {text[:40]!r}, but must be one of {', '.join(Tier)}.", "tier")
    return Tier(text)


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(_LISTED))
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST_LISTED:
        raise RequestError(
            f"limit is {text[:40]!r}, but must be a number from 1 to {_MOST_LISTED}.", "limit"
        )
    return int(text)
