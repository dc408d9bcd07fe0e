"""Several answers to one request, and answers that go on past their end."""

import asyncio

import pytest

from ignisd.engine.types import FinishReason
from ignisd.http.options import HttpOptions
from tests.fakes import Script
from tests.http.rig import CHAT, ask, events_of, listening, make_rig, until
from tests.http.wire import connected, raw_request

TEXTS = ["hello there", "good day to you", "hm"]
PLAIN = "/v1/completions"
BODIES = {CHAT: ask(), PLAIN: {"prompt": "hello", "max_tokens": 50}}


def talking(**options):
    """A rig whose model gives each of three requests another answer."""
    rig = make_rig(options=HttpOptions(draw_seed=lambda: 2**32 - 1, **options))

    def script(request):
        index = len(rig.engine.requests) % 3
        cached = 64 if index else 0  # the first reads the prompt, the others resume
        return Script(rig.say(TEXTS[index]), cached_tokens=cached)

    rig.engine.script = script
    return rig


async def post(rig, path, **fields):
    async with rig.client() as client:
        response = await client.post(path, json={**BODIES[path], "n": 3, **fields})
    assert response.status_code == 200, response.text
    return response


def text_of(choice):
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.parametrize("path", BODIES)
async def test_each_answer_has_its_index_and_the_prompt_counts_once(path):
    rig = talking()
    body = (await post(rig, path, return_reuse=True)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [text_of(choice) for choice in body["choices"]] == TEXTS
    assert {choice["finish_reason"] for choice in body["choices"]} == {"stop"}
    usage = body["usage"]
    assert usage["completion_tokens"] == sum(len(rig.say(text)) for text in TEXTS)
    assert usage["prompt_tokens"] == rig.engine.requests[0].prompt_tokens
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert body["ignis_reuse"]["miss_reason"] == "no_match"
    assert body["timings"]["predicted_n"] == usage["completion_tokens"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("usage", [False, True])
async def test_a_stream_of_several_is_what_they_are_in_one_piece(path, usage):
    plain = (await post(talking(), path)).json()
    response = await post(talking(), path, stream=True, stream_options={"include_usage": usage})
    *events, done = events_of(response.text)
    assert done == "[DONE]"
    if usage:
        last = events.pop()
        assert (last["choices"], last["usage"]) == ([], plain["usage"])
    texts = ["", "", ""]
    reasons: list[list[str | None]] = [[], [], []]
    for event in events:
        (choice,) = event["choices"]
        piece = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        texts[choice["index"]] += piece
        reasons[choice["index"]].append(choice["finish_reason"])
    assert texts == [text_of(choice) for choice in plain["choices"]]
    for each in reasons:
        assert each[-1] == "stop"
        assert set(each[:-1]) <= {None}
    # Times are told once, when all have ended.
    assert ["timings" in event for event in events].count(True) == 1
    assert "timings" in events[-1]


async def test_each_answer_is_drawn_by_a_seed_of_its_own():
    rig = talking()
    await post(rig, CHAT)
    await post(rig, CHAT, seed=7)
    seeds = [request.sampling.seed for request in rig.engine.requests]
    assert seeds == [2**32 - 1, 0, 1, 7, 8, 9]
    names = [request.name for request in rig.engine.requests[:3]]
    assert names == [names[0], f"{names[0]}-1", f"{names[0]}-2"]
    assert len({request.id for request in rig.engine.requests}) == 6


async def test_calls_of_each_answer_are_its_own():
    rig = make_rig()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    call = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    rig.engine.script = lambda request: Script(rig.say(call.replace("{}", str(request.id))))
    async with rig.client() as client:
        body = (await client.post(CHAT, json=ask(n=2, tools=tools))).json()
    made = [choice["message"]["tool_calls"] for choice in body["choices"]]
    assert [len(calls) for calls in made] == [1, 1]
    assert [calls[0]["function"]["arguments"] for calls in made] == ['{"a": "1"}', '{"a": "2"}']
    assert made[0][0]["id"] != made[1][0]["id"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_all_answers_are_taken_or_none(streamed):
    rig = make_rig(Script(silent=True), limit=2)
    async with rig.client() as client:
        response = await client.post(CHAT, json=ask(n=3, stream=streamed))
    assert response.status_code == 429
    assert rig.engine.left == [(1, FinishReason.CANCELLED), (2, FinishReason.CANCELLED)]
    assert rig.counters.refused == {"queue_full": 1}


@pytest.mark.parametrize("streamed", [False, True])
async def test_one_answer_that_fails_ends_all(streamed):
    rig = make_rig()

    def script(request):
        if request.id == 2:
            return Script(rig.say("he"), reason=FinishReason.ERROR, message="it broke")
        return Script(silent=True)

    rig.engine.script = script
    async with rig.client() as client:
        response = await client.post(CHAT, json=ask(n=3, stream=streamed))
    if streamed:
        assert events_of(response.text)[-1]["error"]["code"] == "engine_error"
        assert "[DONE]" not in response.text
    else:
        assert response.status_code == 500
    assert sorted(rig.engine.left) == [(1, FinishReason.CANCELLED), (3, FinishReason.CANCELLED)]
    assert rig.counters.errors == {"engine_error": 1}
    assert rig.counters.refused == {}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_cancels_all_its_answers(streamed):
    rig = make_rig(Script([104] * 50, gate=asyncio.Semaphore(3)))
    async with listening(rig.app) as address:
        async with connected(address) as (_, writer):
            writer.write(raw_request(ask(stream=streamed, n=4)))
            await until(lambda: len(rig.engine.requests) == 4)
            await asyncio.sleep(0.05)
        await until(lambda: len(rig.engine.left) == 4)
    assert {reason for _, reason in rig.engine.left} == {FinishReason.CANCELLED}


async def test_an_answer_may_go_on_past_its_end():
    rig = make_rig()
    async with rig.client() as client:
        for path, body in BODIES.items():
            for given in (None, False, True):
                assert (await client.post(path, json={**body, "ignore_eos": given})).is_success
    stops = [bool(request.stop_ids) for request in rig.engine.requests]
    assert stops == [True, True, False] * 2


async def test_a_bug_before_the_engine_is_asked_leaves_nothing_in_it(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("ignisd.http.chat.AnswerReader", broken)
    rig = make_rig()
    async with rig.client() as client:
        assert (await client.post(CHAT, json=ask())).status_code == 500
    assert rig.engine.requests == []
    assert rig.counters.refused == {"engine_error": 1}
