"""A running daemon among requests that mean it no good; after each it serves as before."""

import concurrent.futures
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.running import Daemon, running

CHAT = "/v1/chat/completions"
PATHS = (CHAT, "/v1/completions", "/v1/tokenize", "/v1/detokenize", "/v1/reuse/explain")
USER = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    cache = str(Path.cwd() / ".pytest_cache" / "ignisd")
    limits = ["--server-max-body-bytes", "1M", "--model-max-context", "4096"]
    flags = ["--check", "on", *limits, "--compile-cache-dir", cache]
    with running(tmp_path_factory.mktemp("hostile"), *flags) as started:
        yield started
        with idle_connections(started, 20):
            assert started.stop() == 0
        check_log(started.log.read_text())


@contextmanager
def idle_connections(daemon: Daemon, count: int) -> Iterator[None]:
    """Connections that are open when the daemon ends, half of them amid a request."""
    raws = [socket.create_connection(("127.0.0.1", daemon.port), timeout=30) for _ in range(count)]
    try:
        for raw in raws[::2]:
            raw.sendall(
                f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n".encode()
            )
        yield
    finally:
        for raw in raws:
            raw.close()


def check_log(log: str) -> None:
    """Nothing that a client sent is in the log, and nothing was a surprise to the server."""
    for word in ("Traceback", "Error", "never retrieved", "exception", "secret-of-a-prompt"):
        assert word not in log, [line for line in log.splitlines() if word in line][:5]
    lines = [line.split()[1:] for line in log.splitlines()]
    assert all(words[0] in ("debug", "info", "warning", "error") for words in lines), log[-3000:]
    assert not [words for words in lines if words[0] == "error"]


@pytest.fixture(autouse=True)
def serves_on(daemon: Daemon) -> Iterator[None]:
    """Whatever a test did, an ordinary request is answered, and nothing is left running."""
    yield
    body = {"messages": USER, "max_tokens": 4, "temperature": 0}
    answer = httpx.post(daemon.url + CHAT, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    ends_s = time.monotonic() + 20
    while time.monotonic() < ends_s:
        lines = [line for line in daemon.get("/metrics").splitlines() if "ignis_requests{" in line]
        if lines and all(float(line.split()[-1]) == 0 for line in lines):
            return
        time.sleep(0.1)
    raise AssertionError(f"requests are left: {lines}")


def nested(depth: int) -> bytes:
    return b'{"messages":' + b"[" * depth + b"]" * depth + b"}"


BODIES = {
    "nothing": b"",
    "half": b'{"messages":[{"role":',
    "no object": b"[]",
    "null": b"null",
    "a number": b"1" * 5000,
    "bytes": bytes(range(256)),
    "a lone surrogate": b'{"messages":[{"role":"user","content":"\\ud800"}],"prompt":"\\ud800"}',
    "an invalid character": b'{"messages":[{"role":"user","content":"\xff"}]}',
    "deep": nested(100_000),
    "deep where anything may stand": b'{"prompt":"x","messages":[{"role":"user","content":"x"}],'
    b'"chat_template_kwargs":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
    "infinity": b'{"messages":[],"temperature":1e999}',
    "not a number": b'{"messages":[],"temperature":NaN}',
    "a huge number": b'{"prompt":"x","max_tokens":' + b"9" * 1000 + b"}",
    "huge ids": b'{"prompt":[99999999999999999999],"tokens":[99999999999999999999]}',
    "twice": b'{"prompt":"x","prompt":5}',
}


# What some route may take: a limit beyond the context is cut to it, and other fields are not its.
MAY_PASS = ("a huge number", "huge ids", "twice", "deep where anything may stand")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", BODIES)
def test_malformed_bodies_are_refused_by_a_sentence(daemon: Daemon, path: str, name: str):
    answer = httpx.post(daemon.url + path, content=BODIES[name], timeout=60)
    if answer.status_code == 200 and name in MAY_PASS:
        return
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert 0 < len(error["message"]) < 1000
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("content", "statuses"),
    [
        ("a" * 900_000, {400}),
        (" " * 900_000, {200}),
        ("\n" * 500_000, {200}),
        ("🙂" * 200_000, {400}),
        ("<|im_start|>" * 60_000, {400}),
        ("\0" * 100_000, {400}),
        ("{{ 7 * 7 }}{% for x in range(10**9) %}x{% endfor %}", {200}),
        ("", {200}),
        ("\u202e\u200b\ufeff\ud7ff", {200}),
    ],
    ids=["long", "blank", "lines", "emoji", "specials", "zeros", "template", "empty", "odd"],
)
def test_contents_that_might_choke_a_tokenizer(daemon: Daemon, content: str, statuses: set[int]):
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
    answer = httpx.post(daemon.url + CHAT, json=body, timeout=120)
    assert answer.status_code in statuses, answer.text[:500]
    assert len(answer.text) < 5000


def test_bodies_over_the_limit_are_refused_before_they_are_read(daemon: Daemon):
    for extra in ({"content-length": str(10**15)}, {"content-length": str(2 << 20)}):
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=30) as raw:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in extra.items())
            raw.sendall(head.encode() + b"\r\n" + b'{"messages":')
            assert b" 413 " in raw.recv(4096)


def test_ten_thousand_messages_and_tools(daemon: Daemon):
    many = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * 5000
    answer = httpx.post(daemon.url + CHAT, json={"messages": many, "max_tokens": 1}, timeout=120)
    assert answer.status_code in (200, 400)
    tools = [{"type": "function", "function": {"name": f"f{n}"}} for n in range(3000)]
    body = {"messages": USER, "tools": tools, "max_tokens": 1}
    assert httpx.post(daemon.url + CHAT, json=body, timeout=120).status_code in (200, 400)


def test_slow_senders_hold_nobody_up(daemon: Daemon):
    """Fifty connections that send a byte now and then, and fifty that send nothing."""
    raws = [socket.create_connection(("127.0.0.1", daemon.port), timeout=30) for _ in range(100)]
    try:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000\r\n\r\n"
        for raw in raws[:50]:
            raw.sendall(head.encode())
        for _ in range(5):
            for raw in raws[:50]:
                raw.sendall(b" ")
            body = {"messages": USER, "max_tokens": 2}
            assert httpx.post(daemon.url + CHAT, json=body, timeout=30).status_code == 200
    finally:
        for raw in raws:
            raw.close()


def test_readers_that_take_nothing_hold_nobody_up(daemon: Daemon):
    content = json.dumps({"messages": USER, "max_tokens": 3000, "stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
    raws = []
    try:
        for _ in range(12):
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            raw.connect(("127.0.0.1", daemon.port))
            raw.sendall(head.encode() + content)
            raws.append(raw)
        body = {"messages": USER, "max_tokens": 2}
        assert httpx.post(daemon.url + CHAT, json=body, timeout=60).status_code == 200
    finally:
        for raw in raws:
            raw.close()


def test_a_flood_of_vanishing_requests(daemon: Daemon):
    """At every stage: amid the head, amid the body, after it, and amid the answer."""
    content = json.dumps(
        {"messages": [{"role": "user", "content": "word " * 500}], "max_tokens": 200}
    ).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
    whole = head.encode() + content

    def vanish(number: int) -> None:
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=30) as raw:
            raw.sendall(whole[: (number * 37) % (len(whole) + 1)] if number % 3 else whole)
            time.sleep(0.01 * (number % 5))
            linger = bytes([1, 0, 0, 0, 0, 0, 0, 0])
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        list(threads.map(vanish, range(200)))


def test_headers_that_lie(daemon: Daemon):
    tries = [
        b"content-length: 5\r\ncontent-length: 500\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"transfer-encoding: gzip\r\n",
        b"content-length: 99999999999999999999999\r\n",
        b"x-request-id: a\r\n\tb\r\ncontent-length: 2\r\n",
        b"expect: 100-continue\r\ncontent-length: 2\r\n",
        b"upgrade: h2c\r\nhttp2-settings: AAMAAABk\r\nconnection: Upgrade, HTTP2-Settings\r\n",
        b"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
    ]
    for lie in tries:
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=10) as raw:
            raw.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n".encode() + lie + b"\r\n{}")
            raw.shutdown(socket.SHUT_WR)
            got = b""
            while piece := raw.recv(65536):
                got += piece
            assert b" 200 " not in got.split(b"\r\n")[0]
            assert b" 101 " not in got
            assert b"Traceback" not in got


def exchange(daemon: Daemon, sent: bytes, *, ends: bool = False) -> bytes:
    """What comes back to some bytes, until the server has said all it has to say for a second."""
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=30) as raw:
        got = b""
        try:
            raw.sendall(sent)
            if ends:
                raw.shutdown(socket.SHUT_WR)
            raw.settimeout(60)
            while b"\r\n\r\n" not in got:
                piece = raw.recv(1 << 16)
                if not piece:
                    break
                got += piece
        except ConnectionError:
            pass  # it had said what it had to say, and hung up
    return got


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /health?" + b"a=b&" * 200_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\ncookie: " + b"c" * 1_000_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"x" * 1_000_000,
        b"A" * 1_000_000,
        b"\r\n" * 100_000,
        bytes(range(256)) * 1000,
    ],
    ids=["path", "query", "headers", "cookie", "name", "method", "lines", "bytes"],
)
def test_heads_without_measure(daemon: Daemon, head: bytes):
    first = exchange(daemon, head).split(b"\r\n")[0]
    assert not first or first.split()[1] in (b"400", b"404", b"431")


def test_requests_in_one_breath(daemon: Daemon):
    """Sent ahead in hundreds, read slowly or not at all, with and without an end."""
    content = json.dumps({"messages": USER, "max_tokens": 1}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
    many = (head.encode() + content) * 100
    assert exchange(daemon, many).startswith(b"HTTP/1.1 200")
    assert exchange(daemon, many, ends=True).startswith(b"HTTP/1.1 200")
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=30) as raw:
        raw.sendall(many)  # and gone


def test_half_closed_clients_are_answered(daemon: Daemon):
    for version in ("1.1", "1.0"):
        sent = f"GET /health HTTP/{version}\r\nhost: localhost\r\n\r\n".encode()
        assert exchange(daemon, sent, ends=True).startswith(b"HTTP/1.1 200")
    content = json.dumps({"messages": USER, "max_tokens": 30, "temperature": 0}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
    answer = exchange(daemon, head.encode() + content, ends=True)
    assert b" 200 " in answer.replace(b"HTTP/1.1 100 \r\n\r\n", b"").split(b"\r\n")[0]


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or {}}}


def circle(width: int) -> dict[str, Any]:
    return {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * width}}}


def deep_schema(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("fields", "statuses"),
    [
        ({"stop": [f"s{n}" for n in range(1000)]}, {400}),
        ({"stop": ["a" * 1024, "b" * 1024, "aa", "ab"]}, {200}),
        ({"n": 10**9}, {400}),
        ({"n": 8, "max_tokens": 8}, {200}),
        ({"logit_bias": {str(n): 100 for n in range(5000)}}, {400}),
        ({"tools": [tool("f", circle(100))]}, {200}),
        ({"tools": [tool("f", deep_schema(200))]}, {200, 400}),
        ({"tools": [tool("f", deep_schema(200))] * 12}, {400}),
        ({"tools": [tool("</function>")]}, {400}),
        ({"tools": [{"type": "x" * 100_000}] * 5}, {200}),
        ({"chat_template_kwargs": {"messages": []}}, {400}),
        ({"chat_template_kwargs": {"x" * 1000: "y" * 1000, "loop": 1, "self": 2}}, {200, 400}),
        ({"cache_salt": "\x00" * 10_000}, {200}),
        ({"model": "e" * 100_000}, {404}),
        ({"model": "../../etc/passwd"}, {404}),
        ({"class": "a" * 100_000}, {400}),
        ({"user": "secret-of-a-prompt", "metadata": {"a": "secret-of-a-prompt"}}, {200}),
        ({"seed": 10**30}, {400}),
        ({"temperature": 1e-300, "top_p": 1e-300, "min_p": 1.0}, {200}),
        ({"max_tokens": 10**18, "stop": [" "]}, {200}),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_fields_without_measure(
    daemon: Daemon, fields: dict[str, Any], statuses: set[int], streamed: bool
):
    body = {"messages": USER, "max_tokens": 2, "stream": streamed, **fields}
    answer = httpx.post(daemon.url + CHAT, json=body, timeout=120)
    assert answer.status_code in statuses, answer.text[:500]
    if answer.status_code != 200:
        assert len(answer.text) < 3000


def test_many_answers_for_clients_that_vanish(daemon: Daemon):
    body = {"messages": USER, "max_tokens": 500, "n": 8, "stream": True}
    for wait_s in (0.0, 0.05, 0.2):
        with (
            httpx.Client(timeout=60) as session,
            session.stream("POST", daemon.url + CHAT, json=body) as answer,
        ):
            assert answer.status_code == 200
            time.sleep(wait_s)


def test_nothing_that_was_said_is_in_the_log(daemon: Daemon):
    secret = "secret-of-a-prompt"
    body = {"messages": [{"role": "user", "content": secret}], "max_tokens": 2}
    headers = {"x-request-id": f"{secret} {secret}", "user-agent": secret}
    assert httpx.post(daemon.url + CHAT, json=body, headers=headers, timeout=60).is_success
    for path in (f"/{secret}", f"/v1/models/{secret}", f"/v1/reuse?limit={secret}"):
        httpx.get(daemon.url + path, timeout=60)
    httpx.post(daemon.url + CHAT, json={**body, "temperature": secret}, timeout=60)
    httpx.patch(daemon.url + "/v1/config", json={secret: secret}, timeout=60)
    httpx.patch(daemon.url + "/v1/config", json={"log.level": secret}, timeout=60)
    assert secret not in daemon.log.read_text()
