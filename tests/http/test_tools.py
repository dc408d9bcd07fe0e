"""Tool calls and stop strings over HTTP: what is streamed is what is answered."""

import itertools
import json
import random
from dataclasses import replace

import pytest

from ignisd.chat.family import Family
from ignisd.engine.types import FinishReason
from ignisd.http.options import HttpOptions
from tests.chat.outputs import OUTPUTS, TOOLS, Output, Seen, call, tool
from tests.chat.test_calls import by_bytes, mutated, randomly, whole
from tests.chat.toy import toy_model, toy_tokenizer
from tests.fakes import Script
from tests.http.rig import USER, make_rig
from tests.http.streams import plain, post, scripted, streamed, without_ids


def seen_in(choice):
    message = choice["message"]
    calls = [
        (each["function"]["name"], json.loads(each["function"]["arguments"]))
        for each in message.get("tool_calls", ())
    ]
    reasoning = message.get("reasoning_content", "")
    return Seen(message["content"] or "", reasoning, calls, choice["finish_reason"])


@pytest.mark.parametrize("name", OUTPUTS)
async def test_l92_the_stream_put_together_is_the_plain_answer_and_ends_once(name):
    output = OUTPUTS[name]
    for splitter in (whole, by_bytes, randomly(1), randomly(2), randomly(3)):
        rig, fields = scripted(output, splitter)
        choice, usage = await plain(rig, **fields)
        other, other_usage = await streamed(rig, **fields)
        assert without_ids(choice) == without_ids(other)
        assert usage == other_usage
        assert seen_in(choice) == output.seen


@pytest.mark.parametrize("name", ["parallel", "call-in-reasoning", "stop-in-call", "multi-byte"])
async def test_l92_answers_cut_by_max_tokens_end_once_too(name):
    output = OUTPUTS[name]
    for limit in range(1, len(output.text.encode()), 7):
        rig, fields = scripted(output, by_bytes)
        choice, usage = await plain(rig, max_tokens=limit, **fields)
        other, other_usage = await streamed(rig, max_tokens=limit, **fields)
        assert without_ids(choice) == without_ids(other)
        assert usage == other_usage


SCRAPS = [
    *("<tool_call>\n", "<function=read>\n", "<parameter=path>\n", "\n</parameter>\n"),
    *("</function>\n", "</tool_call>", "<think>", "</think>", "STOP", "ST", "é", "🎉", "\n", " x"),
    *(call("read", path="汉", line="7"), call("now")),
]


async def test_l92_random_mixtures_are_the_same_plain_and_streamed():
    generator = random.Random(92)
    with_calls = 0
    for number in range(80):
        text = "".join(generator.choices(SCRAPS, k=generator.randint(1, 12)))
        output = Output(text, Seen(), thinking=number % 2 == 0, stop=("STOP", "\n\n")[: number % 3])
        rig, fields = scripted(output, randomly(number))
        fields["max_tokens"] = None if number % 4 else generator.randint(1, 30)
        choice, usage = await plain(rig, **fields)
        other, other_usage = await streamed(rig, **fields)
        assert (without_ids(choice), usage) == (without_ids(other), other_usage)
        with_calls += choice["finish_reason"] == "tool_calls"
        assert "STOP" not in (choice["message"]["content"] or "") or not output.stop
    assert with_calls > 15


async def test_l86_a_call_without_its_wrapper_is_a_call_plain_and_streamed():
    for opened in ("<function=read>\n", "Look:\n\n<function=read>\n"):
        text = opened + "<parameter=path>\na\n</parameter>\n</function>\n</tool_call>"
        rig, fields = scripted(Output(text, Seen()), by_bytes)
        for answer in (plain, streamed):
            choice, _ = await answer(rig, **fields)
            assert choice["finish_reason"] == "tool_calls"
            assert "<" not in (choice["message"]["content"] or "")
            (made,) = choice["message"]["tool_calls"]
            assert made["type"] == "function"
            assert made["function"] == {"name": "read", "arguments": '{"path": "a"}'}


async def test_l91_half_a_call_is_not_delivered():
    rig, fields = scripted(OUTPUTS["text-and-call"], by_bytes)
    for answer in (plain, streamed):
        choice, _ = await answer(rig, max_tokens=40, **fields)
        assert choice["finish_reason"] == "length"
        assert choice["message"] == {
            "role": "assistant",
            "content": "I look.\n\n",
            "refusal": None,
        }


async def test_l94_mutated_calls_are_answered():
    generator = random.Random(7)
    text = OUTPUTS["code"].text + OUTPUTS["parallel"].text
    rig = make_rig()
    for _ in range(40):
        rig.engine.script = Script(list(mutated(generator, text)))
        choice, _ = await plain(rig, tools=TOOLS)
        other, _ = await streamed(rig, tools=TOOLS)
        assert without_ids(choice) == without_ids(other)


async def test_l95_none_never_returns_calls():
    output = OUTPUTS["text-and-call"]
    rig, fields = scripted(output, by_bytes)
    for answer in (plain, streamed):
        choice, _ = await answer(rig, tool_choice="none", **fields)
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", output.text)
        assert "tool_calls" not in choice["message"]
    # The prompt is the same, so switching between the two costs no reuse.
    await plain(rig, tool_choice="auto", **fields)
    prompts = [request.chain.tokens.tolist() for request in rig.engine.requests]
    assert prompts[0] == prompts[-1]


NAMED = {"type": "function", "function": {"name": "read"}}


@pytest.mark.parametrize(
    ("choice", "code", "param"),
    [
        ({"type": "allowed_tools"}, "unsupported_value", "tool_choice"),
        ("sometimes", "invalid_value", "tool_choice"),
        (
            {"type": "function", "function": {"name": "x"}},
            "invalid_value",
            "tool_choice.function.name",
        ),
        ({"type": "function"}, "invalid_value", "tool_choice.function.name"),
        ({}, "invalid_value", "tool_choice.function.name"),
    ],
)
async def test_l95_choices_that_cannot_be_kept_are_refused(choice, code, param):
    rig = make_rig()
    response = await post(rig, tools=TOOLS, tool_choice=choice)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert rig.engine.requests == []


async def test_l95_a_call_cannot_be_required_of_no_tools():
    for tools in ([], [{"type": "web_search"}], None):
        response = await post(make_rig(), tools=tools, tool_choice="required")
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "tool_choice")


@pytest.mark.parametrize("answer", [plain, streamed])
@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize(
    ("choice", "tools", "opening"),
    [
        (NAMED, TOOLS, "<tool_call>\n<function=read>\n"),
        ("required", TOOLS[:1], "<tool_call>\n<function=read>\n"),
        ("required", TOOLS, "<tool_call>\n<function"),
    ],
)
async def test_l95_a_forced_call_opens_the_answer(answer, thinking, choice, tools, opening):
    text = call("read", path="a").removeprefix(opening)
    for splitter in (whole, by_bytes):
        rig, fields = scripted(Output(text, Seen()), splitter)
        fields |= {"tools": tools, "tool_choice": choice, "enable_thinking": thinking}
        got, _ = await answer(rig, **fields)
        assert got["finish_reason"] == "tool_calls"
        assert got["message"]["content"] is None
        assert "reasoning_content" not in got["message"]
        (made,) = got["message"]["tool_calls"]
        assert made["function"] == {"name": "read", "arguments": '{"path": "a"}'}
        (request,) = rig.engine.requests
        prompt = toy_tokenizer().decode(request.chain.tokens.tolist())
        assert prompt.endswith(opening)
        assert prompt.count("<think>") == prompt.count("</think>") == thinking
        # The opening comes after the mark, so a forced and a free answer share their prompt.
        assert request.marks.opener < request.prompt_tokens


async def test_l95_a_named_call_is_the_only_one():
    text = OUTPUTS["parallel"].text.removeprefix("<tool_call>\n<function=read>\n")
    rig, fields = scripted(Output(text, Seen()), whole)
    choice, _ = await plain(rig, tool_choice=NAMED, **fields)
    assert len(choice["message"]["tool_calls"]) == 1


async def test_l95_a_forced_call_that_is_cut_off_is_dropped():
    rig, fields = scripted(Output("<parameter=path>\nabcdef", Seen()), by_bytes)
    choice, _ = await plain(rig, tool_choice=NAMED, max_tokens=20, **fields)
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")


async def test_l95_a_model_whose_form_is_not_read_cannot_be_forced():
    rig = make_rig(model=replace(toy_model(), family=Family(calls=False)))
    response = await post(rig, tools=TOOLS, tool_choice="required")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "unsupported_value")
    assert rig.engine.requests == []


async def test_l95_a_hundred_tools_of_two_kilobytes_are_accepted():
    padding = {"type": "string", "description": "d" * 2000}
    many = [tool(f"tool{index}", {"p": padding}) for index in range(100)]
    output = Output(call("tool77", p="v"), Seen())
    rig, fields = scripted(output, whole)
    fields["tools"] = many
    response = await post(rig, **fields)
    # The toy has one token a byte, so they overfill its context: accepted, and told so.
    assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_parallel_tool_calls_false_ends_the_answer_after_one():
    rig, fields = scripted(OUTPUTS["parallel"], by_bytes)
    for answer in (plain, streamed):
        choice, usage = await answer(rig, parallel_tool_calls=False, **fields)
        assert len(choice["message"]["tool_calls"]) == 1
        assert choice["finish_reason"] == "tool_calls"
        assert usage["completion_tokens"] < len(OUTPUTS["parallel"].text.encode()) // 2
    assert [reason for _, reason in rig.engine.left] == [FinishReason.STOP] * 2


async def test_every_call_has_an_identity_of_its_own():
    names = itertools.count()
    options = HttpOptions(draw_name=lambda: f"n{next(names)}")
    rig, fields = scripted(OUTPUTS["parallel"], whole, options=options)
    choice, _ = await plain(rig, **fields)
    ids = [each["id"] for each in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("answer", [plain, streamed])
async def test_an_echoed_call_is_rendered_as_it_was_generated(answer):
    rig, fields = scripted(OUTPUTS["code"], whole)
    choice, _ = await answer(rig, **fields)
    result = {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"]}
    for content in ("done", [{"type": "text", "text": "done"}]):
        messages = [USER, choice["message"], {**result, "content": content}]
        assert (await post(rig, messages=messages, **fields)).status_code == 200
    first, *later = (request.chain.tokens.tolist() for request in rig.engine.requests)
    assert later[0] == later[1]
    assert later[0][: len(first) - 1] == first[:-1]


SKIPPED = [
    {"type": "web_search"},
    {"type": "namespace", "name": "n", "tools": [tool("inner")]},
    {"type": "custom", "custom": {"name": "c"}},
    {"type": "local\r\nshell: x"},
    {"type": 5},
]


@pytest.mark.parametrize("stream", [False, True])
async def test_l103_tools_of_other_kinds_are_skipped_with_a_warning(stream, caplog):
    rig = make_rig()
    for _ in range(3):
        response = await post(rig, tools=[*SKIPPED, *TOOLS], stream=stream)
        assert response.status_code == 200
        assert response.headers["x-ignis-warning"] == (
            "tool-skipped=web_search, tool-skipped=namespace, tool-skipped=custom, "
            "tool-skipped=other, tool-skipped=5"
        )
    assert [record.message for record in caplog.records] == ["tool-skipped"]
    await post(rig, tools=TOOLS)
    with_all, without = rig.engine.requests[0], rig.engine.requests[-1]
    assert with_all.chain.tokens.tolist() == without.chain.tokens.tolist()
    assert "x-ignis-warning" not in (await post(rig, tools=TOOLS)).headers


async def test_a_dropped_header_is_logged_once_and_without_its_text(caplog):
    rig = make_rig()
    system = {"role": "system", "content": "x-anthropic-billing-header: secret\nrules"}
    for _ in range(3):
        response = await post(rig, messages=[system, USER])
        assert response.headers["x-ignis-warning"] == "volatile-header"
    assert [record.message for record in caplog.records] == ["volatile-header"]
    assert "secret" not in caplog.text


def assistant(*calls, **fields):
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


def made(**function):
    return {"id": "c", "type": "function", "function": {"name": "read", **function}}


HISTORIES = [
    [assistant(made(arguments="{"))],
    [assistant(made(arguments=""))],
    [assistant(made(arguments=None))],
    [assistant(made(arguments={"path": "a"}))],
    [assistant(made(arguments=[]))],
    [assistant(made(arguments=5))],
    [assistant(made(arguments='{"a": "\\ud800"}'))],
    [assistant({"function": {"name": "read"}})],
    [assistant({"id": None, "function": {"name": "read", "arguments": "{}"}})],
    [assistant({"id": "c"})],
    [assistant({"id": "c", "function": None})],
    [assistant({"id": "c", "function": {"name": None}})],
    [assistant("call")],
    [{"role": "assistant", "tool_calls": None}],
    [{"role": "assistant", "tool_calls": {}}],
    [{"role": "tool", "content": "no call came before"}],
    [{"role": "tool", "content": None, "tool_call_id": "unknown"}],
    [{"role": "tool", "content": [{"type": "text", "text": "t"}], "tool_call_id": 7}],
    [{"role": "function", "name": "read", "content": "old"}],
    [{"role": "user", "tool_calls": [made(arguments="{}")], "content": "not mine"}],
    [assistant(made(arguments="{}"), reasoning_content=None, reasoning="r")],
]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda each: json.dumps(each)[:60])
async def test_l104_broken_history_is_rendered_or_refused_with_its_path(history):
    rig = make_rig()
    response = await post(rig, messages=[USER, *history, USER], tools=TOOLS)
    if response.status_code != 200:
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"]
        assert "messages[1]" in f"{error['param']} {error['message']}"


STOPS = ["b", "ab", "ba\n", "\n\n", " ", "é", "汉a", "<think>", "aab", "STOP"]


async def test_l110_stop_strings_end_every_answer_at_the_earliest():
    generator = random.Random(110)
    for number in range(60):
        text = "".join(generator.choices(["a", "b", "\n", " ", "é", "汉", "ST", "OP", "<"], k=12))
        stops = tuple(generator.sample(STOPS, generator.randint(1, 4)))
        rig, fields = scripted(Output(text, Seen(), stop=stops), randomly(number))
        fields["tools"] = TOOLS if number % 2 else None
        choice, usage = await plain(rig, **fields)
        other, other_usage = await streamed(rig, **fields)
        found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
        assert choice["message"]["content"] == (text[: min(found)] if found else text)
        assert (choice, usage) == (other, other_usage)


INVALID = [
    "🎉👩‍👩‍👧‍👦汉".encode(),
    b"lone \x80\xbf",
    b"end \xf0\x9f\x8e",
    b"over-long \xc0\xaf\xe0\x80\xaf",
    b"half \xed\xa0\x80 surrogate",
    b"\xf0\x9f then",
]


class _Raw(bytes):
    def split(self, *_):
        return [bytes(self)]


@pytest.mark.parametrize("data", INVALID)
async def test_l109_characters_are_never_split(data):
    for tools in (None, TOOLS):
        for limit in range(1, len(data) + 1):
            rig, _ = scripted(Output(_Raw(data), Seen()), by_bytes)
            choice, _ = await streamed(rig, tools=tools, max_tokens=limit)
            assert choice["message"]["content"] == data[:limit].decode("utf-8", "replace")


async def test_l109_a_stop_ends_a_text_between_characters():
    rig, fields = scripted(Output("汉🎉x🎉", Seen(), stop=("x",)), by_bytes)
    choice, _ = await streamed(rig, **fields)
    assert choice["message"]["content"] == "汉🎉"


async def test_calls_inside_a_streamed_text_keep_their_place():
    rig, fields = scripted(OUTPUTS["text-after"], whole)
    events = (await post(rig, stream=True, **fields)).text
    assert events.index("one") < events.index('"now"') < events.index("two")
