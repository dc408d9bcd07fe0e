"""GET and PATCH /v1/config: what the daemon was told, by whom, what that came to; and a change."""

import logging

from msgspec import json
from starlette.requests import Request
from starlette.responses import Response

from ignisd import log
from ignisd.chat import codec
from ignisd.errors import RequestError, UnsupportedValue
from ignisd.flags import Flag
from ignisd.http.answers import JsonResponse
from ignisd.http.body import read_json_body
from ignisd.http.options import HttpOptions
from ignisd.http.service import Service
from ignisd.live import LiveSettings

_log = logging.getLogger("ignisd.http")
_BODY = json.Decoder(dict[str, object])
_MOST_BYTES = 1 << 16
"""It is parsed on the event loop, and nobody has so much to say."""


class Configuration:
    """Tells the settings and changes them; without any, tells what the model came to."""

    def __init__(
        self, service: Service, options: HttpOptions, live: LiveSettings | None = None
    ) -> None:
        self._service = service
        self._options = options
        self._live = live

    async def __call__(self, request: Request) -> Response:
        """Every setting with its origin, and what loading made of them, perhaps after a change.

        No secret is shown.
        """
        if request.method == "PATCH":
            return await self._change(request)
        return JsonResponse(self._told())

    async def _change(self, request: Request) -> Response:
        """Change the settings that are named, all of them or none.

        200 when all are in force, 202 when some wait for a model to be loaded.

        Raises:
            RequestError: a key or a value is not understood, naming it and what is.
            UnsupportedValue: one can only be set at the start.
        """
        body = await read_json_body(request, self._options, _MOST_BYTES)
        wanted = codec.decode(body, _BODY)
        if self._live is None:
            raise UnsupportedValue("This server has no settings that can be changed.")
        try:
            changed = self._live.change(wanted)
        except RecursionError as error:
            raise RequestError("The body nests tables too deeply.") from error
        for word, keys in (("applied", changed.applied), ("pending", changed.pending)):
            for key in keys:
                log.write(_log, logging.INFO, "setting", key=key, change=word)
        told = {"applied": changed.applied, "pending": changed.pending, **self._told()}
        return JsonResponse(told, 202 if changed.pending else 200)

    def _told(self) -> dict[str, object]:
        service = self._service
        facts, engine = service.facts, service.engine
        settings = {} if self._live is None else _settings(self._live)
        for key, value in facts.settled.items():
            settings.setdefault(key, {})["settled"] = value
        return {
            "object": "config",
            "model": service.name,
            "status": service.phase,
            "settings": settings,
            "exact": service.exact,
            "inexact": facts.inexact,
            "degraded": list(service.degraded),
            "notes": list(service.notes),
            "reasons": {**service.degraded, **service.notes},
            "fingerprint": None if engine is None else str(engine.world.index.fingerprint),
            "memory": [
                {"name": name, "where": where, "bytes": size} for name, where, size in facts.memory
            ],
            "kv_ram": facts.kv_ram,
            "kv_disk": facts.kv_disk,
            "page_bytes": facts.page_bytes,
            "image_bytes": facts.image_bytes,
        }


def _settings(live: LiveSettings) -> dict[str, dict[str, object]]:
    resolved, pending = live.resolved, live.pending
    told: dict[str, dict[str, object]] = {}
    for flag, _, origin in resolved.lines():
        told[flag.key] = {
            "value": _value(flag, getattr(resolved.settings, flag.field)),
            "flag": flag.option,
            "unit": flag.unit or None,
            "origin": origin.source,
            "where": origin.where or None,
            "changes": live.change_of(flag),
        }
        if flag.key in pending:
            told[flag.key]["pending"] = _value(flag, pending[flag.key])
    return told


def _value(flag: Flag, value: object) -> object:
    if flag.secret or not isinstance(value, bool | int | float | None):
        return flag.show(value)
    return value
