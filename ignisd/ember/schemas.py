"""Invented tools: names, parameters of several types, values for them, results.

A tool whose name, or one of whose parameters' names, is held out is never offered in training.
"""

import random
import zlib
from dataclasses import dataclass, replace
from typing import Any

from ignisd.ember import facts, words
from ignisd.ember.facts import HELD_OUT_BUCKETS, drawn

VERBS = tuple(
    """
    get find send book create update delete list search open close set add remove start stop check
    order rent measure count read write translate convert play schedule cancel track print scan
    show load save move copy fetch lock unlock paint repair sell buy ship call invite assign
    publish archive rename share upload download lookup reserve plan register describe compare
    """.split()
)
NOUNS = tuple(
    """
    weather flight hotel room ticket parcel order invoice message email event meeting timer alarm
    song playlist film recipe price stock account user customer product review report file folder
    note task list contact address route train bus taxi city country lamp door robot garden pump
    sensor camera printer server database table record page image video phone call payment refund
    coupon delivery shift lesson course book library museum boat car bike house battery engine
    """.split()
)
_MODIFIERS = tuple(
    "start end first last max min new old total home work main next default target source".split()
)
_ENUMS = (
    ("low", "medium", "high"), ("metric", "imperial"), ("celsius", "fahrenheit"),
    ("small", "medium", "large"), ("north", "south", "east", "west"), ("open", "closed"),
    ("red", "green", "blue"), ("daily", "weekly", "monthly"), ("fast", "slow"),
    ("asc", "desc"), ("json", "csv", "text"), ("first", "second"), ("new", "used"),
)  # fmt: skip
_STATUS_FIELDS = ("error", "ok")
"""What results are told by, beside their fields."""
_NAME_CHECKSUM_START = 19
"""Chosen so that the tools that many clients have are not held out."""
_TYPES = ("string", "integer", "number", "boolean", "enum", "array")
_TYPE_WEIGHTS = (8.0, 4.0, 1.5, 1.2, 2.0, 1.0)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: its name, one of `_TYPES`, the values of an enumeration."""

    name: str
    kind: str
    is_required: bool
    allowed: tuple[str, ...] = ()

    @property
    def spoken(self) -> str:
        """The name as people say it."""
        return spoken(self.name)

    def schema(self, is_described: bool) -> dict[str, Any]:
        """The JSON schema of the parameter."""
        said = {"description": f"The {self.spoken}."} if is_described else {}
        if self.kind == "enum":
            return {"type": "string", **said, "enum": list(self.allowed)}
        if self.kind == "array":
            return {"type": "array", **said, "items": {"type": "string"}}
        return {"type": self.kind, **said}

    def value(self, rng: random.Random, held_out: bool) -> Any:
        """A value of the parameter's type."""
        if self.kind == "integer":
            return int(drawn(rng, _integer, held_out))
        if self.kind == "number":
            return float(drawn(rng, _decimal, held_out))
        if self.kind == "boolean":
            return rng.random() < 0.5
        if self.kind == "enum":
            return rng.choice(self.allowed)
        if self.kind == "array":
            return [drawn(rng, facts.any_word, held_out) for _ in range(rng.randrange(1, 5))]
        return drawn(rng, text_value, held_out)


@dataclass(frozen=True, slots=True)
class Schema:
    """A tool: what it is called and does, its parameters in order, whether it describes them."""

    name: str
    does: str
    parameters: tuple[Parameter, ...]
    is_described: bool = True

    def tool(self) -> dict[str, Any]:
        """The description as the API takes it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": f"{self.does}.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        each.name: each.schema(self.is_described) for each in self.parameters
                    },
                    "required": [each.name for each in self.parameters if each.is_required],
                },
            },
        }

    @property
    def is_held_out(self) -> bool:
        """Whether the name, or that of a parameter, is kept for evaluation."""
        return is_held_out_name(self.name) or any(
            is_held_out_name(each.name) for each in self.parameters
        )


def is_held_out_name(name: str) -> bool:
    """Whether the name of a tool, a parameter or a JSON key is kept for evaluation."""
    return zlib.crc32(name.encode(), _NAME_CHECKSUM_START) % HELD_OUT_BUCKETS == 0


def spoken(name: str) -> str:
    """A name in snake or camel case as words."""
    spaced = "".join(f" {sign.lower()}" if sign.isupper() else sign for sign in name)
    return spaced.replace("_", " ").strip()


def _integer(rng: random.Random) -> str:
    return str(rng.randrange(10 ** rng.choice((1, 1, 2, 2, 3, 4))))


def _decimal(rng: random.Random) -> str:
    return f"{rng.randrange(200)}.{rng.randrange(1, 10)}"


def text_value(rng: random.Random) -> str:
    """A value for a text: a name, a city, a word or some, a code, a date, a file."""
    kind = rng.random()
    if kind < 0.2:
        return facts.person_name(rng)
    if kind < 0.4:
        return facts.city(rng)
    if kind < 0.6:
        return facts.any_word(rng)
    if kind < 0.75:
        return f"{facts.any_word(rng)} {facts.any_word(rng)}"
    if kind < 0.85:
        return f"{facts.code(rng)}"
    return rng.choice((facts.date, facts.path, facts.email, facts.colour))(rng)


def _styled(rng: random.Random, parts: list[str]) -> str:
    if rng.random() < 0.75:
        return "_".join(parts)
    return parts[0] + "".join(part.capitalize() for part in parts[1:])


def _noun(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.15:
        return words.invented_word(rng)
    return rng.choice(NOUNS) if kind < 0.5 else facts.any_word(rng)


def draw_schema(rng: random.Random, held_out: bool) -> Schema:
    """A tool that is held out, by its name and one parameter's at least, or one that is not."""
    while True:
        verb, noun = rng.choice(VERBS), _noun(rng)
        name = _styled(rng, [verb, noun])
        if is_held_out_name(name) == held_out:
            break
    parameters: dict[str, Parameter] = {}
    count = rng.choice((1, 1, 2, 2, 2, 3, 3, 4, 5))
    while len(parameters) < count:
        need = held_out and not parameters
        field = field_name(rng)
        if field in parameters or (need != is_held_out_name(field) and (need or not held_out)):
            continue
        required = not parameters or rng.random() < 0.6
        parameters[field] = draw_parameter(rng, field, required)
    listed = list(parameters.values())
    rng.shuffle(listed)
    # A list is told at the end of a request, where nothing can be taken for one more item.
    listed.sort(key=lambda each: (not each.is_required, each.kind == "array"))
    return _with_one_array(
        Schema(name, f"{verb.capitalize()} the {noun}", tuple(listed), rng.random() < 0.5)
    )


def field_name(rng: random.Random) -> str:
    """The name of a parameter or of a field of a result.

    Many are of any words, so that names are copied and not chosen among those that are usual.
    """
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(words.FIELDS)
    if kind < 0.45:
        return facts.any_word(rng)
    if kind < 0.6:
        return words.invented_word(rng)
    first = rng.choice(_MODIFIERS) if kind < 0.7 else facts.any_word(rng)
    if kind > 0.85:
        return _styled(rng, [rng.choice(words.FIELDS), facts.any_word(rng)])
    return _styled(rng, [first, rng.choice(words.FIELDS)])


def draw_parameter(rng: random.Random, name: str, is_required: bool) -> Parameter:
    """A parameter of a random type."""
    kind = rng.choices(_TYPES, _TYPE_WEIGHTS)[0]
    allowed = rng.choice(_ENUMS) if kind == "enum" else ()
    return Parameter(name, kind, is_required, allowed)


def _with_one_array(schema: Schema) -> Schema:
    """The tool with its arrays after the first made plain texts."""
    kept: list[Parameter] = []
    seen = False
    for each in schema.parameters:
        again = each.kind == "array" and seen
        kept.append(replace(each, kind="string") if again else each)
        seen = seen or each.kind == "array"
    return replace(schema, parameters=tuple(kept))


def draw_fields(rng: random.Random, taken: set[str], count: int, held_out: bool) -> dict[str, Any]:
    """The fields of a result, by names not `taken`; what is asked for is not told elsewhere."""
    fields: dict[str, Any] = {}
    while len(fields) < count:
        name = field_name(rng)
        is_new = name not in fields and name not in _STATUS_FIELDS and spoken(name) not in taken
        if is_held_out_name(name) == held_out and is_new:
            kind = rng.choices(("string", "integer", "number", "boolean"), (6, 4, 1.5, 0.7))[0]
            fields[name] = Parameter(name, kind, True).value(rng, held_out)
    return fields
