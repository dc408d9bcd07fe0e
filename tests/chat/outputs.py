"""What models say, and what a client is to see of it: shared by the tests of reader and of HTTP."""

import json
from dataclasses import dataclass, field
from typing import Any

from ignisd.chat.arguments import read_tool
from ignisd.chat.output import AnswerReader, CallArguments, CallReading, CallStart, Channel, Delta


def tool(name, properties=None, **schema):
    parameters = {"type": "object", "properties": properties or {}, **schema}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("read", {"path": {"type": "string"}, "line": {"type": "integer"}}),
    tool("write", {"path": {"type": "string"}, "content": {"type": "string"}}),
    tool(
        "search",
        {
            "query": {"type": "string"},
            "limit": {"type": "integer"},
            "ratio": {"type": "number"},
            "exact": {"type": "boolean"},
            "kinds": {"type": "array", "items": {"type": "string"}},
            "range": {"type": "object"},
            "after": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "colour": {"$ref": "#/$defs/Colour"},
        },
        **{"$defs": {"Colour": {"enum": ["red", "green"]}}},
    ),
    tool("now"),
]


def parameter(key, value):
    return f"<parameter={key}>\n{value}\n</parameter>\n"


def body(name, **arguments):
    """A call without its wrapper, as a template writes it."""
    inner = "".join(parameter(key, value) for key, value in arguments.items())
    return f"<function={name}>\n{inner}</function>"


def call(name, **arguments):
    return f"<tool_call>\n{body(name, **arguments)}\n</tool_call>"


@dataclass(frozen=True)
class Seen:
    """What a client has of an answer; calls as (name, arguments as JSON value)."""

    content: str = ""
    reasoning: str = ""
    calls: list[Any] = field(default_factory=list)
    finish: str = "stop"


@dataclass(frozen=True)
class Output:
    """One output of a model. `thinking`: the prompt has opened the reasoning."""

    text: Any
    seen: Seen
    thinking: bool = False
    stop: tuple[str, ...] = ()


CODE = """
# a comment with </parameter> in it & <parameter=x>
<div class="a">&amp; ]]></div>\r
</parameter>
if a < b && c > d: <function=read> </function>

"""

OUTPUTS = {
    "plain": Output("hello\n\nthere \n", Seen("hello\n\nthere \n")),
    "multi-byte": Output("汉字 👩‍👩‍👧‍👦 é <b>", Seen("汉字 👩‍👩‍👧‍👦 é <b>")),
    "call": Output(
        call("read", path="/tmp/é 🎉", line="5"),
        Seen(calls=[("read", {"path": "/tmp/é 🎉", "line": 5})], finish="tool_calls"),
    ),
    "text-and-call": Output(
        "I look.\n\n" + call("read", path="a") + "\n",
        Seen("I look.", calls=[("read", {"path": "a"})], finish="tool_calls"),
    ),
    "parallel": Output(
        call("read", path="a") + "\n" + call("now") + "\n" + call("read", path="b", line="-3"),
        Seen(
            calls=[("read", {"path": "a"}), ("now", {}), ("read", {"path": "b", "line": -3})],
            finish="tool_calls",
        ),
    ),
    "two-in-one-wrapper": Output(
        f"<tool_call>\n{body('read', path='a')}\n{body('now')}\n</tool_call>",
        Seen(calls=[("read", {"path": "a"}), ("now", {})], finish="tool_calls"),
    ),
    "text-after": Output(
        "one\n\n" + call("now") + "\n\ntwo",
        Seen("one\n\ntwo", calls=[("now", {})], finish="tool_calls"),
    ),
    "code": Output(
        call("write", path="x.html", content=CODE),
        Seen(calls=[("write", {"path": "x.html", "content": CODE})], finish="tool_calls"),
    ),
    "no-wrapper": Output(
        "Now:\n" + body("read", path="a") + "</tool_call>",
        Seen("Now:", calls=[("read", {"path": "a"})], finish="tool_calls"),
    ),
    "reasoning": Output(
        "let me see\n</think>\n\nhello",
        Seen("hello", "let me see"),
        thinking=True,
    ),
    "reasoning-and-call": Output(
        "I <tool_call> need é\n</think>\n\nSo:\n\n" + call("read", path="a"),
        Seen("So:", "I <tool_call> need é", [("read", {"path": "a"})], "tool_calls"),
        thinking=True,
    ),
    "call-in-reasoning": Output(
        "I need it\n" + call("read", path="a") + "\n</think>\n\n",
        Seen("", "I need it", [("read", {"path": "a"})], "tool_calls"),
        thinking=True,
    ),
    "call-thought-of": Output(
        "maybe <tool_call>\n<function=read>\n<parameter=path>\na\n</think>\n\nno",
        Seen("no", "maybe <tool_call>\n<function=read>\n<parameter=path>\na"),
        thinking=True,
    ),
    "bare-call-thought-of": Output(
        "I could <function=now>\n</function> it\n</think>\n\nno",
        Seen("no", "I could <function=now>\n</function> it"),
        thinking=True,
    ),
    "bare-call-after-reasoning": Output(
        "hm\n</think>\n\n<function=now>\n</function>",
        Seen("", "hm", [("now", {})], "tool_calls"),
        thinking=True,
    ),
    "reasoning-only": Output("half a thou", Seen("", "half a thou"), thinking=True),
    "stop": Output("ab STOP cd", Seen("ab "), stop=("STOP",)),
    "stop-in-reasoning": Output(
        "a STOP\n</think>\n\nb STOP c", Seen("b ", "a STOP"), thinking=True, stop=("STOP",)
    ),
    "stop-in-call": Output(
        "x\n" + call("write", path="STOP", content="a\n\nb") + "STOP y",
        Seen("x", calls=[("write", {"path": "STOP", "content": "a\n\nb"})], finish="tool_calls"),
        stop=("STOP", "\n\n"),
    ),
    "stop-before-call": Output(
        "x\n\n" + call("now"), Seen("x", calls=[], finish="stop"), stop=("\n\n",)
    ),
    "stop-equal-to-a-tag": Output(
        call("now"), Seen(calls=[("now", {})], finish="tool_calls"), stop=("<tool_call>",)
    ),
    "half-a-call": Output(
        "x <tool_call>\n<function=read>\n<parameter=path>\na",
        Seen("x <tool_call>\n<function=read>\n<parameter=path>\na"),
    ),
    "mention": Output(
        "Use `<function=read>` or <tool_call> or </function>.",
        Seen("Use `<function=read>` or <tool_call> or </function>."),
    ),
    "empty": Output("", Seen()),
    "stop-never-completed": Output("abc STO", Seen("abc STO"), stop=("STOP",)),
}


class Pieces:
    """A vocabulary in which token i has the i-th piece of bytes; think tokens are -1 and -2."""

    def __init__(self, pieces):
        self.pieces = pieces

    def token_bytes(self, token):
        return {-1: b"<think>", -2: b"</think>"}.get(token) or self.pieces[token]

    def token_id(self, text):
        return {"<think>": -1, "</think>": -2}.get(text)


def tokens_of(text, cut):
    """Tokens of a text and their vocabulary; `cut` splits bytes, think tags are tokens."""
    tokens: list[int] = []
    pieces: list[bytes] = []
    for index, part in enumerate(text.split("</think>")):
        if index:
            tokens.append(-2)
        for piece in cut(part.encode() if isinstance(part, str) else part):
            tokens.append(len(pieces))
            pieces.append(piece)
    return tokens, Pieces(pieces)


def read_output(output, cut, *, limit=None, tools=TOOLS, single=False, in_reasoning=True):
    """What an `AnswerReader` makes of an output, and the pieces that it gave."""
    tokens, vocabulary = tokens_of(output.text, cut)
    ids = iter(range(100))
    reading = CallReading(
        [read_tool(each) for each in tools], lambda: f"call_{next(ids)}", single, in_reasoning
    )
    reader = AnswerReader(
        vocabulary, output.stop, in_reasoning=output.thinking, calls=reading if tools else None
    )
    pieces: list[Any] = []
    for token in tokens[:limit]:
        if reader.stopped:
            break
        pieces += reader.feed(token)
    was_cut = limit is not None and limit < len(tokens) and not reader.stopped
    pieces += reader.finish(cut=was_cut)
    reason = "length" if was_cut else "tool_calls" if reader.num_calls else "stop"
    return seen_of(pieces, reason), pieces


def seen_of(pieces, reason):
    texts = dict.fromkeys(Channel, "")
    calls: list[Any] = []
    arguments: list[Any] = []
    for piece in pieces:
        match piece:
            case Delta():
                assert piece.text
                texts[piece.channel] += piece.text
            case CallStart():
                assert piece.index == len(calls)
                calls.append(piece.name)
                arguments.append("")
            case CallArguments():
                assert piece.text
                arguments[piece.index] += piece.text
    made = [(name, json.loads(text)) for name, text in zip(calls, arguments, strict=True)]
    return Seen(texts[Channel.CONTENT], texts[Channel.REASONING], made, reason)
