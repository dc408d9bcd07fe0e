"""The chat template, rule by rule, as golden text."""

import pytest
from jinja2.exceptions import TemplateError

from ignisd.ember.render import render

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"b": 1, "a": "<é>"}}}
CALL = {
    "function": {"name": "look", "arguments": {"where": "x\ny", "count": 2, "deep": {"k": [1]}}}
}
OPENER = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def test_user_message_and_opener():
    assert render((USER,), opener=True) == "<|im_start|>user\nHi<|im_end|>\n" + OPENER


def test_opener_with_thinking_leaves_the_block_open():
    text = render((USER,), opener=True, enable_thinking=True)
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n<think>\n")


def test_system_text_is_trimmed():
    text = render(({"role": "system", "content": " Be brief.\n"}, USER))
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")


def test_tools_come_first_with_one_json_a_line_and_key_order_kept():
    text = render(({"role": "system", "content": "Be brief."}, USER), tools=(TOOL, TOOL))
    line = '{"type": "function", "function": {"name": "look", "parameters": {"b": 1, "a": "<é>"}}}'
    assert f"<tools>\n{line}\n{line}\n</tools>\n\n" in text
    assert text.startswith("<|im_start|>system\n# Tools\n\n")
    assert "\n\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n" in text
    assert "Be brief." not in render((USER,), tools=(TOOL,))


def test_list_content_is_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(({"role": "user", "content": parts},)) == "<|im_start|>user\nab<|im_end|>\n"


def test_reasoning_is_dropped_before_the_last_real_user_message_and_kept_after_it():
    thought = {"role": "assistant", "content": "Yes.", "reasoning_content": " Hm.\n"}
    assert "<|im_start|>assistant\nYes.<|im_end|>\n" in render((USER, thought, USER))
    kept = "<|im_start|>assistant\n<think>\nHm.\n</think>\n\nYes.<|im_end|>\n"
    assert render((USER, thought)).endswith(kept)
    assert kept in render((USER, thought, USER), preserve_thinking=True)


def test_reasoning_inside_the_content_is_split_off():
    thought = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nYes."}
    assert render((USER, thought)).endswith("<think>\nHm.\n</think>\n\nYes.<|im_end|>\n")
    assert "<|im_start|>assistant\nYes.<|im_end|>\n" in render((USER, thought, USER))


def test_turn_in_progress_gets_an_empty_block_like_the_opener():
    answer = {"role": "assistant", "content": "Yes."}
    assert render((USER, answer)).endswith(OPENER + "Yes.<|im_end|>\n")


def test_tool_calls_in_function_form():
    calling = {"role": "assistant", "content": "Wait.", "tool_calls": [CALL, CALL]}
    call = (
        "<tool_call>\n<function=look>\n<parameter=where>\nx\ny\n</parameter>\n"
        "<parameter=count>\n2\n</parameter>\n"
        '<parameter=deep>\n{"k": [1]}\n</parameter>\n</function>\n</tool_call>'
    )
    assert render((USER, calling)).endswith(f"Wait.\n\n{call}\n{call}<|im_end|>\n")
    assert render((USER, calling | {"content": None})).endswith(
        f"</think>\n\n{call}\n{call}<|im_end|>\n"
    )


def test_tool_results_share_one_turn_and_do_not_end_the_reasoning():
    calling = {"role": "assistant", "reasoning_content": "Hm.", "content": "", "tool_calls": [CALL]}
    results = ({"role": "tool", "content": "one"}, {"role": "tool", "content": "two"})
    text = render((USER, calling, *results), opener=True)
    assert "<think>\nHm.\n</think>\n\n<tool_call>" in text
    assert text.endswith(
        "<|im_end|>\n<|im_start|>user\n<tool_response>\none\n</tool_response>"
        "\n<tool_response>\ntwo\n</tool_response><|im_end|>\n" + OPENER
    )


def test_a_wrapped_tool_result_is_no_real_user_message():
    thought = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    wrapped = {"role": "user", "content": "<tool_response>\none\n</tool_response>"}
    assert "<think>\nHm.\n</think>" in render((USER, thought, wrapped))


@pytest.mark.parametrize(
    "messages",
    [
        (),
        ({"role": "system", "content": "Be brief."},),
        (USER, {"role": "system", "content": "late"}),
        (USER, {"role": "narrator", "content": "x"}),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},),
        ({"role": "system", "content": [{"type": "image"}]}, USER),
        ({"role": "user", "content": "<tool_response>x</tool_response>"},),
        (
            USER,
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        ),
    ],
)
def test_what_cannot_be_expressed_is_refused(messages):
    with pytest.raises(TemplateError):
        render(messages)


def test_a_longer_conversation_begins_with_the_shorter_one():
    """Inside a tool loop nothing before the new messages changes: what prompt reuse rests on."""
    calling = {"role": "assistant", "reasoning_content": "Hm.", "content": "", "tool_calls": [CALL]}
    result = {"role": "tool", "content": "one"}
    before = render((USER, calling, result))
    assert render((USER, calling, result, {"role": "assistant", "content": "Done."})).startswith(
        before
    )
