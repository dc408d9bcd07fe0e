import orjson
import pytest

from ignisd.chat.parse import parse_chat
from ignisd.errors import RequestError, UnsupportedValue
from state.spec import Class

USER = {"role": "user", "content": "hello"}


def parse(**fields):
    return parse_chat(orjson.dumps({"messages": [USER], **fields}))


def refusal(**fields):
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    return caught.value


def test_a_minimal_request_leaves_everything_open():
    chat = parse()
    assert [message.content for message in chat.messages] == ["hello"]
    asked = chat.asked
    assert asked.model is asked.max_tokens is asked.sampling.temperature is None
    assert asked.sampling.seed is None
    assert (asked.n, asked.ignore_eos) == (1, False)
    assert chat.asked.cls is Class.INTERACTIVE
    assert chat.asked.reuse
    assert {chat.asked.stream, chat.asked.include_usage, chat.asked.return_reuse} == {False}
    assert chat.template_kwargs == {"preserve_thinking": False}


def test_unknown_fields_and_nulls_are_passed_over():
    known = dict.fromkeys(
        ["model", "max_tokens", "temperature", "stop", "tools", "stream_options", "class", "seed"]
    )
    chat = parse(**known, frobnicate={"a": [1]}, store=True, metadata={}, service_tier="auto")
    assert chat == parse()


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("temperature", -0.1, "at least 0 and at most 2"),
        ("temperature", 2.1, "at least 0 and at most 2"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 1.01, "above 0 and at most 1"),
        ("top_k", -2, "at least -1"),
        ("min_p", -0.01, "at least 0 and at most 1"),
        ("min_p", 1.5, "at least 0 and at most 1"),
        ("presence_penalty", 2.5, "at least -2 and at most 2"),
        ("frequency_penalty", -2.5, "at least -2 and at most 2"),
        ("repetition_penalty", 0.0, "above 0 and at most 10"),
        ("repetition_penalty", 11, "above 0 and at most 10"),
        ("seed", 2**63, "at least -9223372036854775808 and at most 9223372036854775807"),
        ("max_tokens", 0, "at least 1"),
        ("max_completion_tokens", -5, "at least 1"),
        ("n", 0, "at least 1 and at most 8"),
        ("n", 9, "at least 1 and at most 8"),
    ],
)
def test_values_out_of_range_are_refused_with_field_value_and_limit(field, value, limit):
    error = refusal(**{field: value})
    assert (error.status, error.code, error.param) == (400, "invalid_value", field)
    assert field in error.message
    assert str(value) in error.message
    assert limit in error.message


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0, 2]),
        ("top_p", [0.001, 1]),
        ("top_k", [-1, 0, 2**31 - 1]),
        ("min_p", [0, 1]),
        ("presence_penalty", [-2, 2]),
        ("frequency_penalty", [-2, 2]),
        ("repetition_penalty", [0.1, 10]),
        ("seed", [-(2**63), 2**63 - 1]),
    ],
)
def test_the_ends_of_a_range_belong_to_it(field, values):
    for value in values:
        assert getattr(parse(**{field: value}).asked.sampling, field) == value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_value(fields, param):
    error = refusal(**fields)
    assert isinstance(error, UnsupportedValue)
    assert (error.status, error.code, error.param) == (400, "unsupported_value", param)


def test_neutral_spellings_of_what_cannot_be_honoured_are_accepted():
    neutral = {"n": 1, "ignore_eos": False, "logprobs": False, "top_logprobs": 0, "logit_bias": {}}
    chat = parse(**neutral, response_format={"type": "text"}, tool_choice="none")
    assert chat == parse()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "role"),
        ({"messages": [{"role": "robot"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": 7}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ""}, "stop"),
        ({"stop": "x" * 1025}, "stop"),
        ({"stop": 5}, "stop"),
        ({"class": "royal"}, "class"),
        ({"reasoning_effort": "heroic"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
        ({"tools": [5]}, "tools[0]"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(fields, param):
    error = refusal(**fields)
    assert (error.status, error.code, error.param) == (400, "invalid_value", param)


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"', "nope", '{"a":NaN}'])
def test_broken_arguments_in_the_history_are_named_by_their_path(arguments):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    error = refusal(messages=[USER, {"role": "assistant", "tool_calls": [call]}])
    assert error.param == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ("", {}),
        (None, {}),
        ("{}", {}),
        ('{"b": 1, "a": "x"}', {"b": 1, "a": "x"}),
        ({"q": 2}, {"q": 2}),
    ],
)
def test_arguments_are_read_as_text_or_object(arguments, want):
    call = {"function": {"name": "f", "arguments": arguments}}
    chat = parse(messages=[USER, {"role": "assistant", "content": None, "tool_calls": [call]}])
    (read,) = chat.messages[1].tool_calls
    assert read.arguments == want
    assert list(read.arguments) == list(want)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"messages":NaN}', b'{"messages":"\\ud800"}'],
)
def test_what_is_no_json_object_is_a_request_error(body):
    with pytest.raises(RequestError):
        parse_chat(body)


def test_deep_nesting_is_a_request_error():
    deep = b'{"messages":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(RequestError):
        parse_chat(deep)
    deep = b'{"messages":[],"chat_template_kwargs":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001
    with pytest.raises(RequestError, match="deeply"):
        parse_chat(deep)


def test_class_from_field_or_from_the_models_name():
    assert parse(model="ember").asked.cls is Class.INTERACTIVE
    agent = parse(model="ember@agent")
    assert (agent.asked.model, agent.asked.cls) == ("ember", Class.AGENT)
    assert parse(**{"class": "agent"}).asked.cls is Class.AGENT
    both = parse(model="ember@agent", **{"class": "interactive"})
    assert (both.asked.model, both.asked.cls) == ("ember", Class.INTERACTIVE)


def test_either_name_of_max_tokens():
    assert parse(max_tokens=7).asked.max_tokens == 7
    assert parse(max_completion_tokens=8).asked.max_tokens == 8
    assert parse(max_tokens=9, max_completion_tokens=9).asked.max_tokens == 9


def test_content_parts_are_joined():
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert parse(messages=[{"role": "user", "content": parts}]).messages[0].content == "one two"


def test_tools_of_other_kinds_are_passed_over():
    function = {"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}}
    chat = parse(tools=[{"type": "web_search"}, function, {"type": "namespace"}])
    assert chat.tools == (function,)


def test_thinking_switches_reach_the_template():
    assert parse(enable_thinking=True).template_kwargs["enable_thinking"] is True
    assert parse(reasoning_effort="none").template_kwargs["enable_thinking"] is False
    assert parse(reasoning_effort="low").template_kwargs["reasoning_effort"] == "low"
    given = parse(chat_template_kwargs={"enable_thinking": True, "preserve_thinking": True})
    assert given.template_kwargs == {"enable_thinking": True, "preserve_thinking": True}


def roles(*messages):
    chat = parse(messages=[{"role": role, "content": text} for role, text in messages])
    return [(message.role, message.content) for message in chat.messages]


def test_leading_system_and_developer_messages_become_one():
    placed = roles(("system", "a"), ("developer", "b"), ("user", "q"))
    assert placed == [("system", "a\n\nb"), ("user", "q")]


def test_a_later_system_message_stays_in_place():
    placed = roles(("user", "q"), ("assistant", "r"), ("system", "note"), ("user", "s"))
    assert placed == [("user", "q"), ("assistant", "r"), ("user", "note"), ("user", "s")]
    placed = roles(("user", "q"), ("assistant", "r"), ("tool", "t"), ("system", "note"))
    assert placed == [("user", "q"), ("assistant", "r"), ("tool", "t\n\nnote")]


@pytest.mark.parametrize("name", ["a>b", "<a", "a\nb", "x" * 257, ">", "</function>"])
def test_a_tool_that_could_not_be_called_is_refused(name):
    error = refusal(tools=[{"type": "function", "function": {"name": name}}])
    assert error.param == "tools[0].function.name"
    assert "could not be called" in error.message


@pytest.mark.parametrize("name", ["mcp__a.b/c:d", "é 汉", "x" * 256, "a-b", "=", "'\""])
def test_names_of_other_characters_are_taken(name):
    tool = {"type": "function", "function": {"name": name}}
    assert parse(tools=[tool], tool_choice="required").begun.endswith(f"{name}>\n")
