"""Settings that are changed while the daemon runs.

A change is taken whole or not at all: each value is read as at the start, and all of them together
must make settings that could have been started with. A restart forgets it.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ignisd.errors import ConfigError, RequestError, UnsupportedValue
from ignisd.flags import Flag
from ignisd.resolve import Origin, Resolved, Source, key_meant, leaves
from ignisd.settings import FLAGS, Settings

_WHERE = "the body"
_ORIGIN = Origin(Source.RUNTIME, "PATCH /v1/config")
_SWITCHED = Origin(Source.RUNTIME, "POST /v1/models/switch")


class Change(enum.StrEnum):
    """When a setting that is changed takes effect."""

    LIVE = "live"  # at once
    RELOAD = "reload"  # when a model is loaded next
    RESTART = "restart"  # only at the start of the process


_LIVE = frozenset(
    {
        "idle_unload_after",
        "log_level",
        "log_format",
        "model_decode_share",
        "reuse_prompt",
        "reuse_retained_interactive_ttl",
        "server_calls_in_reasoning",
        "server_developer_message_policy",
        "server_drain_timeout",
        "server_max_body_bytes",
        "server_queue",
        "server_reasoning_field",
        "server_request_timeout",
        "server_strip_volatile_headers",
        "server_system_message_policy",
        "switch_allow_implicit",
        "switch_drain_timeout",
        "switch_wait_timeout",
    }
)
_RELOAD = frozenset(
    {
        "kv_disk_bytes",
        "kv_disk_drain_ms",
        "kv_disk_floor",
        "kv_disk_persist",
        "model_kv_format",
        "model_max_context",
        "model_prefill_chunk",
        "reuse_kv_host_pool_bytes",
        "reuse_kv_ram_floor",
        "reuse_retained_device",
        "reuse_retained_host",
        "reuse_retention_interval",
        "reuse_window_bytes",
        "spec_decode_lanes",
        "vram_budget_bytes",
        "vram_headroom_bytes",
        "vram_kv_pool_bytes",
    }
)
# Whatever decides who may ask and who shares with whom stays as the operator started it: any key
# opens the route that changes the rest.


def live_limits(settings: Settings) -> dict[str, float]:
    """The bounds of scheduling that follow settings while requests are served."""
    return {
        "decode_share": settings.model_decode_share,
        "reuse": settings.reuse_prompt,
        "ttl_ms": settings.reuse_retained_interactive_ttl * 1000.0,
    }


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of a change, by the keys of the settings.

    Args:
        applied: in force.
        pending: in force once a model is loaded.
    """

    applied: tuple[str, ...]
    pending: tuple[str, ...]


class LiveSettings:
    """The settings as they are now. It belongs to the event loop.

    Args:
        resolved: what the daemon was started with.
    """

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        self._pending: dict[str, Any] = {}
        self._effects: list[Callable[[Settings], None]] = []
        self._loaded = resolved.settings

    @property
    def resolved(self) -> Resolved:
        """The settings in force, and who decided each."""
        return self._resolved

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._resolved.settings

    @property
    def pending(self) -> Mapping[str, Any]:
        """By the key of a setting, the value that waits for a model to be loaded."""
        fields = self._pending
        return {flag.key: fields[flag.field] for flag in FLAGS if flag.field in fields}

    def change_of(self, flag: Flag) -> Change:
        """When a change of a setting takes effect."""
        if flag.field == "reuse_prompt" and not self._loaded.reuse_prompt:
            return Change.RELOAD  # a model that was loaded without reuse has no slots
        if flag.field in _LIVE:
            return Change.LIVE
        return Change.RELOAD if flag.field in _RELOAD else Change.RESTART

    def on_change(self, effect: Callable[[Settings], None]) -> None:
        """Have `effect` told of the settings after each change; it must not raise."""
        self._effects.append(effect)

    def for_load(self, model: str | None = None) -> Settings:
        """The settings to load a model with: what waits for that is in them.

        Args:
            model: as --model names it; None is the one of the settings in force.
        """
        changes = self._pending if model is None else {**self._pending, "model": model}
        return replace(self.settings, **changes)

    def loaded(self, settings: Settings) -> None:
        """A model has been loaded with settings that `for_load` gave: they are in force now."""
        came = {field: getattr(settings, field) for field in (*_RELOAD, *self._pending)}
        self._put({field: value for field, value in came.items() if value != self._now(field)})
        waiting = self._pending.items()
        self._pending = {field: value for field, value in waiting if value != self._now(field)}
        if settings.model != self.settings.model:
            self._put({"model": settings.model}, _SWITCHED)
        self._loaded = settings

    def change(self, wanted: Mapping[str, object]) -> Changed:
        """Change settings, which are spelled as in the file: by dotted key or in tables.

        Raises:
            RequestError: a key or a value is not understood, or they do not go together.
            UnsupportedValue: a setting cannot be changed without a restart.
        """
        live: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        keys = {}
        for flag, raw in _flags_of(wanted):
            change = self.change_of(flag)
            if change is Change.RESTART:
                raise UnsupportedValue(
                    f"{flag.key} can only be set at the start: restart with {flag.option}.",
                    flag.key,
                )
            (live if change is Change.LIVE else rest)[flag.field] = _read(flag, raw)
            keys[flag.field] = flag.key
        try:
            replace(self.settings, **{**self._pending, **live, **rest})
        except ConfigError as error:
            raise RequestError(error.message) from error
        self._pending |= rest
        for field in [name for name, value in self._pending.items() if value == self._now(name)]:
            del self._pending[field]
        self._put(live)
        for effect in self._effects if live else ():
            effect(self.settings)
        return Changed(
            tuple(keys[field] for field in live),
            tuple(keys[field] for field in rest if field in self._pending),
        )

    def _now(self, field: str) -> Any:
        return getattr(self.settings, field)

    def _put(self, values: Mapping[str, Any], origin: Origin = _ORIGIN) -> None:
        origins = {**self._resolved.origins, **dict.fromkeys(values, origin)}
        settings = replace(self.settings, **values)
        self._resolved = replace(self._resolved, settings=settings, origins=origins)


def _flags_of(wanted: Mapping[str, object]) -> list[tuple[Flag, object]]:
    """The flags that are spelled in a tree, each with its raw value."""
    flags = {flag.key: flag for flag in FLAGS}
    found = []
    for key, raw in leaves(wanted):
        flag = flags.get(key)
        if flag is None:
            raise RequestError(f"There is no setting {key}{key_meant(key)}", key)
        found.append((flag, raw))
    return found


def _read(flag: Flag, raw: object) -> Any:
    try:
        return flag.read(raw, _WHERE)
    except ConfigError as error:
        raise RequestError(error.message, flag.key) from error
