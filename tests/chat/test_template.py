import re

import numpy as np
import orjson
import pytest

from ignisd.chat.parse import parse_chat
from ignisd.chat.template import ChatTemplate
from ignisd.chat.types import Message
from ignisd.errors import ConfigError, RequestError
from tests.chat.toy import NOON, toy_model

MODEL = toy_model()
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b":1,"a":2}'}}
TOOL = {"type": "function", "function": {"name": "f", "description": "é <b> & 'x'"}}


def prompt_of(messages, **fields):
    chat = parse_chat(orjson.dumps({"messages": messages, **fields}))
    return MODEL.renderer.render(chat)


def message(role, content="", **fields):
    return {"role": role, "content": content, **fields}


def text_between(prompt, start, stop):
    return b"".join(raw_bytes(int(token)) for token in prompt.tokens[start:stop]).decode()


def raw_bytes(token):
    for name in ("<|im_start|>", "<|im_end|>"):
        if token == MODEL.tokenizer.token_id(name):
            return name.encode()
    return MODEL.tokenizer.token_bytes(token)


LONG = [
    message("system", "rules"),
    message("user", "first"),
    message("assistant", "answer"),
    message("user", "second"),
    message("assistant", "", reasoning_content="let me see", tool_calls=[CALL]),
    message("tool", "result", tool_call_id="c"),
]


def test_marks_of_a_tool_loop():
    prompt = prompt_of(LONG)
    marks = prompt.marks
    assert text_between(prompt, 0, marks.system_end) == "<|im_start|>system\nrules<|im_end|>\n"
    assert text_between(prompt, 0, marks.opener).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert marks.opener == len(prompt.tokens)
    opened = text_between(prompt, 0, marks.turn_open)
    assert opened.endswith("second<|im_end|>\n<|im_start|>assistant\n")
    assert text_between(prompt, marks.turn_open, len(prompt.tokens)).startswith(
        "<think>\nlet me see"
    )
    starts = [text_between(prompt, at, at + 4) for at in marks.message_starts]
    assert len(starts) == len(LONG) + 1
    assert all(start.startswith("<|im_start|>") for start in starts)


def test_a_turn_without_tools_opens_once():
    marks = prompt_of([message("user", "hi")]).marks
    assert marks.system_end is None
    assert marks.turn_open == marks.opener
    assert marks.message_starts[0] == 0


def test_a_user_message_that_looks_like_a_tool_result_opens_no_turn():
    plain = prompt_of([*LONG, message("assistant", "done")])
    assert plain.marks.turn_open == prompt_of(LONG).marks.turn_open


def test_the_prompt_of_a_turn_begins_the_prompt_of_the_next():
    first = prompt_of(LONG)
    second = prompt_of([*LONG, message("assistant", "done"), message("system", "note")])
    assert np.array_equal(second.tokens[: first.marks.opener], first.tokens[: first.marks.opener])


def test_the_opener_is_cut_before_the_reasoning_block():
    off, on = prompt_of(LONG), prompt_of(LONG, enable_thinking=True)
    assert off.marks.opener == on.marks.opener
    assert (off.in_reasoning, on.in_reasoning) == (False, True)
    assert text_between(on, on.marks.opener, len(on.tokens)) == "<think>\n"


def test_reasoning_in_the_history_does_not_open_the_answer():
    history = [message("user", "q"), message("assistant", "a", reasoning_content="open <think>")]
    assert not prompt_of([*history, message("user", "r")]).in_reasoning


def test_tools_are_rendered_as_json_with_their_key_order():
    prompt = prompt_of([message("user", "q")], tools=[TOOL])
    block = text_between(prompt, 0, prompt.marks.system_end)
    assert orjson.loads(re.findall(r"\{.*\}", block)[0]) == TOOL
    assert '"description": "é <b> & \'x\'"' in block
    called = text_between(prompt_of(LONG), 0, 10**6)
    assert 'f{"b": 1, "a": 2}</tool_call>' in called


def test_a_prompt_without_message_tokens_has_no_marks():
    tokens = MODEL.tokenizer.encode("plain text")
    found = MODEL.renderer._marks.find(tokens)
    assert found.opener is found.turn_open is found.system_end is None
    assert found.message_starts == ()


def test_the_tokens_of_a_prompt_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        prompt_of(LONG).tokens[0] = 1


def render(source, **kwargs):
    return ChatTemplate(source, lambda: NOON).render([Message("user", "hi")], (), kwargs)


def test_what_templates_expect_of_their_surroundings():
    assert render("{{ strftime_now('%Y-%m-%d') }}") == "2026-01-02"
    assert render("{{ {'b': '<é>', 'a': [1]} | tojson }}") == '{"b": "<é>", "a": [1]}'
    assert (
        render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "1"
    )
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 'x'.nothing() }}",
    ],
)
def test_a_template_that_refuses_is_a_request_error(source):
    with pytest.raises(RequestError) as caught:
        render(source)
    assert caught.value.param == "messages"


def test_a_template_that_is_none_refuses_the_start():
    with pytest.raises(ConfigError, match="template"):
        render("{% if %}")


def test_messages_that_render_to_nothing_are_refused():
    renderer = type(MODEL.renderer)(ChatTemplate("", lambda: NOON), MODEL.tokenizer)
    chat = parse_chat(b'{"messages":[{"role":"user","content":"x"}]}')
    with pytest.raises(RequestError, match="empty"):
        renderer.render(chat)
