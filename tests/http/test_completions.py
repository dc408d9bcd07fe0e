"""POST /v1/completions: plain prompts, whole and streamed, and what is refused."""

import pytest

from ignisd.engine.types import FinishReason
from ignisd.http.options import HttpOptions
from state.retention import Marks, RetentionPolicy
from tests.chat.toy import toy_model
from tests.fakes import Script
from tests.http.rig import events_of, make_rig, until

PATH = "/v1/completions"


async def post(rig, body, **kwargs):
    async with rig.client() as client:
        return await client.post(PATH, json=body, **kwargs)


def texts(events):
    return "".join(each["choices"][0]["text"] for each in events[:-1] if each["choices"])


async def test_a_plain_answer_has_the_shape_of_the_protocol():
    rig = make_rig(options=HttpOptions(draw_name=lambda: "x", now_s=lambda: 7.9))
    response = await post(rig, {"prompt": "say", "model": "toy", "max_tokens": 100})
    body = response.json()
    assert response.status_code == 200
    assert body["usage"].pop("completion_tokens_details")
    timings = body.pop("timings")
    assert timings["cache_n"] == 0
    assert body == {
        "id": "cmpl-x",
        "object": "text_completion",
        "created": 7,
        "model": "toy",
        "choices": [{"index": 0, "text": "hello there", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": len(rig.say("hello there")),
            "total_tokens": 3 + len(rig.say("hello there")),
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    assert response.headers["x-ignis-reuse"] == "miss=no_match; cached=0; matched=0"
    assert response.headers["x-request-id"] == "req-x"


async def test_the_prompt_is_read_as_it_stands_and_has_no_marks():
    rig = make_rig()
    prompt = "<|im_start|>user\nhello<|im_end|>"
    assert (await post(rig, {"prompt": prompt})).is_success
    (request,) = rig.engine.requests
    assert request.chain.tokens.tolist() == rig.say(prompt)
    assert request.marks == Marks()
    # Without an opener, what is kept is the page floor of a little before the end.
    kept = RetentionPolicy().cuts(request.marks, 200, 0)
    assert [cut.position for cut in kept] == [192]


@pytest.mark.parametrize("form", ["text", "ids", "one text", "one list of ids"])
async def test_a_prompt_may_come_as_text_or_as_ids(form):
    rig = make_rig()
    ids = rig.say("hello <think> there")
    prompt = {
        "text": "hello <think> there",
        "ids": ids,
        "one text": ["hello <think> there"],
        "one list of ids": [ids],
    }[form]
    assert (await post(rig, {"prompt": prompt})).is_success
    assert rig.engine.requests[0].chain.tokens.tolist() == ids


async def test_an_answer_is_text_and_nothing_else():
    """Reasoning and calls are text where no chat asked for them."""
    answer = "<think>\nhm\n</think>\n\n<tool_call>x</tool_call>\n"
    rig = make_rig(Script(make_rig().say(answer)))
    body = {"prompt": "x", "max_tokens": 100}
    assert (await post(rig, body)).json()["choices"][0]["text"] == answer
    assert texts(events_of((await post(rig, {**body, "stream": True})).text)) == answer


@pytest.mark.parametrize("usage", [False, True])
async def test_a_stream_says_what_the_plain_answer_says(usage):
    said = "größer 🙂 than\n\nhello"
    rig = make_rig(Script(make_rig().say(said), cached_tokens=64))
    body = {"prompt": "x" * 80, "max_tokens": 99, "return_reuse": True}
    plain = (await post(rig, body)).json()
    body |= {"stream": True, "stream_options": {"include_usage": usage}}
    response = await post(rig, body)
    events = events_of(response.text)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-ignis-reuse"].startswith("tier=device; slot=host")
    assert events[-1] == "[DONE]"
    assert texts(events) == plain["choices"][0]["text"] == said
    reasons = [each["choices"][0]["finish_reason"] for each in events[:-1] if each["choices"]]
    assert [reason for reason in reasons if reason] == ["stop"]
    last = events[-2]
    assert last["ignis_reuse"] == plain["ignis_reuse"]
    assert ("usage" in last) == usage
    if usage:
        assert last["usage"] == plain["usage"]
        assert last["choices"] == []


async def test_stop_strings_end_it_across_tokens():
    rig = make_rig(Script([*b"one two three"]))
    body = {"prompt": "x", "stop": ["o th", "zzz"], "max_tokens": 50}
    choice = (await post(rig, body)).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("one tw", "stop")
    events = events_of((await post(rig, {**body, "stream": True})).text)
    assert texts(events) == "one tw"


@pytest.mark.parametrize(
    ("asked", "wanted", "reason"), [({}, 16, "length"), ({"max_tokens": 3}, 3, "length")]
)
async def test_without_a_limit_sixteen_tokens_come(asked, wanted, reason):
    rig = make_rig(Script([104] * 40))
    choice = (await post(rig, {"prompt": "x", **asked})).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("h" * wanted, reason)


async def test_no_token_may_be_asked_for():
    rig = make_rig(Script([104]))
    body = (await post(rig, {"prompt": "x", "max_tokens": 0})).json()
    assert body["choices"][0]["text"] == ""
    assert body["usage"]["completion_tokens"] == 0


async def test_fields_reach_the_engine():
    rig = make_rig()
    asked = {"temperature": 0.5, "top_k": 7, "seed": 3, "repetition_penalty": 1.5}
    body = {"prompt": "x", "class": "agent", "reuse": False, "cache_salt": "s", **asked}
    assert (await post(rig, body)).is_success
    (request,) = rig.engine.requests
    assert {name: getattr(request.sampling, name) for name in asked} == asked
    assert (request.cls, request.reuse) == ("agent", False)
    assert request.chain.salt == b"salt:s"
    assert (await post(rig, {"prompt": "x", "model": "toy@agent"})).is_success
    assert rig.engine.requests[1].cls == "agent"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({}, "invalid_value", "prompt"),
        ({"prompt": None}, "invalid_value", "prompt"),
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": [[]]}, "invalid_value", "prompt"),
        ({"prompt": 5}, "invalid_value", "prompt"),
        ({"prompt": [1.5]}, "invalid_value", "prompt[0]"),
        ({"prompt": [True]}, "invalid_value", "prompt[0]"),
        ({"prompt": [-1]}, "invalid_value", "prompt[0]"),
        ({"prompt": [1, 10**6]}, "invalid_value", "prompt[1]"),
        ({"prompt": [1, 2**70]}, "invalid_value", "prompt[1]"),
        ({"prompt": [1, "x"]}, "invalid_value", "prompt"),
        ({"prompt": ["a", "b"]}, "unsupported_value", "prompt"),
        ({"prompt": [[1], [2]]}, "unsupported_value", "prompt"),
        ({"max_tokens": -1}, "invalid_value", "max_tokens"),
        ({"max_tokens": 1.5}, "invalid_value", "max_tokens"),
        ({"temperature": 2.1}, "invalid_value", "temperature"),
        ({"top_p": 0}, "invalid_value", "top_p"),
        ({"class": "king"}, "invalid_value", "class"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "invalid_value", "stop"),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"n": 0}, "invalid_value", "n"),
        ({"n": 9}, "invalid_value", "n"),
        ({"best_of": 2}, "unsupported_value", "best_of"),
        ({"logprobs": 0}, "unsupported_value", "logprobs"),
        ({"logit_bias": {"5": 1}}, "unsupported_value", "logit_bias"),
        ({"echo": True}, "unsupported_value", "echo"),
        ({"suffix": "end"}, "unsupported_value", "suffix"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_cannot_be_served_is_refused_by_name(fields, code, param, streamed):
    rig = make_rig()
    body = fields if fields == {} else {"prompt": "x", **fields}
    response = await post(rig, {**body, "stream": streamed})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert rig.engine.requests == []


async def test_harmless_values_pass():
    """What asks for nothing that is not done anyway."""
    quiet = {
        "n": 1,
        "best_of": 1,
        "echo": False,
        "suffix": "",
        "logprobs": None,
        "logit_bias": {},
        "user": "u",
        "unknown": [1],
    }
    assert (await post(make_rig(), {"prompt": "x", **quiet})).is_success


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(streamed):
    rig = make_rig(model=toy_model(context_tokens=64))
    for length in (64, 500):
        response = await post(rig, {"prompt": [65] * length, "stream": streamed})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == "prompt"
        assert f" {length} tokens" in error["message"]
        assert "64 tokens" in error["message"]
    assert rig.engine.requests == []
    body = (await post(rig, {"prompt": [65] * 63, "max_tokens": 50})).json()
    assert body["usage"]["completion_tokens"] == 1
    assert body["choices"][0]["finish_reason"] == "length"


async def test_another_model_is_not_found():
    response = await post(make_rig(), {"prompt": "x", "model": "other"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


async def test_failures_have_their_shape_before_and_after_the_first_byte():
    rig = make_rig(Script([104, 105], reason=FinishReason.ERROR, message="it broke"))
    response = await post(rig, {"prompt": "x"})
    assert response.status_code == 500
    events = events_of((await post(rig, {"prompt": "x", "stream": True})).text)
    assert events[-1]["error"]["code"] == "engine_error"
    rig = make_rig(Script(silent=True), options=HttpOptions(request_timeout_s=0.05))
    assert (await post(rig, {"prompt": "x"})).status_code == 504
    await until(lambda: rig.engine.left)
    assert (await post(make_rig(limit=0), {"prompt": "x"})).status_code == 429
    assert (await post(make_rig(ready=False), {"prompt": "x"})).status_code == 503
