"""Prompts of many megabytes: refused at once, with a number that is said to be a lower bound."""

import re
from dataclasses import replace

import pytest

from ignisd.chat.template import ChatTemplate, PromptRenderer
from tests.chat.test_tokenizer import Counting
from tests.chat.toy import NOON, TEMPLATE, raw_tokenizer, toy_model
from tests.http.rig import CHAT, make_rig

LONG = "hello there, this goes on " * 400_000
BODIES: dict[str, dict[str, object]] = {
    CHAT: {"messages": [{"role": "user", "content": LONG}]},
    "/v1/completions": {"prompt": LONG},
    "/v1/tokenize": {"prompt": LONG},
    "/v1/reuse/explain": {"messages": [{"role": "user", "content": LONG}]},
}


def counting_rig(context_tokens=4096):
    tokenizer = Counting(raw_tokenizer())
    renderer = PromptRenderer(ChatTemplate(TEMPLATE, lambda: NOON), tokenizer)
    model = replace(toy_model(context_tokens), tokenizer=tokenizer, renderer=renderer)
    return make_rig(model=model), tokenizer


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_it_is_refused_without_being_tokenized_whole(path, streamed):
    rig, tokenizer = counting_rig()
    tokenizer.read = 0
    async with rig.client() as client:
        response = await client.post(path, json={**BODIES[path], "stream": streamed})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert response.headers["x-should-retry"] == "false"
    limit, least = map(int, re.findall(r"\d+", error["message"])[:2])
    assert limit == 4096
    assert limit < least <= len(LONG)
    assert "at least" in error["message"]
    assert "lower bound" in error["message"]
    assert tokenizer.read <= (6 + 24) * 4 * 4096
    assert rig.engine.requests == []


async def test_a_prompt_just_too_long_is_told_its_exact_length():
    rig, _ = counting_rig()
    async with rig.client() as client:
        for extra in (0, 1):
            body = {"prompt": "a" * (4095 + extra), "max_tokens": 1}
            response = await client.post("/v1/completions", json=body)
            assert response.is_success == (not extra)
    assert "your prompt has 4096 tokens and" in response.json()["error"]["message"]


async def test_a_list_of_ids_too_long_is_refused_before_it_is_looked_at():
    rig, _ = counting_rig()
    async with rig.client() as client:
        response = await client.post("/v1/completions", json={"prompt": [-1] * 5000})
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "has 5000 tokens" in error["message"]
        response = await client.post("/v1/detokenize", json={"tokens": [-1] * 4 * 4096})
        assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_tokens_are_counted_beyond_the_context_up_to_a_limit():
    rig, _ = counting_rig()
    async with rig.client() as client:
        body = (await client.post("/v1/tokenize", json={"prompt": "a" * 10_000})).json()
    assert (body["count"], body["max_model_len"]) == (10_000, 4096)
