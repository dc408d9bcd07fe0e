"""GET /v1/models and /v1/models/{id}, and POST /v1/models/switch."""

from msgspec import Struct, json
from starlette.requests import Request
from starlette.responses import Response

from ignisd.chat import codec
from ignisd.errors import ModelNotFound
from ignisd.http.answers import JsonResponse
from ignisd.http.body import read_json_body, while_connected
from ignisd.http.options import HttpOptions
from ignisd.http.service import Service, ServicePhase

_STATUS = {
    ServicePhase.LOADING: "loading",
    ServicePhase.SWITCHING: "switching",
    ServicePhase.UNLOADING: "unloaded",
    ServicePhase.UNLOADED: "unloaded",
    ServicePhase.WAKING: "loading",
    ServicePhase.FAILED: "failed",
}


class WireSwitch(Struct):
    """The body of POST /v1/models/switch."""

    model: str


_SWITCH = json.Decoder(WireSwitch)


class Models:
    """Tells the known models, and switches between them."""

    def __init__(self, service: Service, options: HttpOptions) -> None:
        self._service = service
        self._options = options

    async def listing(self, request: Request) -> Response:
        """All models, loaded or not."""
        entries = [self._entry(name) for name in self._service.names]
        return JsonResponse({"object": "list", "data": entries})

    async def one(self, request: Request) -> Response:
        """One model by its name.

        Raises:
            ModelNotFound: there is none of that name.
        """
        name, names = request.path_params["name"], self._service.names
        if name not in names:
            raise ModelNotFound(name, names[0], names[1:])
        return JsonResponse(self._entry(name))

    async def switch(self, request: Request) -> Response:
        """Serve another model, and answer when it is ready; it is loaded even if nobody waits.

        Raises:
            ModelNotFound: there is none of that name.
            ModelSwitching: a third one is being loaded.
            LoadFailed: it cannot be loaded; what served before does so again.
        """
        wanted = codec.decode(await read_json_body(request, self._options), _SWITCH).model
        service, began_ms = self._service, self._options.now_ms()
        before = service.name
        with service.line_up(wanted, asked=True) as place:
            await while_connected(request, place.wait())
        took_s = (self._options.now_ms() - began_ms) / 1000
        return JsonResponse(
            {
                "object": "model.switch",
                "model": wanted,
                "previous": before,
                "switched": before != wanted,
                "seconds": round(took_s, 3),
            }
        )

    def _entry(self, name: str) -> dict[str, object]:
        service = self._service
        seen = service.seen.get(name)
        context_tokens = None if seen is None else seen.context_tokens
        entry = {
            "id": name,
            "object": "model",
            "created": 0 if seen is None else seen.created_s,
            "owned_by": "ignisd",
            "max_model_len": context_tokens,
            "meta": {"n_ctx": context_tokens},
            "status": self._status(name),
        }
        if name in service.failures:
            entry["error"] = service.failures[name]
        return entry

    def _status(self, name: str) -> str:
        service = self._service
        if name == service.name:
            return _STATUS.get(service.phase, "serving")
        if service.phase is ServicePhase.SWITCHING and name == service.target:
            return "loading"
        return "failed" if name in service.failures else "unloaded"
