"""POST /v1/tokenize and /v1/detokenize: exactly what a completion reads, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chat.toy import toy_model, toy_tokenizer
from tests.http.rig import CHAT, make_rig

MESSAGES = [{"role": "user", "content": "hello"}]
CHATS = [
    {"messages": MESSAGES},
    {
        "messages": [
            {"role": "system", "content": "be"},
            {"role": "user", "content": [{"type": "text", "text": "héllo 🙂"}]},
            {"role": "assistant", "content": "x", "reasoning_content": "y"},
            {"role": "user", "content": "more"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "chat_template_kwargs": {"enable_thinking": True},
    },
]


async def post(rig, path, body):
    async with rig.client() as client:
        return await client.post(path, json=body)


@pytest.mark.parametrize("chat", CHATS)
async def test_a_chat_is_tokenized_as_its_completion_reads_it(chat):
    rig = make_rig()
    answer = (await post(rig, "/v1/tokenize", chat)).json()
    usage = (await post(rig, CHAT, chat)).json()["usage"]
    (request,) = rig.engine.requests
    assert answer["tokens"] == request.chain.tokens.tolist()
    assert answer["count"] == len(answer["tokens"]) == usage["prompt_tokens"]
    assert answer["max_model_len"] == 4096


@pytest.mark.parametrize("prompt", ["hello <|im_end|>", [104, 101, 300 - 40]])
async def test_a_prompt_is_tokenized_as_its_completion_reads_it(prompt):
    rig = make_rig()
    answer = (await post(rig, "/v1/tokenize", {"prompt": prompt})).json()
    assert (await post(rig, "/v1/completions", {"prompt": prompt})).is_success
    assert answer["tokens"] == rig.engine.requests[0].chain.tokens.tolist()


async def test_the_text_of_tokens_is_what_they_were_made_from():
    rig = make_rig()
    text = "<|im_start|>user\nhello <think> größer 🙂<|im_end|>\n"
    tokens = (await post(rig, "/v1/tokenize", {"prompt": text})).json()["tokens"]
    assert (await post(rig, "/v1/detokenize", {"tokens": tokens})).json() == {"prompt": text}
    assert (await post(rig, "/v1/detokenize", {"tokens": []})).json() == {"prompt": ""}
    body = {"prompt": text, "return_token_strs": True}
    pieces = (await post(rig, "/v1/tokenize", body)).json()["token_strs"]
    assert pieces[:2] == ["<|im_start|>", "u"]
    assert "hello" in pieces


@given(st.text(max_size=40))
def test_any_text_is_spelled_as_it_was(text):
    tokenizer = toy_tokenizer()
    assert tokenizer.spell(tokenizer.encode(text).tolist()) == text


async def test_a_prompt_beyond_the_context_is_counted_all_the_same():
    rig = make_rig(model=toy_model(context_tokens=64))
    answer = (await post(rig, "/v1/tokenize", {"prompt": "x " * 500})).json()
    assert answer["count"] > answer["max_model_len"] == 64


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("tokenize", {}, 400, "messages"),
        ("tokenize", {"messages": None, "prompt": None}, 400, "messages"),
        ("tokenize", {"messages": [], "prompt": "x"}, 400, "messages"),
        ("tokenize", {"messages": []}, 400, "messages"),
        ("tokenize", {"messages": [{"role": "king"}]}, 400, "messages[0].role"),
        ("tokenize", {"prompt": ""}, 400, "prompt"),
        ("tokenize", {"prompt": [999_999]}, 400, "prompt[0]"),
        ("tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("tokenize", {"messages": MESSAGES, "model": "other"}, 404, "model"),
        ("detokenize", {}, 400, "tokens"),
        ("detokenize", {"tokens": "x"}, 400, "tokens"),
        ("detokenize", {"tokens": [1, -2]}, 400, "tokens[1]"),
        ("detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(path, body, status, param):
    response = await post(make_rig(), f"/v1/{path}", body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


async def test_tokens_need_a_model():
    rig = make_rig(ready=False)
    for path in ("tokenize", "detokenize"):
        assert (await post(rig, f"/v1/{path}", {"prompt": "x"})).status_code == 503
