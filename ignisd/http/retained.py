"""GET /v1/reuse, POST /v1/reuse/explain and /v1/reuse/flush: what is kept, for whom, and why.

The handlers read the engine's world, which is a value: what they tell held at one moment. No
token and no text of a prompt is told.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from ignisd.chat.checkpoint import ModelInfo
from ignisd.engine.accounts import reuse_of
from ignisd.engine.admission import look_up
from ignisd.engine.room import victims
from ignisd.engine.types import Place, Tier
from ignisd.engine.world import World
from ignisd.errors import EngineFailure, RequestError
from ignisd.http.answers import JsonResponse
from ignisd.http.entrance import Entrance
from ignisd.http.guard import scope_key
from ignisd.http.intake import Intake, Prepared, PreparedPlain
from ignisd.http.options import HttpOptions
from ignisd.http.reuse import reuse_object
from ignisd.http.service import Service
from ignisd.http.serving import Facts
from ignisd.http.tokens import is_chat
from state.retained import Rank, Retained
from state.reuse import Match

_LISTED = 256
_MOST_LISTED = 10_000
_FLUSH_S = 30.0
"""A flush waits for the round under way, which may be a long chunk on a slow processor."""


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
        """The states, the one that gives way last first, and what they add up to."""
        serving = self._service.require()
        limit = _limit(request)
        now_ms = self._options.now_ms()
        world, facts = serving.engine.world, serving.facts
        ordered = list(victims(world, now_ms))
        states = [
            _state(world, held, rank, facts, now_ms) for rank, held in reversed(ordered[-limit:])
        ]
        body = {
            "object": "reuse",
            "on": world.limits.reuse,
            "fingerprint": str(world.index.fingerprint),
            "states": states,
            "omitted": len(ordered) - len(states),
            "totals": _totals(world, facts),
        }
        return JsonResponse(body)

    async def explain(self, request: Request) -> Response:
        """What a chat or a completion would reuse if it came now, and why not more."""
        body = await self._entrance.read(request)
        chat = await self._intake.run(lambda: is_chat(body))
        async with self._entrance.admitted(
            request, body, lambda model: self._prepared(chat, body, model, request)
        ) as (serving, prepared):
            return JsonResponse(self._explained(serving.engine.world, prepared, serving.model))

    async def _prepared(
        self, chat: bool, body: bytes, model: ModelInfo, request: Request
    ) -> Prepared | PreparedPlain:
        if chat:
            return await self._intake.prepare_chat(body, model, scope_key(request))
        return await self._intake.prepare_plain(body, model, scope_key(request))

    def _explained(
        self, world: World, prepared: Prepared | PreparedPlain, model: ModelInfo
    ) -> dict[str, object]:
        asked = self._intake.unsubmitted(prepared, model)
        found = look_up(world, asked)
        reuse = reuse_of(world, asked, found)
        parts = found.diverged_at is not None and found.lost_tokens > 0
        junctions = (found.matched_tokens,) if parts else ()
        cuts = (
            world.policy.cuts(prepared.marks, asked.prompt_tokens, found.length, junctions)
            if world.limits.reuse and asked.reuse
            else ()
        )
        why = found.shortfall if isinstance(found, Match) else found.reason
        return {
            "object": "reuse.explanation",
            "model": model.name,
            "prompt_tokens": asked.prompt_tokens,
            "recomputed_tokens": asked.prompt_tokens - found.length,
            "ignis_reuse": reuse_object(reuse),
            "state": found.retained.id if isinstance(found, Match) else None,
            "why_not_more": why,
            "lost_tokens": found.lost_tokens,
            "would_keep": [{"tokens": cut.position, "kind": cut.kind} for cut in cuts],
        }

    async def flush(self, request: Request) -> Response:
        """Give up everything retained that can be, and say what that freed.

        Raises:
            EngineFailure: the engine did not come to it.
        """
        serving = self._service.require()
        told = serving.engine.flush()
        try:
            async with asyncio.timeout(_FLUSH_S):
                before, after = await told
        except TimeoutError as error:
            raise EngineFailure(
                f"The engine did not flush within {_FLUSH_S:g} s; it may be stuck."
            ) from error
        return JsonResponse(_flushed(before, after, serving.facts))


def _flushed(before: World, after: World, facts: Facts) -> dict[str, object]:
    pages = after.pages.num_free - before.pages.num_free
    slots = after.slots.num_free - before.slots.num_free
    listed = _listed_pages(before)
    shared = int(np.count_nonzero(after.pages.counts[listed] > 0))
    freed = pages * facts.page_bytes + slots * facts.image_bytes
    return {
        "object": "reuse.flush",
        "freed": {
            "states": len(before.index) - len(after.index),
            "pages": pages,
            "slots": slots,
            "bytes": freed,
            "bytes_by_tier": {Tier.DEVICE.value: freed},
        },
        "kept": {
            # Pages of discarded states that running requests read, and captures under way, whose
            # states appear when they are written.
            "pages_in_use": shared,
            "captures_under_way": len(after.pending) + len(after.interrupted),
        },
    }


def _state(
    world: World, held: Retained, rank: Rank, facts: Facts, now_ms: float
) -> dict[str, object]:
    return {
        "id": held.id,
        "kind": held.kind,
        "tokens": held.length,
        "tier": Tier.DEVICE,
        "slot": Place.HOST if world.slots.is_host(held.slot) else Place.DEVICE,
        "bytes": len(held.table) * facts.page_bytes + facts.image_bytes,
        "own_bytes": world.pages.num_sole(held.table) * facts.page_bytes + facts.image_bytes,
        "rank": rank.name.lower(),
        "superseded": held.superseded,
        "class": held.cls,
        "conversation": held.conversation,
        "hits": held.hits,
        "age_s": _seconds(now_ms - held.published_ms),
        "idle_s": _seconds(now_ms - held.used_ms),
    }


def _totals(world: World, facts: Facts) -> dict[str, object]:
    pages = len(_listed_pages(world))
    num_slots, num_used = world.slots.num_slots, world.slots.num_used
    images = len(world.index)
    kinds = Counter(held.kind.value for held in world.index)
    return {
        "states": images,
        "tokens": sum(held.length for held in world.index),
        "by_kind": dict(sorted(kinds.items())),
        "tiers": {
            Tier.DEVICE.value: {
                "states": images,
                "pages": pages,
                "bytes": pages * facts.page_bytes + images * facts.image_bytes,
            }
        },
        "groups": {
            "full": {"pages": pages, "bytes": pages * facts.page_bytes},
            "linear": {"images": images, "bytes": images * facts.image_bytes},
        },
        "pages": {"total": world.pages.num_pages - 1, "free": world.pages.num_free},
        "slots": {"total": num_slots, "used": num_used, **dict(_slots_by_place(world))},
    }


def _slots_by_place(world: World) -> Iterator[tuple[str, dict[str, int]]]:
    used = Counter(world.slots.is_host(slot) for slot, _ in world.slots.owned())
    total = Counter(world.slots.is_host(slot) for slot in range(world.slots.num_slots))
    for place, host in ((Place.DEVICE, False), (Place.HOST, True)):
        yield place.value, {"total": total[host], "used": used[host]}


def _listed_pages(world: World) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    """The pages that retained states list, each once."""
    pages = {page for held in world.index for page in held.table}
    return np.fromiter(pages, np.intp, len(pages))


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(_LISTED))
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST_LISTED:
        raise RequestError(
            f"limit is {text[:40]!r}, but must be a number from 1 to {_MOST_LISTED}.", "limit"
        )
    return int(text)


def _seconds(ms: float) -> float:
    return round(max(ms, 0.0) / 1000, 3)
