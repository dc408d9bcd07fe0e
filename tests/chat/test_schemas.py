"""The types that schemas of tools admit, hostile ones among them."""

from typing import Any

import pytest

from ignisd.chat import arguments
from ignisd.chat.arguments import read_tool


def types_of(schema: object, **root: object) -> set[str]:
    """The types of the one parameter of a tool."""
    function = {"name": "f", "parameters": {"properties": {"a": schema}, **root}}
    return set(read_tool({"function": function}).types["a"])


DEFS: dict[str, Any] = {
    "number": {"type": "number"},
    "either": {"anyOf": [{"$ref": "#/$defs/number"}, {"type": ["string", "null"]}]},
    "there": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/back"}]},
    "back": {"oneOf": [{"type": "boolean"}, {"$ref": "#/$defs/there"}]},
    "odd/name": {"type": "array"},
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, set()),
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"$ref": "#/$defs/either"}, {"number", "string", "null"}),
        ({"$ref": "#/$defs/there"}, {"integer", "boolean"}),
        ({"$ref": "#/$defs/back"}, {"integer", "boolean"}),
        ({"$ref": "#/$defs/odd~1name"}, {"array"}),
        ({"$ref": "#/$defs/none"}, set()),
        ({"type": "number", "$ref": "#/$defs/odd~1name"}, {"number"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": True}, {"boolean"}),
        ({"type": "integer", "nullable": True}, {"integer", "null"}),
        ({"nullable": True}, set()),
        ({"allOf": [{"$ref": "#/$defs/number"}], "nullable": True}, {"number", "null"}),
    ],
)
def test_the_types_that_a_schema_admits(schema: object, types: set[str]):
    assert types_of(schema, **{"$defs": DEFS}) == types


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"anyOf": [schema]}
    return schema


def circles(width: int) -> dict[str, Any]:
    return {"anyOf": [{"$ref": "#/properties/a"}] * width + [{"type": "integer"}]}


@pytest.mark.parametrize(
    "schema",
    [
        deep(3000),
        circles(1000),
        {"anyOf": [{"oneOf": [{"$ref": "#"}, {"$ref": "#/properties/a"}]}] * 500},
        {"$ref": "#/" + "a/" * 5000},
        {"enum": [[[]]] * 10_000},
    ],
)
def test_no_schema_is_followed_without_end(schema: object, monkeypatch: pytest.MonkeyPatch):
    steps = 0

    def counting(name: str) -> None:
        real = getattr(arguments, name)

        def counted(*given: Any) -> Any:
            nonlocal steps
            steps += 1
            return real(*given)

        monkeypatch.setattr(arguments, name, counted)

    for name in ("_own_types", "_mapping", "_type_of"):
        counting(name)
    many = {f"p{number}": {"$ref": "#/properties/a"} for number in range(2000)}
    parameters = {"properties": {"a": schema, **many}}
    tool = read_tool({"function": {"name": "f", "parameters": parameters}})
    assert len(tool.types) == 2001
    assert steps <= 200_000


def test_what_a_deep_or_circular_schema_says_is_found():
    assert types_of(deep(3000)) == types_of(circles(1000)) == {"integer"}
