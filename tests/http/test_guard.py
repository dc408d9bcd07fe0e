"""Names, origins and keys: who is answered at all."""

import pytest

from ignisd.errors import ConfigError
from ignisd.http.keys import KeyRing, owner_of, read_keys
from ignisd.http.options import HttpOptions
from ignisd.http.origin import OriginPolicy
from tests.http.rig import CHAT, ask, make_rig

LOOPBACK = OriginPolicy(
    loopback_only=True, hosts=("llm.example",), origins=("http://ui.example:3000",)
)
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type",
}


async def send(rig, method="GET", path="/v1/models", **headers):
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    async with rig.client() as client:
        return await client.request(method, path, headers=fields)


def guarded(policy=LOOPBACK, **options):
    return make_rig(options=HttpOptions(origins=policy, **options))


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "LOCALHOST:1",
        "app.localhost",
        "127.0.0.1",
        "127.0.0.1:8000",
        "127.8.8.8:1",
        "[::1]:8000",
        "llm.example",
        "LLM.example:443",
    ],
)
async def test_names_of_the_loopback_are_answered(host):
    assert (await send(guarded(), host=host)).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "xlocalhost",
        "192.168.0.7",
        "0.0.0.0:8000",
        "[::2]",
        "[::1",
        "localhost@evil.example",
        "",
        "x" * 5000,
    ],
)
async def test_a_server_of_the_loopback_answers_to_no_other_name(host):
    rig = guarded()
    response = await send(rig, "POST", CHAT, host=host)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (403, "forbidden")
    assert error["type"] == "permission_error"
    assert "--server-allowed-hosts" in error["message"]
    assert len(error["message"]) < 400
    assert response.headers["x-should-retry"] == "false"
    assert rig.counters.errors == {"forbidden": 1}
    # Whoever asks whether the server lives may call it as he likes.
    assert (await send(rig, path="/health", host=host)).status_code == 200


async def test_a_public_server_answers_to_any_name():
    assert (await send(guarded(OriginPolicy()), host="evil.example")).status_code == 200


@pytest.mark.parametrize("policy", [LOOPBACK, OriginPolicy()])
@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:3000", "file://", "http://[::1", "x" * 5000],
)
async def test_pages_of_other_origins_cost_no_prompt(policy, origin):
    rig = guarded(policy)
    async with rig.client() as client:
        headers = {"origin": origin, "host": "127.0.0.1:8000"}
        response = await client.post(CHAT, json=ask(), headers=headers)
    assert response.status_code == 403
    assert "--server-allowed-origins" in response.json()["error"]["message"]
    assert "access-control-allow-origin" not in response.headers
    assert rig.engine.requests == []
    response = await send(rig, "OPTIONS", CHAT, origin=origin, host="127.0.0.1:8000", **PREFLIGHT)
    assert response.status_code == 403


async def test_a_page_of_the_server_itself_may_ask():
    for origin in ("http://127.0.0.1:8000", "https://127.0.0.1:8000"):
        response = await send(guarded(), origin=origin, host="127.0.0.1:8000")
        assert response.status_code == 200
        assert "access-control-allow-origin" not in response.headers


async def test_an_allowed_page_may_ask_and_read_but_needs_the_key():
    rig = guarded(keys=KeyRing(("k",)))
    page = "http://ui.example:3000"
    response = await send(rig, "OPTIONS", CHAT, host="localhost", origin=page, **PREFLIGHT)
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == page
    assert response.headers["access-control-allow-headers"] == "authorization, content-type"
    assert "POST" in response.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in response.headers
    refused = await send(rig, host="localhost", origin=page)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == page
    answered = await send(rig, host="localhost", origin=page, authorization="Bearer k")
    assert answered.status_code == 200
    assert answered.headers["vary"] == "origin"
    assert "x-request-id" in answered.headers["access-control-expose-headers"]
    # A request that only looks like a browser's question still needs the key.
    assert (await send(rig, "OPTIONS", CHAT, host="localhost")).status_code == 401


async def test_keys_change_while_the_server_runs():
    ring = KeyRing(("old",))
    rig = guarded(keys=ring)
    assert (await send(rig, host="localhost", authorization="Bearer old")).status_code == 200
    ring.replace(("new", "newer", "new"))
    assert ring.num_keys == 2
    assert (await send(rig, host="localhost", authorization="Bearer old")).status_code == 401
    assert (await send(rig, host="localhost", x_api_key="newer")).status_code == 200


def test_a_key_file_has_a_key_a_line(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# ours\n\n alpha \nbéta\n#gone\n", encoding="utf-8")
    assert read_keys(path) == ("alpha", "béta")


@pytest.mark.parametrize(
    ("content", "named"),
    [(None, "No such file"), (b"# none\n\n", "holds no key"), (b"\xff\xfe", "not UTF-8")],
)
def test_a_key_file_that_opens_nothing_is_refused(tmp_path, content, named):
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=named) as refused:
        read_keys(path)
    assert "--server-api-key-file" in refused.value.message


def test_an_owner_is_not_its_key():
    assert owner_of(b"k") == owner_of(b"k") != owner_of(b"K")
    assert b"k" * 8 not in owner_of(b"k" * 8)
