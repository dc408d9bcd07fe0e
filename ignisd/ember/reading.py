"""An answer read as the daemon reads it: reasoning apart, calls with typed arguments."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ignisd.chat.arguments import read_tool
from ignisd.chat.output import AnswerReader, CallArguments, CallReading, CallStart, Channel, Piece
from ignisd.chat.tokenizer import ChatTokenizer
from ignisd.ember import WEIGHTS_DIR


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as a client gets it; calls are names with their arguments."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, Any], ...]


@cache
def vocabulary(directory: Path = WEIGHTS_DIR) -> ChatTokenizer:
    """The tokenizer of a checkpoint as the daemon uses it."""
    return ChatTokenizer.from_file(directory / "tokenizer.json")


def read_answer(
    tokens: Sequence[int],
    tools: Sequence[dict[str, Any]],
    enable_thinking: bool = False,
    directory: Path = WEIGHTS_DIR,
) -> Answer:
    """Reads the tokens that follow an opener, the end of the turn left out.

    Args:
        tools: those that were offered.
        enable_thinking: the opener has begun a think block.
    """
    counter = itertools.count()
    calls = CallReading([read_tool(tool) for tool in tools], lambda: f"call_{next(counter)}")
    reader = AnswerReader(vocabulary(directory), in_reasoning=enable_thinking, calls=calls)
    pieces: list[Piece] = []
    for token in tokens:
        pieces += reader.feed(token)
    pieces += reader.finish()
    texts = dict.fromkeys(Channel, "")
    names: list[str] = []
    arguments: list[str] = []
    for piece in pieces:
        if isinstance(piece, CallStart):
            names.append(piece.name)
            arguments.append("")
        elif isinstance(piece, CallArguments):
            arguments[piece.index] += piece.text
        else:
            texts[piece.channel] += piece.text
    made = zip(names, map(json.loads, arguments), strict=True)
    return Answer(texts[Channel.CONTENT], texts[Channel.REASONING], tuple(made))


_KINDS: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
}


def fits(tools: Sequence[dict[str, Any]], name: str, arguments: Any) -> bool:
    """Whether a call is one of an offered tool, with arguments as its schema has them."""
    schema = next(
        (tool["function"]["parameters"] for tool in tools if tool["function"]["name"] == name),
        None,
    )
    if schema is None or not isinstance(arguments, dict):
        return False
    declared = schema["properties"]
    return set(schema["required"]) <= set(arguments) <= set(declared) and all(
        _is_a(declared[key], value) for key, value in arguments.items()
    )


def _is_a(schema: dict[str, Any], value: Any) -> bool:
    if isinstance(value, bool) != (schema["type"] == "boolean"):
        return False
    if not isinstance(value, _KINDS[schema["type"]]):
        return False
    if isinstance(value, list):
        return all(_is_a(schema["items"], each) for each in value)
    return value in schema.get("enum", (value,))
