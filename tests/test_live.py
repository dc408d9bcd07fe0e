"""Settings that are changed while the daemon runs."""

from dataclasses import fields, replace

import pytest

from ignisd.engine.limits import Limits
from ignisd.errors import RequestError
from ignisd.live import Change, LiveSettings, live_limits
from ignisd.resolve import Source, resolve
from ignisd.settings import FLAGS, Settings


def live(**options: str) -> LiveSettings:
    return LiveSettings(resolve(options, {}))


def test_each_setting_has_its_time_and_secrets_and_doors_are_for_the_start():
    settings = live()
    times = {flag.field: settings.change_of(flag) for flag in FLAGS}
    assert set(times.values()) == set(Change)
    for flag in FLAGS:
        if flag.secret or flag.field.startswith(("server_a", "server_bind", "reuse_scope")):
            assert times[flag.field] is Change.RESTART, flag.field
        if flag.field.startswith(("vram_", "spec_")):
            assert times[flag.field] is Change.RELOAD, flag.field


def test_what_waits_is_in_force_when_a_model_is_loaded():
    settings = live()
    seen: list[Settings] = []
    settings.on_change(seen.append)
    changed = settings.change({"spec.decode-lanes": 2, "model": {"decode-share": 50}})
    assert (changed.applied, changed.pending) == (("model.decode-share",), ("spec.decode-lanes",))
    assert [now.spec_decode_lanes for now in seen] == [None]
    assert dict(settings.pending) == {"spec.decode-lanes": 2}
    loading = settings.for_load()
    assert loading.spec_decode_lanes == 2
    settings.change({"spec": {"decode-lanes": 8}, "reuse.retained-host": 3})
    assert settings.settings == replace(loading, spec_decode_lanes=None)
    settings.loaded(loading)
    assert settings.settings == loading
    assert dict(settings.pending) == {"spec.decode-lanes": 8, "reuse.retained-host": 3}
    settings.loaded(settings.for_load())
    assert settings.settings == replace(loading, spec_decode_lanes=8, reuse_retained_host=3)
    assert settings.resolved.origins["spec_decode_lanes"].source is Source.RUNTIME
    assert dict(settings.pending) == {}


def test_a_switch_is_told_by_its_origin_and_leaves_what_was_given_at_the_start():
    settings = live(model="ember", spec_decode_lanes="4")
    settings.loaded(settings.for_load("other"))
    origins = settings.resolved.origins
    assert settings.settings.model == "other"
    assert origins["model"].where == "POST /v1/models/switch"
    assert origins["spec_decode_lanes"].source is Source.FLAG
    settings.loaded(settings.for_load())
    assert settings.settings.model == "other"


def test_a_change_back_waits_for_nothing():
    settings = live(spec_decode_lanes="4")
    settings.change({"spec.decode-lanes": 2})
    assert settings.change({"spec.decode-lanes": "4"}).pending == ()
    assert dict(settings.pending) == {}


def test_nothing_is_told_when_nothing_takes_effect():
    settings = live()
    seen: list[Settings] = []
    settings.on_change(seen.append)
    settings.change({"spec.decode-lanes": 2})
    assert seen == []


def test_values_that_do_not_go_together_are_refused_together(monkeypatch: pytest.MonkeyPatch):
    """The rules that hold between settings at the start hold for a change too."""
    real = Settings.__post_init__

    def strict(self: Settings) -> None:
        real(self)
        if self.server_queue == 3 and self.spec_decode_lanes == 2:
            from ignisd.errors import ConfigError

            raise ConfigError("--server-queue 3 does not go with --spec-decode-lanes 2")

    monkeypatch.setattr(Settings, "__post_init__", strict)
    settings = live()
    settings.change({"spec.decode-lanes": 2})
    with pytest.raises(RequestError, match="does not go with"):
        settings.change({"server.queue": 3, "log.level": "debug"})
    assert settings.settings == resolve({}, {}).settings


def test_reuse_can_be_switched_on_only_where_slots_were_reserved():
    settings = live()
    assert settings.change({"reuse.prompt": False}).applied == ("reuse.prompt",)
    assert settings.change({"reuse.prompt": "on"}).applied == ("reuse.prompt",)
    settings = live(reuse_prompt="off")
    assert settings.change({"reuse.prompt": True}).pending == ("reuse.prompt",)
    settings.loaded(settings.for_load())
    assert settings.settings.reuse_prompt
    assert settings.change({"reuse.prompt": False}).applied == ("reuse.prompt",)


def test_the_bounds_that_follow_are_bounds_of_the_scheduler():
    settings = live()
    settings.change({"model.decode-share": 70, "reuse.retained-interactive-ttl": 2.5})
    limits = live_limits(settings.settings)
    assert limits == {"decode_share": 70, "reuse": True, "ttl_ms": 2500.0}
    assert set(limits) <= {field.name for field in fields(Limits)}
