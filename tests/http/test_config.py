"""/v1/config: every setting with its origin, and no secret; and how they are changed."""

from dataclasses import replace

import pytest

from ignisd.chat.policies import ReasoningField
from ignisd.http.app import build_app
from ignisd.http.counters import HttpCounters
from ignisd.http.keys import KeyRing
from ignisd.http.options import HttpOptions
from ignisd.http.serving import Facts
from ignisd.listen import http_options
from ignisd.live import LiveSettings
from ignisd.resolve import resolve
from ignisd.settings import FLAGS, Settings
from tests.http.rig import CHAT, ask, client_of, make_rig

FACTS = Facts(
    page_bytes=8,
    image_bytes=9,
    inexact=("sums of 300 rows",),
    memory=(("weights", "device", 12),),
    settled={"model.prefill-chunk": 256, "reuse.kv-ram-floor": 640},
    kv_ram={"cells": 3, "locked": False, "why_not_locked": "no right to"},
)


def app_of(resolved, rig, options=None):
    return build_app(rig.service, options or HttpOptions(), HttpCounters(), LiveSettings(resolved))


async def config(resolved, rig):
    async with client_of(app_of(resolved, rig)) as client:
        return await client.get("/v1/config")


async def test_every_setting_is_told_with_its_origin(tmp_path):
    file = tmp_path / "ignisd.toml"
    file.write_text("[server]\nallowed-hosts = ['a.example']\n")
    resolved = resolve(
        {"config": str(file), "server_queue": "7"}, {"IGNISD_SERVER_API_KEY": "sesame"}
    )
    rig = make_rig()
    rig.service.set_ready(rig.engine, rig.model, FACTS)
    response = await config(resolved, rig)
    assert "sesame" not in response.text
    body = response.json()
    settings = body["settings"]
    assert set(settings) == {flag.key for flag in FLAGS}
    assert settings["server.queue"] == {
        "value": 7,
        "flag": "--server-queue",
        "unit": "requests",
        "origin": "flag",
        "where": "the command line",
        "changes": "live",
    }
    assert settings["server.bind"]["changes"] == "restart"
    assert settings["vram.budget-bytes"]["changes"] == "reload"
    assert settings["server.api-key"]["value"] == "(hidden)"
    assert settings["server.api-key"]["where"] == "IGNISD_SERVER_API_KEY"
    assert settings["server.allowed-hosts"]["value"] == "a.example"
    assert settings["server.allowed-hosts"]["origin"] == "file"
    assert settings["reuse.prompt"]["value"] is True
    assert settings["model.prefill-chunk"]["value"] is None
    assert settings["model.prefill-chunk"]["settled"] == 256
    assert settings["reuse.kv-ram-floor"]["value"] is None
    assert settings["reuse.kv-ram-floor"]["settled"] == 640
    assert body["kv_ram"] == {"cells": 3, "locked": False, "why_not_locked": "no right to"}
    assert (body["exact"], body["inexact"]) == (False, ["sums of 300 rows"])
    assert body["memory"] == [{"name": "weights", "where": "device", "bytes": 12}]
    assert (body["page_bytes"], body["image_bytes"], body["status"]) == (8, 9, "ready")


async def test_it_answers_while_the_model_loads():
    body = (await config(resolve({}, {}), make_rig(ready=False))).json()
    assert (body["status"], body["exact"], body["memory"]) == ("loading", None, [])
    assert body["kv_ram"] is None


async def patch(app, changes, **headers):
    async with client_of(app) as client:
        return await client.patch("/v1/config", json=changes, headers=headers)


async def test_a_change_is_in_force_and_says_so():
    resolved = resolve({"server_queue": "7"}, {})
    live, rig = LiveSettings(resolved), make_rig()
    seen: list[Settings] = []
    live.on_change(seen.append)
    app = build_app(rig.service, HttpOptions(), HttpCounters(), live)
    response = await patch(app, {"server": {"queue": 9}, "log.level": "debug"})
    body = response.json()
    assert response.status_code == 200
    assert (sorted(body["applied"]), body["pending"]) == (["log.level", "server.queue"], [])
    told = body["settings"]["server.queue"]
    assert (told["value"], told["origin"]) == (9, "runtime")
    assert body["settings"]["model.name"]["origin"] == "default"
    assert (seen[0].server_queue, seen[0].log_level) == (9, "debug")
    async with client_of(app) as client:
        shown = (await client.get("/v1/config")).json()["settings"]
    assert shown == body["settings"]


async def test_what_waits_for_a_model_is_202():
    live, rig = LiveSettings(resolve({}, {})), make_rig()
    app = build_app(rig.service, HttpOptions(), HttpCounters(), live)
    changes = {"vram.budget-bytes": "3G", "server.queue": 5}
    response = await patch(app, changes)
    body = response.json()
    assert response.status_code == 202
    assert (body["applied"], body["pending"]) == (["server.queue"], ["vram.budget-bytes"])
    told = body["settings"]["vram.budget-bytes"]
    assert (told["value"], told["origin"], told["pending"]) == (None, "default", 3 << 30)


@pytest.mark.parametrize(
    ("changes", "code", "param", "words"),
    [
        ({"server.queue": 0}, "invalid_value", "server.queue", ["1 to 65536", "had 0", "body"]),
        ({"server.queue": "x"}, "invalid_value", "server.queue", ["--server-queue", "'x'"]),
        ({"server.queue": None}, "invalid_value", "server.queue", ["had None"]),
        ({"server": {"queu": 1}}, "invalid_value", "server.queu", ["mean server.queue?"]),
        ({"log.level": ["debug"]}, "invalid_value", "log.level", ["one of debug"]),
        ({"server.bind": "0.0.0.0:1"}, "unsupported_value", "server.bind", ["--server-bind"]),
        ({"server.api-key": "x"}, "unsupported_value", "server.api-key", ["restart"]),
        ({"reuse.scope": "global"}, "unsupported_value", "reuse.scope", ["restart"]),
        ({"server.allowed-origins": "http://a"}, "unsupported_value", None, ["restart"]),
        ([], "invalid_value", None, ["object"]),
        ({"a": {"b": {}}}, None, None, []),
    ],
)
async def test_a_wrong_change_changes_nothing_and_names_what_is_wrong(changes, code, param, words):
    live, rig = LiveSettings(resolve({}, {})), make_rig()
    seen: list[Settings] = []
    live.on_change(seen.append)
    app = build_app(rig.service, HttpOptions(), HttpCounters(), live)
    if isinstance(changes, dict):
        changes = {"log.level": "debug", "vram.budget-bytes": "1G", **changes}
    response = await patch(app, changes)
    if code is None:  # no setting is named
        assert response.status_code == 202
        return
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, code)
    assert error["param"] == param or param is None
    assert all(word in error["message"] for word in words), error["message"]
    assert (live.resolved, live.pending, seen) == (resolve({}, {}), {}, [])


async def test_nesting_without_end_is_refused():
    app = app_of(resolve({}, {}), make_rig())
    async with client_of(app) as client:
        for depth in (950, 100_000):
            body = b'{"a":' * depth + b"1" + b"}" * depth
            response = await client.patch("/v1/config", content=body)
            assert response.status_code == (400 if depth < 1000 else 413)


async def test_only_who_has_a_key_may_change_anything():
    app = app_of(resolve({}, {}), make_rig(), HttpOptions(keys=KeyRing(("secret",))))
    assert (await patch(app, {"log.level": "debug"})).status_code == 401
    assert (await patch(app, {"log.level": "debug"}, authorization="Bearer secret")).is_success


async def test_http_follows_a_change_at_once():
    resolved = resolve({}, {})
    live, rig = LiveSettings(resolved), make_rig()
    options = http_options(resolved.settings, KeyRing())
    live.on_change(lambda now: options.follow(http_options(now, KeyRing())))
    app = build_app(rig.service, options, HttpCounters(), live)
    async with client_of(app) as client:
        note = {"role": "system", "content": "note"}
        long = ask(messages=[*ask()["messages"], note], user="x" * 3000)
        client.headers["host"] = "localhost"
        assert (await client.post(CHAT, json=long)).is_success
        changes = {"max-body-bytes": 2000, "system-message-policy": "strict"}
        assert (await client.patch("/v1/config", json={"server": changes})).is_success
        assert (await client.post(CHAT, json=long)).status_code == 413
        long.pop("user")
        assert (await client.post(CHAT, json=long)).status_code == 400
        changes = {"request-timeout": 0.5, "reasoning-field": "both"}
        assert (await client.patch("/v1/config", json={"server": changes})).is_success
        assert (await client.patch("/v1/config", json={"server.queue": 3})).is_success
    assert (options.request_timeout_s, options.max_preparing) == (0.5, 3)
    assert options.chat.reasoning_field is ReasoningField.BOTH


async def test_what_is_degraded_is_told_beside_200(monkeypatch):
    rig = make_rig()
    rig.service.set_ready(rig.engine, rig.model, FACTS)
    async with rig.client() as client:
        for skipped, degraded in ((2, []), (3, ["reuse"])):
            stats = replace(rig.engine.stats(), skipped_in_row=skipped)
            monkeypatch.setattr(rig.engine, "stats", lambda stats=stats: stats)
            health = await client.get("/health")
            assert health.status_code == 200
            told = {"status": "ready", "exact": False, "degraded": degraded}
            assert health.json() == {**told, "notes": ["kv_ram_unlocked"]}
            body = (await client.get("/v1/config")).json()
            assert (body["exact"], body["degraded"]) == (False, degraded)
