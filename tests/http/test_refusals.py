"""Every request that is turned away is counted, once, by the reason that its answer gives."""

import asyncio

import pytest

from ignisd.engine.types import FinishReason
from ignisd.errors import answer_codes
from ignisd.http.keys import KeyRing
from ignisd.http.options import HttpOptions
from ignisd.http.origin import OriginPolicy
from tests.fakes import Script
from tests.http.rig import CHAT, ask, listening, make_rig, until
from tests.http.test_probes import scrape
from tests.http.wire import connected, raw_request, read_to_end

LONG = {"messages": [{"role": "user", "content": "word " * 9000}]}


async def slow_body():
    yield b"{"
    await asyncio.sleep(0.3)
    yield b"}"


def drain(rig):
    rig.service.set_draining()


def engine_drains(rig):
    rig.engine.draining = True


def fail(rig):
    rig.service.set_failed("it broke")


WAYS = {
    "invalid_value": {"json": ask(temperature=9)},
    "unsupported_value": {"json": ask(logprobs=True)},
    "context_length_exceeded": {"json": LONG},
    "model_not_found": {"json": ask(model="other")},
    "invalid_api_key": {"json": ask(), "headers": {"authorization": "Bearer no"}},
    "forbidden": {"json": ask(), "headers": {"host": "evil.example"}},
    "route_not_found": {"path": "/nowhere"},
    "method_not_allowed": {"path": "/v1/models"},
    "body_timeout": {"content": slow_body},
    "body_too_large": {"content": b"x" * 100_000},
    "unsupported_media_type": {"content": b"{}", "headers": {"content-type": "text/plain"}},
    "queue_full": {"json": ask()},
    "draining": {"json": ask(), "before": drain},
    "draining by the engine": {"json": ask(), "before": engine_drains},
    "engine_error": {"json": ask(), "before": fail},
    "loading": {"json": ask(), "ready": False},
}


def rig_for(name, ready=True):
    options = HttpOptions(
        keys=KeyRing(("secret",)),
        origins=OriginPolicy(loopback_only=True),
        max_body_bytes=90_000,
        body_timeout_s=0.1,
    )
    return make_rig(
        Script(silent=True), options=options, ready=ready, limit=int(name != "queue_full")
    )


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", WAYS)
async def test_a_refusal_is_counted_by_its_reason(name, streamed):
    way = dict(WAYS[name])
    rig = rig_for(name, way.pop("ready", True))
    way.pop("before", lambda rig: None)(rig)
    headers = {"host": "localhost", "authorization": "Bearer secret", **way.pop("headers", {})}
    if "json" in way:
        way["json"] = {**way["json"], "stream": streamed}
    if callable(way.get("content")):
        way["content"] = way["content"]()
    async with rig.client() as client:
        response = await client.post(way.pop("path", CHAT), headers=headers, **way)
    code = name.split()[0]
    assert response.json()["error"]["code"] == code
    assert rig.counters.refused == rig.counters.errors == {code: 1}
    assert rig.engine.requests == []


async def test_a_full_rendering_queue_counts_like_a_full_engine():
    rig = make_rig(options=HttpOptions(max_preparing=0))
    async with rig.client() as client:
        for path in (CHAT, "/v1/tokenize"):
            assert (await client.post(path, json=ask())).status_code == 429
    assert rig.counters.refused == {"queue_full": 2}


async def test_malformed_http_counts():
    rig = make_rig()
    serving = listening(rig.app, rig.counters.count_refusal)
    async with serving as address, connected(address) as (reader, writer):
        writer.write(b"nonsense\r\n\r\n")
        await read_to_end(reader)
    assert rig.counters.refused == {"malformed_request": 1}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("script", "code"),
    [
        (Script(reason=FinishReason.ERROR, message="it broke"), "engine_error"),
        (Script(reason=FinishReason.CANCELLED), "draining"),
        (Script([104], reason=FinishReason.CANCELLED), "draining"),
    ],
)
async def test_what_fails_once_the_engine_has_it_is_no_refusal(script, code, streamed):
    rig = make_rig(script)
    async with rig.client() as client:
        await client.post(CHAT, json=ask(stream=streamed))
    assert rig.counters.errors == {code: 1}
    assert rig.counters.refused == {}


async def test_a_client_that_leaves_is_neither_an_error_nor_a_refusal():
    rig = make_rig(Script(silent=True))
    async with listening(rig.app, rig.counters.count_refusal) as address:
        async with connected(address) as (_, writer):
            writer.write(raw_request(ask()))
            await until(lambda: rig.engine.requests)
        await until(lambda: rig.engine.left)
    assert rig.counters.errors == rig.counters.refused == {}


async def test_every_reason_is_exported_and_starts_at_zero():
    found = await scrape(make_rig())
    reasons = {key[1][1]: value for key, value in found.items() if "_refused_" in key[0]}
    assert set(reasons) == set(answer_codes()) - {"request_timeout"}
    assert set(reasons.values()) == {0}
    told = {key[1][1]: value for key, value in found.items() if key[0] == "ignis_http_errors_total"}
    assert told == dict.fromkeys(answer_codes(), 0)
