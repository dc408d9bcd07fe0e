"""Reasoning over HTTP: told once, in its own field, and never taken for the answer."""

import json
import logging

import pytest

from ignisd.chat.checkpoint import read_model_info
from ignisd.chat.family import family_of
from ignisd.chat.policies import ChatPolicies, ReasoningField
from ignisd.chat.tokenizer import ChatTokenizer
from ignisd.http.options import HttpOptions
from tests.chat.outputs import OUTPUTS, TOOLS, Output, Seen, call
from tests.chat.test_calls import by_bytes, whole
from tests.chat.toy import NOON, TEMPLATE, raw_tokenizer, toy_tokenizer
from tests.fakes import Script
from tests.http.rig import USER, make_rig
from tests.http.streams import plain, post, scripted, streamed, without_ids

BOTH = pytest.mark.parametrize("answer", [plain, streamed])


@BOTH
async def test_l97_thinking_cut_by_max_tokens_is_reasoning_and_nothing_else(answer):
    text = "I think about é and 汉 at length"
    for limit in range(1, len(text.encode())):
        rig, fields = scripted(Output(text, Seen(), thinking=True), by_bytes)
        choice, usage = await answer(rig, max_tokens=limit, **fields)
        said = text.encode()[:limit].decode("utf-8", "replace")
        assert choice["finish_reason"] == "length"
        assert choice["reasoning_open"] is True
        assert choice["message"] == {
            "role": "assistant",
            "content": "",
            "refusal": None,
            "reasoning_content": said,
        }
        assert usage["completion_tokens_details"]["reasoning_tokens"] == limit


@BOTH
async def test_l98_an_end_inside_thinking_is_marked(answer):
    rig, fields = scripted(OUTPUTS["reasoning-only"], by_bytes)
    choice, _ = await answer(rig, **fields)
    assert (choice["finish_reason"], choice["reasoning_open"]) == ("stop", True)
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"] == "half a thou"
    # Reasoning that was closed has no mark.
    rig, fields = scripted(OUTPUTS["reasoning"], by_bytes)
    choice, _ = await answer(rig, **fields)
    assert "reasoning_open" not in choice


@BOTH
@pytest.mark.parametrize("delivered", [True, False])
async def test_l98_a_call_in_unclosed_thinking_is_delivered_or_kept_by_setting(answer, delivered):
    options = HttpOptions(chat=ChatPolicies(calls_in_reasoning=delivered))
    text = "I need it\n" + call("read", path="a")
    rig, fields = scripted(Output(text, Seen(), thinking=True), by_bytes, options=options)
    choice, _ = await answer(rig, **fields)
    message = choice["message"]
    if delivered:
        assert message["reasoning_content"] == "I need it"
        assert message["tool_calls"][0]["function"]["arguments"] == '{"path": "a"}'
        assert choice["finish_reason"] == "tool_calls"
        assert "reasoning_open" not in choice
    else:
        assert message["reasoning_content"] == text
        assert "tool_calls" not in message
        assert (choice["finish_reason"], choice["reasoning_open"]) == ("stop", True)


@BOTH
async def test_l98_a_call_that_was_only_thought_of_is_reasoning(answer):
    thought = "maybe <tool_call>\n<function=read>\n<parameter=path>\na"
    rig, fields = scripted(Output(thought + "\n</think>\n\nno", Seen(), thinking=True), by_bytes)
    choice, _ = await answer(rig, **fields)
    assert choice["message"]["reasoning_content"] == thought
    assert choice["message"]["content"] == "no"
    assert choice["finish_reason"] == "stop"


@BOTH
@pytest.mark.parametrize("field", ReasoningField)
async def test_the_field_of_the_reasoning_is_chosen_by_the_server(answer, field):
    options = HttpOptions(chat=ChatPolicies(reasoning_field=field))
    rig, fields = scripted(OUTPUTS["reasoning"], whole, options=options)
    choice, _ = await answer(rig, **fields)
    told = {name for name in ("reasoning_content", "reasoning") if name in choice["message"]}
    assert told == set(field.names)
    assert {choice["message"][name] for name in told} == {"let me see"}
    assert len(ReasoningField.BOTH.names) == 2


async def test_reasoning_comes_in_under_either_name():
    rig = make_rig()
    for name in ("reasoning_content", "reasoning"):
        history = {"role": "assistant", "content": "a", name: "thought"}
        assert (await post(rig, messages=[USER, history, USER])).status_code == 200
    first, second = (request.chain.tokens.tolist() for request in rig.engine.requests)
    assert first == second
    assert "thought" in rig.model.tokenizer.decode(first)


@BOTH
async def test_l100_no_thinking_means_no_think_text_in_any_field(answer):
    rig = make_rig()
    rig.engine.script = Script(rig.say("<think>\nsecret\n</think>\n\nhello"))
    choice, usage = await answer(rig, enable_thinking=False)
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 5
    choice, _ = await answer(rig)
    assert choice["message"]["reasoning_content"] == "secret"


XML = "{{ tools }}{{ messages[0].tool_calls }}<tool_call><function=f><parameter=p>"


def test_l100_the_form_is_told_by_the_template_and_the_tokens(tmp_path, caplog):
    caplog.set_level(logging.INFO, "ignisd.chat")
    raw_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(XML)
    # A name that suggests another family changes nothing.
    info = read_model_info(tmp_path, "hermes-qwen-llama-instruct", 512, lambda: NOON)
    assert (info.family.calls, info.family.reasoning, info.family.doubts) == (True, True, ())
    assert caplog.messages == ["chat-form calls=function-tags reasoning=think-tags"]


class _NoThinkTokens(ChatTokenizer):
    def __init__(self):
        pass

    def token_id(self, text):
        return None


def test_l100_a_contradiction_is_told_at_the_start(tmp_path, caplog):
    raw_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    info = read_model_info(tmp_path, "toy", 512, lambda: NOON)
    assert not info.family.calls
    assert "delivered as text" in caplog.text
    family = family_of(XML + "<think>", _NoThinkTokens())
    assert not family.reasoning
    assert "<think>" in family.doubts[0]
    assert family_of(XML, toy_tokenizer()).doubts == ()


@BOTH
async def test_l100_calls_in_a_form_that_is_not_read_are_text(answer, tmp_path):
    raw_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    rig = make_rig(model=read_model_info(tmp_path, "toy", 4096, lambda: NOON))
    rig.engine.script = Script(rig.say(call("now")))
    choice, _ = await answer(rig, tools=TOOLS)
    assert choice["message"]["content"] == call("now")


async def test_timings_and_usage_count_every_token_of_an_answer():
    rig, fields = scripted(OUTPUTS["reasoning-and-call"], by_bytes)
    body = (await post(rig, **fields)).json()
    tokens = len(OUTPUTS["reasoning-and-call"].text.replace("</think>", "!").encode())
    assert body["usage"]["completion_tokens"] == body["timings"]["predicted_n"] == tokens
    assert json.dumps(without_ids(body["choices"][0]))
