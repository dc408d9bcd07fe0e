"""GET /v1/config: what the daemon was told, by whom, and what that came to."""

from ignisd.flags import Flag
from ignisd.http.service import Service
from ignisd.resolve import Resolved


def config_object(resolved: Resolved | None, service: Service) -> dict[str, object]:
    """Every setting with its origin, and what loading made of them; secrets are never shown."""
    facts, engine = service.facts, service.engine
    settings = {} if resolved is None else _settings(resolved)
    for key, value in facts.settled.items():
        settings.setdefault(key, {})["settled"] = value
    return {
        "object": "config",
        "model": service.name,
        "status": service.phase,
        "settings": settings,
        "exact": None if engine is None else not facts.inexact,
        "inexact": list(facts.inexact),
        "fingerprint": None if engine is None else str(engine.world.index.fingerprint),
        "memory": [
            {"name": name, "where": where, "bytes": size} for name, where, size in facts.memory
        ],
        "kv_ram": facts.kv_ram,
        "page_bytes": facts.page_bytes,
        "image_bytes": facts.image_bytes,
    }


def _settings(resolved: Resolved) -> dict[str, dict[str, object]]:
    return {
        flag.key: {
            "value": _value(flag, getattr(resolved.settings, flag.field)),
            "flag": flag.option,
            "unit": flag.unit or None,
            "origin": origin.source,
            "where": origin.where or None,
        }
        for flag, _, origin in resolved.lines()
    }


def _value(flag: Flag, value: object) -> object:
    if flag.secret or not isinstance(value, bool | int | float | None):
        return flag.show(value)
    return value
