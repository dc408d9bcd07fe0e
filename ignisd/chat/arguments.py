"""The text of a tool call's parameters becomes JSON, typed by the tool's schema.

The form that models write has no types: `<parameter=count>5</parameter>` is a number or a string
as the tool says. What does not fit its type is delivered as a string, for the tool to refuse: the
model reads its answer and tries again, which it could not do for a call that was dropped.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

_MAX_PARTS = 20_000
_MAX_STEPS = 64
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_PIECE_CHARS = 4096
_INTEGER = re.compile(r"-?(?:0|[1-9]\d*)")
_JSON_TYPES: tuple[tuple[str, type | tuple[type, ...]], ...] = (
    ("null", type(None)),
    ("boolean", bool),
    ("integer", int),
    ("number", float),
    ("array", list),
    ("object", dict),
    ("string", str),
)


@dataclass(frozen=True, slots=True)
class Tool:
    """What is needed of a tool's description to read its calls.

    `types` maps the declared parameters to their JSON types; no types means that any text is a
    string. `closed` tells that no other parameters are welcome.
    """

    name: str
    types: Mapping[str, frozenset[str]]
    closed: bool


def read_tool(tool: Mapping[str, object]) -> Tool:
    """Read a function tool as clients send it; what is no JSON schema counts as no schema."""
    function = _mapping(tool.get("function"))
    schema = _mapping(function.get("parameters"))
    properties = _mapping(schema.get("properties"))
    extra = schema.get("additionalProperties")
    reading = _SchemaReading(schema)
    return Tool(
        name=str(function.get("name")),
        types={name: reading.types_of(each) for name, each in properties.items()},
        closed=bool(properties) and not (extra is True or isinstance(extra, dict)),
    )


class _SchemaReading:
    """Reads the JSON types that schemas admit as far as they say.

    References may lead anywhere, in circles too: each schema is visited once for a parameter, and
    no more than some thousands, their parts counted, for a tool. What is said beyond that counts
    as not said.

    Args:
        root: where references point into.
    """

    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        self._parts_left = _MAX_PARTS

    def types_of(self, schema: object) -> frozenset[str]:
        """The types of one parameter; none when its schema says nothing."""
        found: set[str] = set()
        seen: set[int] = set()
        nullable = False
        ahead = [schema]
        while ahead and self._parts_left > 0:
            each = ahead.pop()
            if not isinstance(each, dict) or id(each) in seen:
                continue
            seen.add(id(each))
            nullable = nullable or each.get("nullable") is True
            own, others = _own_types(each), self._others(each)
            found |= own
            ahead += () if own else others
            self._parts_left -= 1 + len(others)
            if not own and not others:
                constants = [*_sequence(each.get("enum")), *_listed(each.get("const"))]
                found.update(_type_of(constant) for constant in constants)
                self._parts_left -= len(constants)
        return frozenset({*found, "null"} if found and nullable else found)

    def _others(self, schema: Mapping[str, object]) -> list[object]:
        """The schemas whose types are a schema's own if it names none."""
        others = [other for key in _ALTERNATIVES for other in _sequence(schema.get(key))]
        if isinstance(schema.get("$ref"), str):
            others.append(_resolved(self._root, str(schema["$ref"])))
        return others


def _own_types(schema: Mapping[str, object]) -> set[str]:
    return {each for each in _listed(schema.get("type")) if isinstance(each, str)}


def argument_pieces(tool: Tool | None, given: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The arguments of a call as JSON text, in pieces of a few KiB at most.

    Args:
        tool: None when the model called one that was not offered.
        given: names and texts, in the order in which the model wrote them.
    """
    before = "{"
    for name, text in given:
        types = frozenset[str]() if tool is None else tool.types.get(name, frozenset())
        piece = f"{before}{_quoted(name)}: {typed(text, types)}"
        for at in range(0, len(piece), _PIECE_CHARS):
            yield piece[at : at + _PIECE_CHARS]
        before = ", "
    yield "}" if given else "{}"


def typed(text: str, types: frozenset[str]) -> str:
    """A parameter's text as JSON text: of the first type that it can be read as, else a string.

    What is JSON already stays as it was written, so numbers keep their digits and objects the
    order of their keys.
    """
    for kind, read in _READERS:
        if kind in types:
            found = read(text.strip())
            if found is not None:
                return found
    return _quoted(text)


def _as_null(text: str) -> str | None:
    return "null" if text in ("null", "None") else None


def _as_boolean(text: str) -> str | None:
    return text.lower() if text.lower() in ("true", "false") else None


def _as_integer(text: str) -> str | None:
    if _INTEGER.fullmatch(text):
        return text
    number = _json(text)
    if isinstance(number, float) and number.is_integer() and abs(number) < 2**53:
        return str(int(number))
    return None


def _as_number(text: str) -> str | None:
    number = _json(text)
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return text if is_number else None


def _as_array(text: str) -> str | None:
    return text if text.startswith("[") and isinstance(_json(text), list) else None


def _as_object(text: str) -> str | None:
    return text if text.startswith("{") and isinstance(_json(text), dict) else None


_READERS: tuple[tuple[str, Callable[[str], str | None]], ...] = (
    ("null", _as_null),
    ("boolean", _as_boolean),
    ("integer", _as_integer),
    ("number", _as_number),
    ("array", _as_array),
    ("object", _as_object),
)


def _json(text: str) -> object:
    """The value of a JSON text; a string, which no reader wants, when it is none.

    Numbers beyond the range of a double count as none.
    """
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.MsgspecError, RecursionError):
        return ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _type_of(value: object) -> str:
    return next((name for name, kind in _JSON_TYPES if isinstance(value, kind)), "string")


def _resolved(root: Mapping[str, object], reference: str) -> object:
    """What a reference such as `#/$defs/Colour` points to; None outside of the schema."""
    if not reference.startswith("#/") or reference.count("/") > _MAX_STEPS:
        return None
    place: object = root
    for part in reference[2:].split("/"):
        place = _mapping(place).get(part.replace("~1", "/").replace("~0", "~"))
    return place


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _sequence(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _listed(value: object) -> Sequence[object]:
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)
