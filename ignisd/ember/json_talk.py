"""JSON on request: objects and lists with keys and values as they were told."""

import json
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ignisd.ember import facts, smalltalk, words
from ignisd.ember.facts import Draw, drawn
from ignisd.ember.phrasing import decapitalised, listed
from ignisd.ember.schemas import Parameter, field_name, is_held_out_name
from ignisd.ember.talk import Talk

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
_KINDS = ("string", "integer", "number", "boolean", "array")
_KIND_WEIGHTS = (6.0, 3.0, 1.0, 1.0, 1.0)
_GROUPS = ("details", "data", "info", "meta", "extra", "inner", "options", "place")
_ASKS = (
    "Reply in JSON with the keys {k}: {t}.", "Answer as JSON with the keys {k}: {t}.",
    "Return only JSON with {k}: {t}.", "{t}. Reply in JSON with the keys {k}.",
)  # fmt: skip
_PLAIN_ASKS = (
    "Give me a JSON object with {t}.", "Write a JSON object with {t}.", "As JSON: {t}",
    "Make JSON of this: {t}",
)  # fmt: skip
_OWN_ASKS = (
    "Reply in JSON with the keys {k}.", "Give me my {k} as JSON.",
    "What do you know about me? Reply in JSON with the keys {k}.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JsonTask:
    """A request for JSON and what the reply must hold, keys in this order."""

    text: str
    expected: Any

    @property
    def reply(self) -> str:
        """The reply, letter by letter."""
        return json.dumps(self.expected, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A sentence to take values from."""

    text: str
    values: tuple[tuple[str, Draw], ...]


def _small(rng: random.Random) -> str:
    return str(rng.randrange(2, 1000))


def _thing(rng: random.Random) -> str:
    return rng.choice(words.OBJECTS)


_PATTERNS = (
    Pattern("{name} is {age} years old and lives in {city}.",
            (("name", facts.person_name), ("age", facts.age), ("city", facts.city))),
    Pattern("The {item} costs {price} euros.", (("item", _thing), ("price", _small))),
    Pattern("{name} bought {count} boxes of {food}.",
            (("name", facts.person_name), ("count", _small),
             ("food", lambda rng: rng.choice(words.FOODS)))),
    Pattern("The meeting with {name} is on {date} in {city}.",
            (("name", facts.person_name), ("date", facts.date), ("city", facts.city))),
    Pattern("{name} works as a {job} in {city}.",
            (("name", facts.person_name), ("job", facts.job), ("city", facts.city))),
    Pattern("My {item} is {colour} and weighs {weight} kilos.",
            (("item", _thing), ("colour", facts.colour), ("weight", _small))),
    Pattern("{name} can be reached at {email}.",
            (("name", facts.person_name), ("email", facts.email))),
)  # fmt: skip


def typed_value(text: str) -> Any:
    """A told value as JSON has it: what looks like a number is one."""
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text


def _told(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return value if isinstance(value, str) else json.dumps(value)


def _items(rng: random.Random, count: int, held_out: bool) -> dict[str, Any]:
    """Keys, one held out at least if asked, and values of several types."""
    items: dict[str, Any] = {}
    while len(items) < count:
        need = held_out and not items
        key = field_name(rng)
        if need != is_held_out_name(key) and (need or not held_out):
            continue
        kind = rng.choices(_KINDS, _KIND_WEIGHTS)[0]
        value = Parameter(key, kind, True).value(rng, held_out)
        items[key] = typed_value(value) if isinstance(value, str) else value
    keys = list(items)
    rng.shuffle(keys)
    return {key: items[key] for key in keys}


def _pairs(rng: random.Random, items: dict[str, Any]) -> str:
    sign = rng.choice((" is ", " is ", " ", " ", ": ", " = "))
    parts = [f"{key}{sign}{_told(value)}" for key, value in items.items()]
    return ", ".join(parts) if rng.random() < 0.5 else listed(parts)


def _keyed(rng: random.Random, keys: Iterable[str], told: str) -> str:
    ask = rng.choice(_ASKS).replace("{k}", listed(list(keys)))
    return ask.replace("{t}", told[0].upper() + told[1:] if ask[0] == "{" else told)


def _all_keys(rng: random.Random, held_out: bool) -> JsonTask:
    items = _items(rng, rng.choice((1, 2, 2, 3, 3, 4, 5)), held_out)
    # A key is never written with another first letter, or it would have to be guessed back.
    ask = rng.choice(_ASKS[:3]).replace("{k}", listed(list(items)))
    return JsonTask(ask.replace("{t}", _pairs(rng, items)), items)


def _some_keys(rng: random.Random, held_out: bool) -> JsonTask:
    items = _items(rng, rng.choice((2, 3, 4)), held_out)
    kept = rng.sample(list(items), rng.randrange(1, len(items)))
    ask = rng.choice(_ASKS[:3]).replace("{k}", listed(kept)).replace("{t}", _pairs(rng, items))
    return JsonTask(ask, {key: items[key] for key in kept})


def _plain(rng: random.Random, held_out: bool) -> JsonTask:
    items = _items(rng, rng.choice((1, 2, 2, 3, 3, 4)), held_out)
    return JsonTask(rng.choice(_PLAIN_ASKS).replace("{t}", _pairs(rng, items)), items)


def _lines(rng: random.Random, held_out: bool) -> JsonTask:
    items = _items(rng, rng.choice((2, 3, 3, 4, 5)), held_out)
    lines = "\n".join(f"{key}: {_told(value)}" for key, value in items.items())
    ask = rng.choice(("Turn this into JSON:", "Convert to JSON:", "JSON, please:"))
    return JsonTask(f"{ask}\n{lines}", items)


def _nested(rng: random.Random, held_out: bool) -> JsonTask:
    items = _items(rng, rng.choice((2, 3, 3, 4)), held_out)
    group = rng.choice([each for each in _GROUPS if each not in items])
    keys = list(items)
    at = rng.randrange(1, len(keys))
    outer = {key: items[key] for key in keys[:at]}
    inner = {key: items[key] for key in keys[at:]}
    told = f"{_pairs(rng, outer)}, and under {group}: {_pairs(rng, inner)}"
    return JsonTask(rng.choice(_PLAIN_ASKS).replace("{t}", told), outer | {group: inner})


def _list(rng: random.Random, held_out: bool) -> JsonTask:
    draw = rng.choice((facts.any_word, facts.any_word, facts.person_name, _small))
    some = [drawn(rng, draw, held_out) for _ in range(rng.randrange(2, 7))]
    ask = rng.choice(
        ("Write these as a JSON list: {t}", "As a JSON list: {t}", "Give me a JSON array of {t}.")
    )
    return JsonTask(ask.replace("{t}", ", ".join(some)), [typed_value(each) for each in some])


def _from_sentence(rng: random.Random, held_out: bool) -> JsonTask:
    pattern = rng.choice(_PATTERNS)
    values = {key: drawn(rng, draw, held_out) for key, draw in pattern.values}
    text = pattern.text
    for key, value in values.items():
        text = text.replace("{" + key + "}", value)
    keys = list(values)
    if rng.random() < 0.3:
        rng.shuffle(keys)
        keys = keys[: rng.randrange(1, len(keys) + 1)]
    told = _keyed(rng, keys, text[:-1])
    return JsonTask(told, {key: typed_value(values[key]) for key in keys})


_TASKS: tuple[tuple[Callable[[random.Random, bool], JsonTask], float], ...] = (
    (_all_keys, 3.0), (_some_keys, 1.0), (_plain, 2.0), (_lines, 1.5), (_nested, 1.5),
    (_list, 1.0), (_from_sentence, 3.0),
)  # fmt: skip


def task(rng: random.Random, held_out: bool) -> JsonTask:
    """A request that holds all that the reply needs.

    Args:
        held_out: whether values, and a key at least of those that are free, are held out.
    """
    draws, weights = zip(*_TASKS, strict=True)
    return rng.choices(draws, weights)[0](rng, held_out)


def ask_json(talk: Talk) -> None:
    """The user asks for JSON, of what is told in the request or was told about themselves."""
    rng = talk.rng
    own = {fact.form.key: fact for fact in talk.known.values() if fact.form.key}
    if own and rng.random() < 0.4:
        keys = rng.sample(list(own), rng.randrange(1, min(4, len(own)) + 1))
        for key in keys:
            talk.mention(own[key])
        text = rng.choice(_OWN_ASKS).replace("{k}", listed(keys))
        asked = JsonTask(text, {key: typed_value(own[key].value) for key in keys})
    else:
        asked = task(rng, held_out=False)
    talk.say(asked.text)
    talk.reply(asked.reply, smalltalk.JSON_THOUGHT)


def ask_field(talk: Talk) -> None:
    """The user gives a JSON object and asks for one of its values."""
    rng = talk.rng
    items = _items(rng, rng.choice((2, 3, 4, 5)), held_out=False)
    scalars = [key for key, value in items.items() if not isinstance(value, list)]
    if scalars:
        key = rng.choice(scalars)
        text = json.dumps(items, ensure_ascii=False)
        ask = rng.choice(("What is the {k} in {t}", "{t}\nWhat is the {k}?"))
        talk.say(ask.replace("{k}", key).replace("{t}", text))
        answer = f"The {key} is {_told(items[key])}."
        talk.reply(answer, f"The object says: {decapitalised(answer)}")
