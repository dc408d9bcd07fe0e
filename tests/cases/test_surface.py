"""Clients that leave or only seem to, prompts and schemas without measure, and what is counted."""

import asyncio
import json
import re
from collections.abc import Coroutine
from typing import Any
from unittest.mock import patch

from ignisd.chat import arguments
from ignisd.chat.arguments import read_tool
from ignisd.connections import Connection
from ignisd.engine.types import FinishReason
from ignisd.http.options import HttpOptions
from tests.chat.test_tokenizer import TEXTS, tokenizer
from tests.fakes import Script
from tests.http.rig import CHAT, ask, listening, make_rig, until
from tests.http.test_long_prompts import counting_rig
from tests.http.wire import connected, raw_request, read_answer
from tests.planting import catches

PATIENCE_S = 12.0
NOTICED_S = 8.0
CANCELLED = [(1, FinishReason.CANCELLED)]


def run(story: Coroutine[Any, Any, None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story

    with patch.multiple(Connection, grace_s=0.01, probe_s=0.05):
        asyncio.run(within())


@catches("what-is-ahead-stops-the-reading", "nobody-is-probed")
def test_l71_a_client_that_left_is_noticed_whatever_it_had_sent_ahead() -> None:
    async def story(ahead: bytes, streamed: bool) -> None:
        rig = make_rig(Script(silent=True), options=HttpOptions(header_wait_s=0.01))
        async with listening(rig.app) as address, connected(address) as (_, writer):
            writer.write(raw_request(ask(stream=streamed), extra=ahead))
            await until(lambda: rig.engine.requests)
            writer.close()
            await until(lambda: rig.engine.left == CANCELLED, NOTICED_S)

    for ahead in (b"", b"\r\n", raw_request(ask())):
        for streamed in (False, True):
            run(story(ahead, streamed))


@catches("an-end-is-a-leaving")
def test_l71_a_client_that_closed_its_own_side_only_has_not_left() -> None:
    async def story(streamed: bool) -> None:
        gate = asyncio.Semaphore(0)
        rig = make_rig()
        rig.engine.script = Script(rig.say("hello"), gate=gate)
        async with listening(rig.app) as address, connected(address) as (reader, writer):
            writer.write(raw_request(ask(stream=streamed)))
            writer.write_eof()
            await until(lambda: rig.engine.requests)
            await asyncio.sleep(0.05)
            gate.release()
            head, body = await read_answer(reader)
            assert head.startswith(b"HTTP/1.1 200")
            assert b"hello" in body
        assert rig.engine.left == []

    run(story(False))
    run(story(True))


@catches("framed-twice-is-taken", "refusals-are-not-counted")
def test_l85_a_request_that_is_turned_away_is_answered_and_counted() -> None:
    async def story() -> None:
        rig = make_rig(Script(silent=True), limit=0)
        async with listening(rig.app, rig.counters.count_refusal) as address:
            async with connected(address) as (reader, writer):
                writer.write(raw_request(ask()))
                assert b" 429 " in (await read_answer(reader))[0]
            async with connected(address) as (reader, writer):
                twice = raw_request(ask()).replace(
                    b"\r\n", b"\r\ntransfer-encoding: chunked\r\n", 1
                )
                writer.write(twice)
                head, body = await read_answer(reader)
                assert b" 400 " in head
                assert json.loads(body)["error"]["code"] == "malformed_request"
        assert rig.counters.refused == {"queue_full": 1, "malformed_request": 1}

    run(story())


@catches("long-prompts-are-tokenized-whole")
def test_l106_an_over_long_prompt_is_refused_without_being_read() -> None:
    async def story() -> None:
        rig, reading = counting_rig()
        long = {"role": "user", "content": "this goes on " * 40_000}
        for streamed in (False, True):
            async with rig.client() as client:
                answer = await client.post(CHAT, json={"messages": [long], "stream": streamed})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
            limit, least = map(int, re.findall(r"\d+", error["message"])[:2])
            assert limit == 4096 < least
        assert reading.read < 300_000
        assert rig.engine.requests == []

    run(story())


@catches("a-bound-that-is-none")
def test_l106_the_number_of_a_refusal_is_never_too_high() -> None:
    for text in TEXTS.values():
        reading = tokenizer()
        has = len(reading.encode(text))
        for limit in (has // 2, has, has + 1, 2 * has):
            least = reading.at_least(text, limit)
            assert least is None or limit <= least <= has


@catches("schemas-are-followed-without-end")
def test_l95_a_tool_of_any_schema_is_read_in_bounds() -> None:
    steps = 0
    real = arguments._own_types

    def counted(schema: Any) -> Any:
        nonlocal steps
        steps += 1
        return real(schema)

    wide = {"anyOf": [{"description": str(number)} for number in range(300)]}
    many = {f"p{number}": {"$ref": "#/$defs/wide"} for number in range(300)}
    parameters = {"properties": many, "$defs": {"wide": wide}}
    with patch.object(arguments, "_own_types", counted):
        read = read_tool({"function": {"name": "f", "parameters": parameters}})
    assert len(read.types) == 300
    assert steps < 30_000


@catches("answers-share-a-seed")
def test_several_answers_are_drawn_apart() -> None:
    async def story() -> None:
        rig = make_rig()
        async with rig.client() as client:
            assert (await client.post(CHAT, json=ask(n=4))).is_success
        assert len({request.sampling.seed for request in rig.engine.requests}) == 4

    run(story())
