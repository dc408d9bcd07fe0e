"""Each documented field has the class that the documentation gives it."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.routing import Route

from ignisd import errors
from ignisd.chat.foreign import FOREIGN, refuse_foreign
from ignisd.chat.wire import WireChat, WireCompletion
from ignisd.http.options import HttpOptions
from tests.http.rig import ask, make_rig

DOCS = Path(__file__).parents[2] / "ignisd" / "http" / "API.md"
ROUTES: dict[str, tuple[str, type, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", WireChat, ask()),
    "completions": ("/v1/completions", WireCompletion, {"prompt": "hello"}),
}
FLOATS = {"temperature", "top_p", "min_p"} | {
    f"{name}_penalty" for name in ("presence", "frequency", "repetition")
}
ASKS_TOO_MUCH: dict[str, Any] = {
    "logprobs": {"chat": True, "completions": 1},
    "top_logprobs": 3,
    "logit_bias": {"5": 1},
    "response_format": {"type": "json_object"},
}


def documented() -> dict[tuple[str, str], str]:
    """Route and field to class."""
    text = DOCS.read_text(encoding="utf-8")
    part = text.split("<!-- begin: fields -->")[1].split("<!-- end: fields -->")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (\S+) \|", part, re.MULTILINE)
    assert len({row[0] for row in rows}) == len(rows) > 30
    named = {}
    for field, chat, completions in rows:
        named["chat", field] = chat
        named["completions", field] = completions
    return {key: kind for key, kind in named.items() if kind != "–"}


TABLE = documented()


def of_class(kind: str) -> list[tuple[str, str]]:
    return [key for key, its in TABLE.items() if its == kind]


async def post(rig, route, **fields):
    path, _, body = ROUTES[route]
    async with rig.client() as client:
        return await client.post(path, json={**body, **fields})


def plain_rig():
    return make_rig(options=HttpOptions(draw_seed=lambda: 5, draw_name=lambda: "x"))


def test_every_class_is_known():
    assert set(TABLE.values()) == {"honoured", "refused", "inert"}


@pytest.mark.parametrize("route", ROUTES)
def test_every_field_that_is_read_is_documented_and_no_other(route):
    _, wire, _ = ROUTES[route]
    read = {field.encode_name for field in msgspec.structs.fields(wire)}
    told = {field for (its, field), kind in TABLE.items() if its == route and kind != "inert"}
    assert read == told


async def test_each_field_of_other_servers_is_documented_and_refused_where_it_asks_for_something():
    part = DOCS.read_text(encoding="utf-8").split("<!-- begin: foreign -->")[1]
    told = set(re.findall(r"^\| `(\w+)` \|", part.split("<!-- end: foreign -->")[0], re.MULTILINE))
    assert told == set(FOREIGN)
    assert not told & {field for _, field in TABLE}
    rig = plain_rig()
    for route in ROUTES:
        for field, foreign in FOREIGN.items():
            for value in (*foreign.neutral, None):
                assert (await post(rig, route, **{field: value})).is_success, (field, value)
            for value in ("something", 7.5, [["x"] * 40], {"a": 1}, [{}]):
                answer = await post(rig, route, **{field: value})
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (400, "unsupported_value")
                assert error["param"] == field
                assert foreign.why in error["message"]
                assert len(error["message"]) < 250
    assert len(rig.engine.requests) == 2 * sum(len(each.neutral) + 1 for each in FOREIGN.values())


def test_true_is_not_one():
    assert FOREIGN["best_of"].neutral == (1,)
    for body in (b'{"best_of":true}', b'{"echo":0}', b'{"cache_prompt":1}'):
        with pytest.raises(errors.UnsupportedValue):
            refuse_foreign(body)
    refuse_foreign(b'{"repeat_penalty":1.0,"typical_p":1}')


@pytest.mark.parametrize(("route", "field"), of_class("honoured"))
async def test_an_honoured_field_is_read(route, field):
    rig = plain_rig()
    wrong = "x" if field in FLOATS else 5.5
    error = (await post(rig, route, **{field: wrong})).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", field)
    assert rig.engine.requests == []


@pytest.mark.parametrize(("route", "field"), of_class("inert"))
async def test_an_inert_field_changes_nothing(route, field):
    rig = plain_rig()
    without = await post(rig, route)
    for value in ("x", 5.5, ["x"], {"x": 1}, None, True):
        answer = await post(rig, route, **{field: value})
        assert answer.status_code == 200
        assert answer.json()["choices"] == without.json()["choices"]
    first, *others = [
        dataclasses.replace(request, id=0, arrival_ms=0.0) for request in rig.engine.requests
    ]
    assert all(other == first for other in others)


@pytest.mark.parametrize(("route", "field"), of_class("refused"))
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_value_that_asks_too_much_is_refused(route, field, streamed):
    rig = plain_rig()
    value = ASKS_TOO_MUCH[field]
    value = value[route] if field == "logprobs" else value
    response = await post(rig, route, **{field: value, "stream": streamed})
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["param"]) == ("unsupported_value", field)
    assert rig.engine.requests == []


def test_every_code_of_an_answer_is_documented():
    part = DOCS.read_text(encoding="utf-8").split("## Errors")[1].split("## Who")[0]
    told = set(re.findall(r"`([a-z_]+)`", part))
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    codes = {
        kind.code: kind.status
        for kind in kinds
        if issubclass(kind, errors.IgnisError) and kind is not errors.Unavailable
    }
    codes.pop("config_error")
    assert set(codes) <= told
    assert all(str(status) in part for status in codes.values())


def test_every_route_is_documented():
    text = DOCS.read_text(encoding="utf-8").split("## Fields")[0]
    rows = re.findall(r"^\| ((?:`[^`]*`(?:, )?)+) \|", text, re.MULTILINE)
    told = set()
    for row in rows:
        method = row[1:].split()[0]
        told |= {(method, path) for path in re.findall(r"(/[\w/{}]*)`", row)}
    served = {
        (method, re.sub(r"\{\w+:path\}", "{id}", route.path))
        for route in make_rig().app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert served == told
