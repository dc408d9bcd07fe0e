"""GET /v1/config: every setting with its origin, and no secret."""

from ignisd.http.app import build_app
from ignisd.http.counters import HttpCounters
from ignisd.http.options import HttpOptions
from ignisd.http.service import Facts
from ignisd.resolve import resolve
from ignisd.settings import FLAGS
from tests.http.rig import client_of, make_rig

FACTS = Facts(
    page_bytes=8,
    image_bytes=9,
    inexact=("sums of 300 rows",),
    memory=(("weights", "device", 12),),
    settled={"model.prefill-chunk": 256, "reuse.kv-ram-floor": 640},
    kv_ram={"cells": 3, "locked": False, "why_not_locked": "no right to"},
)


async def config(resolved, rig):
    app = build_app(rig.service, HttpOptions(), HttpCounters(), resolved)
    async with client_of(app) as client:
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
    }
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
