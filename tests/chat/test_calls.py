import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chat.outputs import (
    CODE,
    OUTPUTS,
    TOOLS,
    Output,
    Seen,
    body,
    call,
    parameter,
    read_output,
    tool,
)
from tests.chat.test_output import cut


def by_bytes(data):
    return [bytes([byte]) for byte in data]


def whole(data):
    return [data] if data else []


def randomly(seed):
    generator = random.Random(seed)

    def split(data):
        pieces, at = [], 0
        while at < len(data):
            step = generator.randint(1, 9)
            pieces.append(data[at : at + step])
            at += step
        return pieces

    return split


def seen(text, splitter=by_bytes, **options):
    output = options.pop("output", None) or Output(text, Seen(), **options.pop("given", {}))
    return read_output(output, splitter, **options)[0]


@pytest.mark.parametrize("name", OUTPUTS)
def test_l92_every_output_reads_the_same_in_every_cut(name):
    output = OUTPUTS[name]
    for splitter in (whole, by_bytes, *map(randomly, range(25))):
        assert read_output(output, splitter)[0] == output.seen


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_text_cut_in_two_at_every_byte_reads_the_same(name):
    output = OUTPUTS[name]
    for at in range(len(output.text.encode())):
        got, _ = read_output(output, lambda data, at=at: [data[:at], data[at:]])
        assert got == output.seen


@pytest.mark.parametrize("known", ["read", "now"])
def test_l86_a_call_without_its_wrapper_is_a_call(known):
    for text in (body(known), body(known) + "</tool_call>", body(known) + "\n</tool_call>\n"):
        assert seen(text) == Seen(calls=[(known, {})], finish="tool_calls")
    # A function that was not offered is prose unless it is wrapped.
    strange = body("frobnicate")
    assert seen(strange) == Seen(strange)
    assert seen(call("frobnicate")).calls == [("frobnicate", {})]


VALUES = [
    CODE,
    "<",
    "&",
    "</div>",
    "<parameter=x>",
    "# </parameter>",
    "a\n</parameter>\nb",
    "a\n</parameter>\n<parameter=example>\nb",
    "<function=read>",
    "</function>\n</tool_call>",
    "]]>",
    "a\r\nb\r\n",
    "\r\n",
    "",
    "\n",
    "\n\n",
    "\n leading",
    "trailing \n\n",
    " ",
    '"quoted" \\ \t \x00 \x7f',
    "汉字🎉",
    "x" * 200_000,
    "line <b>\n" * 20_000,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value[:24]))
def test_l88_code_comes_through_exactly(value):
    text = call("write", path="p", content=value)
    for splitter in (whole, randomly(7)):
        assert seen(text, splitter).calls == [("write", {"path": "p", "content": value})]


@given(st.text(alphabet="a\n<>/ =\r", max_size=60), st.integers(0, 99))
def test_l88_any_value_without_the_closing_tag_comes_through(value, seed):
    text = "x\n\n" + call("write", content=value)
    assert seen(text, randomly(seed)).calls == [("write", {"content": value})]


def test_a_value_may_stand_on_one_line_with_its_tags():
    text = "<tool_call><function=read><parameter=path>a b</parameter></function></tool_call>"
    assert seen(text).calls == [("read", {"path": "a b"})]


def test_l88_a_tool_that_takes_anything_ends_a_value_at_any_parameter():
    tools = [tool("write", {"path": {"type": "string"}}, additionalProperties=True)]
    text = call("write", path="p", extra="e")
    assert seen(text, tools=tools).calls == [("write", {"path": "p", "extra": "e"})]


@pytest.mark.parametrize(
    ("key", "value", "want"),
    [
        ("limit", "5", 5),
        ("limit", " -5 ", -5),
        ("limit", "5.0", 5),
        ("limit", "12345678901234567890123", 12345678901234567890123),
        ("limit", "2026-01-15", "2026-01-15"),
        ("limit", "007", "007"),
        ("limit", "5.5", "5.5"),
        ("limit", "true", "true"),
        ("limit", "", ""),
        ("ratio", "0.5", 0.5),
        ("ratio", "3", 3),
        ("ratio", "1e999", "1e999"),
        ("ratio", "NaN", "NaN"),
        ("exact", "true", True),
        ("exact", "False", False),
        ("exact", "yes", "yes"),
        ("kinds", '["a", "b"]', ["a", "b"]),
        ("kinds", '[\n "a"\n]', ["a"]),
        ("kinds", "a, b", "a, b"),
        ("kinds", "[1,", "[1,"),
        ("range", '{"z": 1, "a": [2]}', {"z": 1, "a": [2]}),
        ("range", "[1]", "[1]"),
        ("range", '{"a": "\\ud800"}', '{"a": "\\ud800"}'),
        ("kinds", "[" * 3000 + "]" * 3000, "[" * 3000 + "]" * 3000),
        ("after", "null", None),
        ("after", "noon", "noon"),
        ("colour", "red", "red"),
        ("query", "5", "5"),
        ("query", "null", "null"),
        ("query", '{"a": 1}', '{"a": 1}'),
        ("undeclared", "5", "5"),
    ],
)
def test_l89_values_are_typed_by_the_schema_or_delivered_as_text(key, value, want):
    text = f"<tool_call>\n<function=search>\n{parameter(key, value)}</function>\n</tool_call>"
    got = seen(text)
    assert got == Seen(calls=[("search", {key: want})], finish="tool_calls")
    assert type(got.calls[0][1][key]) is type(want)


def test_objects_keep_the_order_of_their_keys():
    _, pieces = read_output(Output(call("search", range='{"z": 1, "a": 2}'), Seen()), by_bytes)
    assert "".join(piece.text for piece in pieces[1:]) == '{"range": {"z": 1, "a": 2}}'


def test_long_arguments_come_in_pieces():
    _, pieces = read_output(Output(call("write", content="é\n" * 9000), Seen()), whole)
    assert len(pieces) > 5
    assert all(len(piece.text) <= 4096 for piece in pieces[1:])


@pytest.mark.parametrize("name", ["call", "parallel", "code", "no-wrapper", "text-and-call"])
def test_l91_a_call_cut_off_by_max_tokens_is_dropped_whole(name):
    output = OUTPUTS[name]
    text = output.text.encode()
    for limit in range(len(text)):
        got, _ = read_output(output, by_bytes, limit=limit)
        assert got.finish == "length"
        assert got.calls == output.seen.calls[: len(got.calls)]
        assert "<f" not in got.content
        assert "<t" not in got.content
        assert len(got.calls) >= text[:limit].count(b"</function>\n</tool_call>")


def test_a_cut_text_without_calls_keeps_its_last_bracket():
    for text, want in (("a <", "a <"), ("a <b", "a <b"), ("a </tool_call", "a </tool_call")):
        assert seen(text + "xy", limit=len(text)).content == want


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("<tool_call>\n<function=now>\n</function>\n", [("now", {})]),
        (call("read", path="a").removesuffix("</tool_call>"), [("read", {"path": "a"})]),
        (call("read", path="a").removesuffix("tion>\n</tool_call>"), [("read", {"path": "a"})]),
        (
            call("read", path="a").removesuffix("</function>\n</tool_call>"),
            [("read", {"path": "a"})],
        ),
        (call("read", path="a").replace("</parameter>\n", ""), [("read", {"path": "a"})]),
        (call("read", path="a").replace("</function>\n", ""), [("read", {"path": "a"})]),
    ],
)
def test_l91_a_call_that_the_model_itself_left_open_is_completed_if_it_can_be(text, calls):
    for splitter in (whole, by_bytes, randomly(3)):
        assert seen(text, splitter) == Seen(calls=calls, finish="tool_calls")


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\n<function=read>",
        "<tool_call>\n<function=read>\n<parameter=path>\nhalf",
        "<tool_call>\n<function=read>\n<parameter=pa",
        "<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n<parameter=li",
        '<tool_call>\n{"name": "read"}\n</tool_call>',
        "<tool_call>\n<function=read>\nnonsense\n</function>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n<function=" + "x" * 300 + ">",
        "<tool_call>" + " " * 300 + "<function=frob></function>",
        "<tool_call>\n<function=read>" + "\n" * 20_000,
        "<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>" + "\n" * 20_000,
    ],
)
def test_l91_what_cannot_be_completed_is_text(text):
    for splitter in (whole, by_bytes, randomly(3)):
        assert seen(text, splitter) == Seen(text)


def mutated(generator, text):
    data = bytearray(text.encode())
    scraps = [
        b"<",
        b">",
        b"\n",
        b"</parameter>",
        b"<parameter=",
        b"<tool_call>",
        b"</function>",
        b"\xf0",
    ]
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(data) + 1)
        match generator.randrange(5):
            case 0:
                del data[at : at + generator.randint(1, 12)]
            case 1:
                data[at:at] = generator.choice(scraps)
            case 2:
                data[at:at] = data[at : at + generator.randint(1, 40)]
            case 3:
                data[at : at + 1] = bytes([generator.randrange(256)])
            case 4:
                data = data[:at] or data
    return bytes(data)


def test_l94_a_thousand_mutated_calls_never_raise_and_read_the_same_in_any_cut():
    generator = random.Random(94)
    texts = [output.text for output in OUTPUTS.values() if "<function" in output.text]
    with_calls = 0
    for number in range(1000):
        data = mutated(generator, generator.choice(texts))
        output = Output(_Raw(data), Seen(), stop=("STOP",) if number % 3 == 0 else ())
        limit = generator.randrange(len(data) + 1) if number % 2 else None
        got, _ = read_output(output, by_bytes, limit=limit)
        with_calls += bool(got.calls)
        for _, arguments in got.calls:
            json.dumps(arguments).encode()
        got.content.encode()
        if limit is None:
            assert got == read_output(output, randomly(number))[0]
            assert got == read_output(output, whole)[0]
    # Enough of them are still calls, so it is not only text that was tried.
    assert with_calls > 100


class _Raw(bytes):
    """Bytes where a text is expected."""

    def split(self, *_):
        return [bytes(self)]


@given(
    st.lists(st.sampled_from(["<tool_call>", "\n", "<function=read>", "</function>", "x", " "])),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_any_mixture_of_tags_reads_the_same_in_every_cut(parts, points):
    text = "".join(parts)
    assert seen(text, whole) == seen(text, lambda data: cut(data, points))


def test_text_without_tags_is_not_held_back():
    output = Output("one two\nthree<br>four", Seen())
    _, pieces = read_output(output, by_bytes)
    words = [piece.text for piece in pieces]
    assert words[:4] == ["o", "n", "e", " t"]
    assert "".join(words) == output.text


def test_a_single_call_ends_the_answer():
    text = "a" + call("now") + "\n" + call("now") + " b"
    assert seen(text, single=True) == Seen("a", calls=[("now", {})], finish="tool_calls")


def test_without_tools_markup_is_text():
    text = "a " + call("now")
    assert seen(text, tools=[]) == Seen(text)


def test_l95_a_hundred_tools_of_two_kilobytes_are_read():
    padding = {"type": "string", "description": "d" * 2000}
    many = [tool(f"tool{index}", {"p": padding}) for index in range(100)]
    assert seen(call("tool77", p="v"), tools=many).calls == [("tool77", {"p": "v"})]
    assert TOOLS


@pytest.mark.parametrize(
    "schema",
    [
        None,
        5,
        "x",
        [],
        {"properties": None},
        {"properties": {"a": None}},
        {"properties": {"a": {"$ref": "#/properties/a"}}},
        {"properties": {"a": {"anyOf": [{"$ref": "#"}] * 3}}},
        {"properties": {"a": {"type": 7, "enum": 3, "$ref": 8}}},
        {"properties": {"a": True}},
        {"properties": {"a": {"$ref": "https://example.com/x"}}},
    ],
)
def test_schemas_that_are_none_are_no_trouble(schema):
    strange = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert seen(call("f", a="5"), tools=[strange]).calls == [("f", {"a": "5"})]
