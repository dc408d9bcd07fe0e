"""Over real sockets: clients that leave, dawdle, flood or send rubbish, and the official one."""

import asyncio
import socket
import threading

import httpx
import openai
import pytest

from ignisd.chat.parse import parse_chat
from ignisd.engine.types import FinishReason
from ignisd.http import intake
from ignisd.http.keys import KeyRing
from ignisd.http.options import HttpOptions
from tests.chat.toy import toy_model
from tests.fakes import Script
from tests.http.rig import CHAT, ask, events_of, joined, listening, make_rig, until
from tests.http.wire import connect, hang_up, raw_request, read_answer

CANCELLED = [(1, FinishReason.CANCELLED)]


async def test_the_official_client_plain_and_streamed():
    rig = make_rig(cached_script(), options=HttpOptions(keys=KeyRing(("secret",))))
    async with listening(rig.app) as address:
        client = openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="secret")
        async with client:
            models = [model.id async for model in client.models.list()]
            assert models == ["toy"]
            plain = await client.chat.completions.create(
                model="toy", messages=[{"role": "user", "content": "hi"}]
            )
            assert plain.choices[0].message.content == "hello there"
            assert plain.choices[0].finish_reason == "stop"
            assert plain.usage
            assert plain.usage.prompt_tokens_details
            assert plain.usage.prompt_tokens_details.cached_tokens == 64
            stream = await client.chat.completions.create(
                model="toy",
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert text == "hello there"
            assert chunks[-1].usage == plain.usage
            with pytest.raises(openai.BadRequestError) as bad:
                await client.chat.completions.create(
                    model="toy", messages=[{"role": "user", "content": "hi"}], temperature=9
                )
            assert bad.value.param == "temperature"
            assert (bad.value.request_id or "").startswith("req-")
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(
                    model="other", messages=[{"role": "user", "content": "hi"}]
                )
        async with openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="no") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()


def cached_script():
    return Script(make_rig().say("hello there"), cached_tokens=64)


async def test_the_official_client_sees_a_failing_stream_as_an_error():
    rig = make_rig(Script([104], reason=FinishReason.ERROR, message="it broke"))
    async with listening(rig.app) as address:
        url = f"http://{address}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="toy", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            with pytest.raises(openai.APIError, match="it broke"):
                async for _ in stream:
                    pass


async def test_the_official_client_tries_again_only_where_that_helps():
    rig = make_rig(limit=0)
    async with listening(rig.app) as address:
        url = f"http://{address}/v1"
        errors = rig.counters.errors
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=1) as client:
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(
                    model="toy", messages=[{"role": "user", "content": "hi"}]
                )
            assert errors == {"queue_full": 2}
            rig.service.set_failed("dead")
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(
                    model="toy", messages=[{"role": "user", "content": "hi"}]
                )
            assert errors == {"queue_full": 2, "engine_error": 1}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("reset", [False, True])
async def test_a_client_that_leaves_before_any_token_cancels(streamed, reset):
    rig = make_rig(Script(silent=True), options=HttpOptions(header_wait_s=0.05))
    async with listening(rig.app) as address:
        _, writer = await connect(address)
        writer.write(raw_request(ask(stream=streamed)))
        await until(lambda: rig.engine.requests)
        if reset:
            await hang_up(writer)
        else:
            writer.close()
        await until(lambda: rig.engine.left == CANCELLED)


async def test_a_client_that_leaves_in_a_silent_prefill_cancels():
    rig = make_rig(Script(silent=True), options=HttpOptions(header_wait_s=0.01, ping_s=0.02))
    async with listening(rig.app) as address:
        reader, writer = await connect(address)
        writer.write(raw_request(ask(stream=True)))
        head = await reader.readuntil(b": ping\n\n")
        assert head.startswith(b"HTTP/1.1 200")
        writer.close()
        await until(lambda: rig.engine.left == CANCELLED)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_while_tokens_come_cancels(streamed):
    gate = asyncio.Semaphore(3)
    rig = make_rig(Script([104] * 50, gate=gate))
    async with listening(rig.app) as address:
        reader, writer = await connect(address)
        writer.write(raw_request(ask(stream=streamed)))
        if streamed:
            await reader.readuntil(b'"content":"h"')
        else:
            await until(lambda: gate.locked())
        await hang_up(writer)
        await until(lambda: rig.engine.left == CANCELLED)
        assert rig.engine.stats().counters.finished[FinishReason.CANCELLED] == 1


async def test_a_client_that_leaves_amid_its_body_is_no_request():
    rig = make_rig()
    async with listening(rig.app) as address:
        _, writer = await connect(address)
        writer.write(raw_request(ask(), length=10_000))
        await asyncio.sleep(0.05)
        await hang_up(writer)
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            assert (await client.post(CHAT, json=ask())).is_success
    assert len(rig.engine.requests) == 1


async def test_many_clients_leave_and_the_rest_is_served():
    rig = make_rig(Script([104] * 5, gate=asyncio.Semaphore(0)))
    async with listening(rig.app) as address:
        for number in range(30):
            _, writer = await connect(address)
            writer.write(raw_request(ask(stream=number % 2 == 0)))
            await until(lambda number=number: len(rig.engine.requests) > number)
            await hang_up(writer)
        await until(lambda: len(rig.engine.left) == 30)
        rig.engine.script = Script([104, 105])
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            body = (await client.post(CHAT, json=ask())).json()
    assert body["choices"][0]["message"]["content"] == "hi"
    assert rig.engine.stats().busy is False


async def test_pings_fill_the_silence_and_harm_no_reader():
    gate = asyncio.Semaphore(0)
    options = HttpOptions(ping_s=0.02, header_wait_s=0.01)
    rig = make_rig(Script([104, 105], gate=gate), options=options)
    async with listening(rig.app) as address, httpx.AsyncClient() as client:
        url = f"http://{address}{CHAT}"
        async with client.stream("POST", url, json=ask(stream=True)) as response:
            text = ""
            async for piece in response.aiter_text():
                text += piece
                if text.count(": ping") == 3:
                    gate.release()
                    gate.release()
    assert text.count(": ping") >= 3
    assert joined(events_of(text)) == "hi"


async def test_headers_come_at_once_though_the_request_waits():
    rig = make_rig(Script(silent=True), options=HttpOptions(header_wait_s=0.01))
    async with listening(rig.app) as address:
        reader, writer = await connect(address)
        writer.write(raw_request(ask(stream=True)))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200" in head.splitlines()[0]
        assert b"x-request-id: req-" in head
        assert b"x-ignis-reuse" not in head
        await hang_up(writer)
        await until(lambda: rig.engine.left == CANCELLED)


async def test_a_reader_that_stops_reading_loses_its_request():
    gate = asyncio.Semaphore(0)
    rig = make_rig(
        Script([104] * 1_000_000, gate=gate),
        options=HttpOptions(write_timeout_s=0.2),
        model=toy_model(context_tokens=1 << 21),
    )

    async def speak_on():
        while True:
            gate.release()
            await asyncio.sleep(0)

    async with listening(rig.app) as address:
        host, port = address.split(":")
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, (host, int(port)))
            await loop.sock_sendall(slow, raw_request(ask(stream=True)))
            await until(lambda: rig.engine.requests)
            speaking = asyncio.create_task(speak_on())
            async with httpx.AsyncClient(base_url=f"http://{address}") as client:
                assert (await client.get("/health")).is_success
            await until(lambda: rig.engine.left == CANCELLED, 30)
            speaking.cancel()


@pytest.mark.parametrize(
    ("path", "status"), [(CHAT, 413), ("/nowhere", 404), ("/health", 405), ("/v1/models", 405)]
)
async def test_a_body_that_nobody_reads_does_not_hang_the_connection(path, status):
    rig = make_rig(options=HttpOptions(max_body_bytes=1 << 20))
    async with listening(rig.app) as address, httpx.AsyncClient() as client:
        for _ in range(3):
            response = await client.post(
                f"http://{address}{path}",
                content=b"x" * (4 << 20),
                headers={"content-type": "application/json"},
            )
            assert response.status_code == status
            assert response.json()["error"]["code"]
        assert (await client.get(f"http://{address}/health")).is_success


async def test_a_connection_is_kept_for_the_next_request():
    rig = make_rig()
    async with listening(rig.app) as address:
        reader, writer = await connect(address)
        for streamed in (False, True, False):
            writer.write(raw_request(ask(stream=streamed)))
            status, body = await read_answer(reader)
            assert b"200" in status.splitlines()[0]
            assert (b"[DONE]" in body) == streamed
        writer.write(raw_request(ask(temperature=9)))
        status, body = await read_answer(reader)
        assert b"400" in status.splitlines()[0]
        assert b"invalid_value" in body
        writer.close()
    assert len(rig.engine.requests) == 3


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 20_000,
        b"GET /%ff%fe%00 HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
async def test_rubbish_is_survived(rubbish):
    rig = make_rig()
    async with listening(rig.app) as address:
        reader, writer = await connect(address)
        writer.write(rubbish)
        writer.write_eof()
        answer = await asyncio.gather(reader.read(1 << 16), return_exceptions=True)
        assert b"200" not in bytes(answer[0] if isinstance(answer[0], bytes) else b"")[:12]
        writer.close()
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://{address}/health")).is_success


@pytest.mark.parametrize("streamed", [False, True])
async def test_prompts_of_those_who_left_are_not_read(monkeypatch, streamed):
    """They wait for a thread; of ten that do, nine leave."""
    release, begun = threading.Event(), []
    real = parse_chat

    def slow(body, policies):
        begun.append(body)
        release.wait(10)
        return real(body, policies)

    monkeypatch.setattr(intake, "parse_chat", slow)
    rig = make_rig(options=HttpOptions(num_workers=1))
    async with listening(rig.app) as address, httpx.AsyncClient() as client:
        first = asyncio.create_task(client.post(f"http://{address}{CHAT}", json=ask()))
        await until(lambda: begun)
        writers = []
        for number in range(9):
            writers.append((await connect(address))[1])
            writers[-1].write(raw_request(ask(stream=streamed, user=f"{number}")))
        await asyncio.sleep(0.1)
        last = asyncio.create_task(client.post(f"http://{address}{CHAT}", json=ask()))
        await asyncio.sleep(0.1)
        for writer in writers:
            await hang_up(writer)
        await asyncio.sleep(0.2)
        release.set()
        assert (await first).is_success
        assert (await last).is_success
    assert len(begun) == 2
    assert len(rig.engine.requests) == 2
