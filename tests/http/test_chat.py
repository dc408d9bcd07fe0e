import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignisd.chat.types import SamplingFields
from ignisd.engine.types import FinishReason, Reuse, SamplingParams, Timings
from ignisd.http.options import HttpOptions
from ignisd.http.reply import Outcome, Usage
from ignisd.http.shapes import timings_object
from state.reuse import Miss, MissReason
from state.spec import Class
from tests.chat.test_output import CORPUS
from tests.chat.toy import toy_model
from tests.fakes import Script
from tests.http.rig import CHAT, USER, ask, events_of, joined, make_rig

THOUGHT = "<think>\nlet me see\n</think>\n\nhello é"


async def post(rig, headers=None, **fields):
    async with rig.client() as client:
        return await client.post(CHAT, json=ask(**fields), headers=headers)


async def stream(rig, headers=None, **fields):
    response = await post(rig, headers, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


async def test_a_plain_answer_has_the_whole_shape():
    rig = make_rig(options=HttpOptions(now_s=lambda: 1234.5, draw_name=lambda: "abc"))
    response = await post(rig)
    prompt_tokens = rig.engine.requests[0].prompt_tokens
    assert response.status_code == 200
    assert response.json() == {
        "id": "chatcmpl-abc",
        "object": "chat.completion",
        "created": 1234,
        "model": "toy",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello there", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 6,
            "total_tokens": prompt_tokens + 6,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        "timings": {
            "cache_n": 0,
            "prompt_n": prompt_tokens,
            "prompt_ms": 0.0,
            "prompt_per_second": None,
            "predicted_n": 6,
            "predicted_ms": 0.0,
            "predicted_per_second": None,
        },
    }
    assert response.headers["x-request-id"] == "req-abc"
    assert response.headers["x-ignis-reuse"] == "miss=no_match; cached=0; matched=0"


async def test_a_stream_opens_speaks_closes_and_tells_usage():
    rig = make_rig()
    events = await stream(rig, stream_options={"include_usage": True})
    assert events.pop() == "[DONE]"
    assert len({event["id"] for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    reasons = [event["choices"][0]["finish_reason"] for event in events if event["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 6
    assert all("usage" not in event for event in events[:-1])
    assert joined(events) == "hello there"


async def test_usage_comes_only_when_asked_for():
    events = await stream(make_rig())
    assert all("usage" not in event for event in events[:-1])
    assert events[-2]["choices"][0]["finish_reason"] == "stop"


SCRIPTS = [*CORPUS, THOUGHT.encode(), b"a STOP b", b"ST", "x\n\nSTOP🎉".encode()]


@pytest.mark.parametrize("data", SCRIPTS)
@pytest.mark.parametrize("think", [False, True])
@pytest.mark.parametrize("limit", [None, 1, 3])
async def test_the_stream_concatenated_is_the_plain_answer(data, think, limit):
    rig = make_rig(Script(list(data)))
    fields = {"stop": ["STOP", "\n\nS"], "enable_thinking": think, "max_tokens": limit}
    plain = (await post(rig, **fields)).json()
    events = await stream(rig, stream_options={"include_usage": True}, **fields)
    (choice,) = plain["choices"]
    assert joined(events) == choice["message"]["content"]
    reasoning = choice["message"].get("reasoning_content", "")
    assert joined(events, "reasoning_content") == reasoning
    assert events[-2]["usage"] == plain["usage"]
    assert events[-3]["choices"][0]["finish_reason"] == choice["finish_reason"]


SHARED = make_rig()


@settings(max_examples=40)
@given(st.binary(max_size=24))
async def test_every_event_is_valid_whatever_the_model_says(data):
    SHARED.engine.script = Script(list(data))
    assert joined(await stream(SHARED)) == data.decode("utf-8", "replace")


async def test_reasoning_is_split_off():
    rig = make_rig()
    rig.engine.script = Script(rig.say(THOUGHT))
    body = (await post(rig)).json()
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("let me see", "hello é")
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] > 5
    rig.engine.script = Script(rig.say("let me see\n</think>\n\nhello é"))
    message = (await post(rig, enable_thinking=True)).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("let me see", "hello é")


async def test_a_stop_string_ends_the_request_and_is_swallowed():
    rig = make_rig(Script(list(b"one STOP" + b"x" * 200)))
    body = (await post(rig, stop="STOP")).json()
    assert body["choices"][0]["message"]["content"] == "one "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len("one STOP")
    assert rig.engine.left == [(1, FinishReason.STOP)]


async def test_a_cut_answer_says_length():
    body = (await post(make_rig(), max_tokens=3)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3


async def test_an_empty_answer_is_well_formed():
    rig = make_rig(Script([]))
    body = (await post(rig)).json()
    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 0
    events = await stream(rig)
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, "stop"]


async def test_reuse_is_told_when_asked_for():
    rig = make_rig(Script([104], cached_tokens=64, matched_tokens=70))
    plain = await post(rig, return_reuse=True)
    want = {
        "tier": "device",
        "slot": "host",
        "kind": "checkpoint",
        "cached_tokens": 64,
        "matched_tokens": 70,
        "miss_reason": None,
        "shortfall": None,
        "diverged_at": None,
        "volatile_at": None,
        "restore_ms": 0.0,
    }
    header = "tier=device; slot=host; kind=checkpoint; cached=64; matched=70"
    assert plain.json()["ignis_reuse"] == want
    assert plain.headers["x-ignis-reuse"] == header
    assert plain.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
    assert (await post(rig, {"X-Ignis-Reuse": "1"})).json()["ignis_reuse"] == want
    assert "ignis_reuse" not in (await post(rig)).json()
    response = await post(rig, stream=True, return_reuse=True)
    assert response.headers["x-ignis-reuse"] == header
    events = events_of(response.text)
    assert [event.get("ignis_reuse") for event in events[:-1]] == [None, None, want]
    fields = {"return_reuse": True, "stream_options": {"include_usage": True}}
    events = await stream(rig, **fields)
    assert events[-2]["ignis_reuse"] == want
    assert events[-2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 64


async def test_a_miss_tells_where_the_prompts_part():
    messages = [{"role": "system", "content": "rules"}, USER]
    for token, segment in ((3, "system"), (20, "message 1"), (30, "message 2")):
        rig = make_rig(Script([104], miss=Miss(MissReason.DIVERGED, 3, token)))
        body = (await post(rig, messages=messages, return_reuse=True)).json()
        assert body["ignis_reuse"]["miss_reason"] == "diverged"
        assert body["ignis_reuse"]["diverged_at"] == {"token": token, "segment": segment}


async def test_the_engine_gets_what_was_asked():
    rig = make_rig()
    await post(rig)
    await post(
        rig,
        temperature=0,
        top_k=-1,
        top_p=0.5,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        seed=-1,
        max_tokens=9,
        reuse=False,
        model="toy@agent",
        cache_salt="mine",
    )
    plain, full = rig.engine.requests
    assert (plain.id, full.id) == (1, 2)
    assert plain.reuse
    assert plain.cls is Class.INTERACTIVE
    assert plain.max_tokens == rig.model.context_tokens - plain.prompt_tokens
    assert plain.stop_ids == {rig.model.tokenizer.token_id("<|im_end|>")}
    assert full.sampling == SamplingParams(0.0, 0, 0.5, 0.1, 1.0, -1.0, 1.5, 2**32 - 1)
    assert (full.reuse, full.cls, full.max_tokens) == (False, Class.AGENT, 9)
    assert plain.chain.salt != full.chain.salt
    assert (plain.chain.tokens == full.chain.tokens).all()
    assert plain.marks.opener == plain.prompt_tokens


async def test_absent_sampling_is_the_checkpoints_and_the_seed_is_fresh():
    model = toy_model(defaults=SamplingFields(temperature=0.25, top_k=7))
    rig = make_rig(model=model)
    await post(rig)
    await post(rig, temperature=1.5)
    first, second = (request.sampling for request in rig.engine.requests)
    assert (first.temperature, first.top_k, first.top_p) == (0.25, 7, 1.0)
    assert (second.temperature, second.top_k) == (1.5, 7)
    assert first.seed != second.seed


async def test_max_tokens_beyond_the_context_is_cut_to_it():
    rig = make_rig(model=toy_model(context_tokens=64))
    await post(rig, max_tokens=10_000)
    (request,) = rig.engine.requests
    assert request.prompt_tokens + request.max_tokens == 64


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(streamed):
    rig = make_rig(model=toy_model(context_tokens=64))
    fits = 64 - 1 - (rig_tokens(rig, "")).prompt_tokens
    content = "x" * fits
    response = await post(rig, messages=[{"role": "user", "content": content}], stream=streamed)
    assert response.status_code == 200
    content += "x"
    response = await post(rig, messages=[{"role": "user", "content": content}], stream=streamed)
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["type"]) == ("context_length_exceeded", "invalid_request_error")
    assert "64 tokens" in error["message"]
    assert response.headers["x-should-retry"] == "false"
    assert len(rig.engine.requests) == 1


def rig_tokens(rig, text):
    from ignisd.chat.parse import parse_chat
    from ignisd.http.intake import Intake, Prepared
    from state.chain import chain_of

    chat = parse_chat(b'{"messages":[{"role":"user","content":"' + text.encode() + b'"}]}')
    prompt = rig.model.renderer.render(chat)
    prepared = Prepared(chat, prompt, chain_of(prompt.tokens))
    return Intake(HttpOptions()).engine_requests(prepared, rig.model, "x")[0]


def test_timings_leave_out_the_queue_and_the_cached_tokens():
    timings = Timings(0.0, 100.0, 300.0, 900.0, 0.0, 900.0)
    told = timings_object(Outcome("stop", Usage(500, 400, 4, 0), Reuse(), timings))
    assert (told["cache_n"], told["prompt_n"], told["predicted_n"]) == (400, 100, 4)
    assert (told["prompt_ms"], told["prompt_per_second"]) == (200.0, 500.0)
    assert (told["predicted_ms"], told["predicted_per_second"]) == (600.0, 5.0)


async def test_the_clients_request_id_comes_back_when_it_is_harmless():
    rig = make_rig()
    assert (await post(rig, {"x-request-id": "run-7.b"})).headers["x-request-id"] == "run-7.b"
    strange = await post(rig, {"x-request-id": "a b"})
    assert strange.headers["x-request-id"].startswith("req-")


async def test_the_served_model_may_be_named_or_not():
    rig = make_rig()
    assert (await post(rig, model="toy")).status_code == 200
    response = await post(rig, model="gpt-9")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert response.json()["error"]["param"] == "model"


async def test_two_applications_share_nothing():
    first, second = make_rig(), make_rig(Script([104, 101]))
    await post(first)
    await post(second)
    assert len(first.engine.requests) == len(second.engine.requests) == 1
    assert second.engine.requests[0].id == 1


async def test_an_answer_of_many_tokens_is_no_trouble():
    rig = make_rig(Script([104] * 3000), model=toy_model(context_tokens=5000))
    async with rig.client(timeout=httpx.Timeout(30)) as client:
        response = await client.post(CHAT, json=ask(stream=True))
    assert joined(events_of(response.text)) == "h" * 3000
