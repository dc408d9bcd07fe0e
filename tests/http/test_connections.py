"""What HTTP leaves to the two ends of a connection: who has closed what, whose bytes are next."""

import asyncio
import json
import socket
from typing import Any

import pytest

from ignisd.connections import Connection
from ignisd.engine.types import FinishReason
from ignisd.errors import MalformedRequest
from ignisd.http.options import HttpOptions
from ignisd.http.origin import OriginPolicy
from tests.fakes import Script
from tests.http.rig import CHAT, ask, events_of, listening, make_rig, until
from tests.http.wire import (
    connect,
    connected,
    hang_up,
    raw_request,
    read_answer,
    read_to_end,
    read_until,
)

CANCELLED = [(1, FinishReason.CANCELLED)]
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Looks and probes come in quick succession."""
    monkeypatch.setattr(Connection, "grace_s", 0.01)
    monkeypatch.setattr(Connection, "probe_s", 0.05)
    monkeypatch.setattr(Connection, "old_client_s", 0.1)


def gated(text="hello there"):
    gate = asyncio.Semaphore(0)
    rig = make_rig(options=HttpOptions(header_wait_s=0.02, ping_s=0.05))
    rig.engine.script = Script(rig.say(text), gate=gate)
    return rig, gate


def open_gate(gate):
    for _ in range(100):
        gate.release()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("waits_s", [0.0, 0.2])
async def test_a_client_that_has_closed_its_own_side_is_answered(streamed, waits_s):
    rig, gate = gated()
    async with listening(rig.app) as address, connected(address) as (reader, writer):
        writer.write(raw_request(ask(stream=streamed)))
        writer.write_eof()
        await until(lambda: rig.engine.requests)
        await asyncio.sleep(waits_s)
        assert rig.engine.left == []
        open_gate(gate)
        head, body = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 200")
        if not streamed:
            assert json.loads(body)["choices"][0]["message"]["content"] == "hello there"
        else:
            assert b"[DONE]" in body
        assert await read_to_end(reader) == b""
    assert rig.engine.left == []


async def test_a_client_that_closes_its_side_amid_a_stream_reads_it_to_the_end():
    rig, gate = gated()
    async with listening(rig.app) as address, connected(address) as (reader, writer):
        writer.write(raw_request(ask(stream=True)))
        gate.release()
        await read_until(reader, b'"content":"h')
        writer.write_eof()
        await asyncio.sleep(0.1)
        open_gate(gate)
        assert b"[DONE]" in await read_to_end(reader)
    assert rig.engine.left == []


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_closes_its_side_first_and_leaves_later_is_noticed(streamed):
    rig, _ = gated()
    async with listening(rig.app) as address, connected(address) as (_, writer):
        writer.write(raw_request(ask(stream=streamed)))
        writer.write_eof()
        await until(lambda: rig.engine.requests)
        await asyncio.sleep(0.1)
        assert rig.engine.left == []
        writer.close()
        await until(lambda: rig.engine.left == CANCELLED)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("ahead", [b"\r\n", b"x", HEALTH, b"y" * 20_000], ids=len)
@pytest.mark.parametrize("reset", [False, True])
async def test_what_is_sent_ahead_hides_no_leaving(streamed, ahead, reset):
    rig, _ = gated()
    async with listening(rig.app) as address, connected(address) as (_, writer):
        writer.write(raw_request(ask(stream=streamed), extra=ahead))
        await until(lambda: rig.engine.requests)
        await asyncio.sleep(0.02)
        if reset:
            await hang_up(writer)
        else:
            writer.close()
        await until(lambda: rig.engine.left == CANCELLED)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("opened", [False, True])
async def test_nothing_waits_for_the_idle_time_of_a_client_that_has_left(streamed, reset, opened):
    """Also where its answer ends, or notices, only after the connection has ended."""
    rig, gate = gated("many words " * 40)
    async with listening(rig.app) as address:
        async with connected(address) as (reader, writer):
            writer.write(HEALTH)
            await read_answer(reader)
        await asyncio.sleep(0.05)
        before = len(asyncio.all_tasks())
        async with connected(address) as (_, writer):
            writer.write(raw_request(ask(stream=streamed)))
            await until(lambda: rig.engine.requests)
            if opened:
                open_gate(gate)
            await (hang_up(writer) if reset else asyncio.sleep(0))
        await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_a_client_that_leaves_while_a_call_is_held_back_is_noticed():
    """Nothing is sent for a call before it is complete, so nothing sent tells of the leaving."""
    rig, gate = gated("<tool_call>\n<function=f>\n<parameter=a>\n" + "x" * 500)
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with listening(rig.app) as address, connected(address) as (reader, writer):
        writer.write(raw_request(ask(stream=True, tools=tools)))
        open_gate(gate)
        head = await read_until(reader, b"\r\n\r\n")
        assert b"200" in head.splitlines()[0]
        await until(lambda: gate.locked())
        writer.close()
        await until(lambda: rig.engine.left == CANCELLED)


async def test_a_wish_for_another_protocol_hides_no_leaving():
    rig, _ = gated()
    wish = (
        b"host: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n"
    )
    async with listening(rig.app) as address, connected(address) as (_, writer):
        writer.write(raw_request(ask()).replace(b"host: x\r\n", wish))
        await until(lambda: rig.engine.requests)
        writer.close()
        await until(lambda: rig.engine.left == CANCELLED)


async def test_an_old_client_has_a_moment_after_its_end():
    """It can be sent nothing to find out, and behind most proxies the end means that it left."""
    rig, _ = gated()
    async with listening(rig.app) as address:
        async with connected(address) as (reader, writer):
            writer.write(b"GET /health HTTP/1.0\r\n\r\n")
            writer.write_eof()
            assert b'"ready"' in await read_to_end(reader)
        async with connected(address) as (reader, writer):
            writer.write(raw_request(ask(), version="1.0"))
            writer.write_eof()
            await until(lambda: rig.engine.left == CANCELLED)


@pytest.mark.parametrize("streamed", [False, True])
async def test_old_clients_are_served(streamed):
    rig = make_rig()
    async with listening(rig.app) as address, connected(address) as (reader, writer):
        writer.write(raw_request(ask(stream=streamed), version="1.0"))
        head, _, body = (await read_to_end(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"transfer-encoding" not in head.lower()
        if streamed:
            assert events_of(body.decode())[-1] == "[DONE]"
        else:
            assert json.loads(body)["choices"][0]["message"]["content"] == "hello there"


@pytest.mark.parametrize("closes", [False, True])
async def test_requests_sent_ahead_are_answered_in_their_order(closes):
    rig = make_rig()
    async with listening(rig.app) as address, connected(address) as (reader, writer):
        for number in range(20):
            writer.write(raw_request(ask(stream=number % 2 == 0)))
            writer.write(HEALTH)
        if closes:
            writer.write_eof()
        for number in range(20):
            head, body = await read_answer(reader)
            assert head.startswith(b"HTTP/1.1 200"), number
            assert (b"[DONE]" in body) == (number % 2 == 0)
            assert (await read_answer(reader))[1].startswith(b'{"status":"ready"')
        if closes:
            assert await read_to_end(reader) == b""
    assert len(rig.engine.requests) == 20


async def test_much_sent_ahead_waits_and_is_answered():
    rig, gate = gated()
    async with listening(rig.app) as address, connected(address) as (reader, writer):
        writer.write(raw_request(ask()))
        writer.write(HEALTH * 40_000)  # more than the buffers of both ends take
        await until(lambda: rig.engine.requests)
        open_gate(gate)
        assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 200")
        for _ in range(100):
            assert (await read_answer(reader))[1].startswith(b'{"status":"ready"')


def post(*lines, body=b"{}"):
    return b"\r\n".join([b"POST " + CHAT.encode() + b" HTTP/1.1", b"host: x", *lines, b"", body])


MALFORMED = {
    "framed twice": post(b"content-length: 2", b"transfer-encoding: chunked"),
    "framed twice, the other way": post(b"transfer-encoding: chunked", b"content-length: 2"),
    "two lengths": post(b"content-length: 2", b"content-length: 20"),
    "two lengths in one": post(b"content-length: 2, 20"),
    "a length below zero": post(b"content-length: -2"),
    "no number": post(b"content-length: two"),
    "no encoding that is known": post(b"transfer-encoding: gzip, chunked"),
    "chunks of no size": post(b"transfer-encoding: chunked", body=b"zz\r\n"),
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "no header": b"GET /health HTTP/1.1\r\nhost: x\r\nnonsense\r\n\r\n",
    "a zero byte": b"GET /health HTTP/1.1\r\nhost: x\r\na: b\0c\r\n\r\n",
    "too many headers": b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 20_000,
    "a header without end": b"GET /health HTTP/1.1\r\nhost: x\r\na: " + b"b" * 100_000,
    "no request": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a path of bytes": b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_http_is_answered_in_our_shape_and_closed(name):
    refused: list[Any] = []
    rig = make_rig()
    async with listening(rig.app, refused.append) as address, connected(address) as wires:
        reader, writer = wires
        writer.write(MALFORMED[name])
        got = await read_to_end(reader)
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.split()[1] in (b"400", b"431", b"501"), got
    assert b"connection: close" in head
    assert b"x-should-retry: false" in head
    error = json.loads(body)["error"]
    assert error["code"] == MalformedRequest.code
    assert error["message"].endswith(".")
    assert [type(each) for each in refused] == [MalformedRequest]
    assert rig.engine.requests == []


@pytest.mark.parametrize("target", ["http://x", "http://x/health", "HTTP://x/health?a=/b"])
async def test_a_whole_url_as_target_is_its_path(target):
    rig = make_rig()
    async with listening(rig.app) as address, connected(address) as (reader, writer):
        writer.write(f"GET {target} HTTP/1.1\r\nhost: other\r\n\r\n".encode())
        _, body = await read_answer(reader)
    if "health" in target:
        assert json.loads(body)["status"] == "ready"
    else:
        assert "There is no / here." in json.loads(body)["error"]["message"]


async def test_the_host_of_a_whole_url_is_the_one_that_counts():
    rig = make_rig(options=HttpOptions(origins=OriginPolicy(loopback_only=True)))
    answers = []
    async with listening(rig.app) as address:
        for named, host in (("localhost", "evil.example"), ("evil.example", "localhost")):
            async with connected(address) as (reader, writer):
                writer.write(
                    f"GET http://{named}/v1/models HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
                )
                answers.append((await read_answer(reader))[0].split()[1])
    assert answers == [b"200", b"403"]


@pytest.mark.parametrize("method", [b"CONNECT x:80", b"OPTIONS *", b"TRACE /health", b"GET x"])
async def test_odd_methods_and_targets_have_an_answer(method):
    rig = make_rig()
    async with listening(rig.app) as address, connected(address) as (reader, writer):
        writer.write(method + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        head, body = await read_answer(reader)
        assert head.split()[1] in (b"404", b"405")
        assert json.loads(body)["error"]["code"]


async def test_a_web_socket_is_a_request_like_others():
    rig = make_rig()
    wish = b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    wish += b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    async with listening(rig.app) as address, connected(address) as (reader, writer):
        for _ in range(2):
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n" + wish)
            head, body = await read_answer(reader)
            assert head.startswith(b"HTTP/1.1 200")
            assert json.loads(body)["status"] == "ready"


def connections():
    """Tasks of connections that the server still has."""
    return [task for task in asyncio.all_tasks() if "_server_callback" in repr(task.get_coro())]


async def test_a_body_without_end_that_nobody_reads_leaves_nothing_behind(monkeypatch):
    # Long enough for a busy machine to read the answer before the other side closes.
    monkeypatch.setattr("ignisd.http.guard._DRAIN_S", 1.0)
    rig = make_rig()
    async with listening(rig.app) as address, connected(address) as (reader, writer):
        writer.write(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")

        async def send_on():
            while True:
                writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                await writer.drain()

        sending = asyncio.create_task(send_on())
        head, _ = await read_answer(reader)
        assert b"404" in head.splitlines()[0]
        await until(lambda: not connections())
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_a_plain_answer_that_is_not_read_is_given_up(monkeypatch):
    monkeypatch.setattr(Connection, "unread_s", 0.2)
    rig = make_rig()
    async with listening(rig.app) as address:
        host, port = address.split(":")
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, (host, int(port)))
            asked = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"
            sending = asyncio.create_task(loop.sock_sendall(slow, asked * 5000))
            await until(connections)
            await until(lambda: not connections(), 20)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def test_headers_that_dribble_in_end_with_the_idle_time(monkeypatch):
    rig = make_rig()
    async with listening(rig.app, keep_alive_s=0.3) as address:
        _, writer = await connect(address)

        async def dribble():
            while True:
                writer.write(b"a")
                await asyncio.sleep(0.02)

        writer.write(b"GET /health HTTP/1.1\r\n")
        sending = asyncio.create_task(dribble())
        await until(lambda: not connections())
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await hang_up(writer)


async def test_a_stop_amid_what_was_sent_ahead_is_no_surprise():
    reported: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    rig, _ = gated()
    writers = []
    async with listening(rig.app) as address:
        for streamed in (False, True):
            writers.append((await connect(address))[1])
            writers[-1].write(raw_request(ask(stream=streamed), extra=HEALTH))
        await until(lambda: len(rig.engine.requests) == 2)
        await asyncio.sleep(0.1)
    for writer in writers:
        await hang_up(writer)
    errors = [context.get("exception") for context in reported]
    assert not [error for error in errors if not isinstance(error, asyncio.CancelledError)]
