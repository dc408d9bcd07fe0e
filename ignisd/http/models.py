"""GET /v1/models and /v1/models/{id}."""

from ignisd.chat.checkpoint import ModelInfo
from ignisd.errors import ModelNotFound
from ignisd.http.service import Service, ServicePhase


def list_models(service: Service) -> dict[str, object]:
    """The one served model, also while it loads."""
    return {"object": "list", "data": [_entry(service.name, service.phase, service.model)]}


def describe_model(service: Service, name: str) -> dict[str, object]:
    """One model by its name.

    Raises:
        ModelNotFound: it is not the served one.
    """
    if name != service.name:
        raise ModelNotFound(name, service.name)
    return _entry(service.name, service.phase, service.model)


def _entry(name: str, phase: ServicePhase, model: ModelInfo | None) -> dict[str, object]:
    status = {ServicePhase.LOADING: "loading", ServicePhase.FAILED: "failed"}
    context_tokens = None if model is None else model.context_tokens
    return {
        "id": name,
        "object": "model",
        "created": 0 if model is None else model.created_s,
        "owned_by": "ignisd",
        "max_model_len": context_tokens,
        "meta": {"n_ctx": context_tokens},
        "status": status.get(phase, "serving"),
    }
