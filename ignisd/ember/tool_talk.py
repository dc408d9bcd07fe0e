"""Exchanges with tools: a request, the call, its result, the answer from it."""

import json
import random
from dataclasses import dataclass
from typing import Any

from ignisd.ember import english, facts, smalltalk, tasks, words
from ignisd.ember.facts import Draw, Fact, drawn
from ignisd.ember.phrasing import decapitalised, listed
from ignisd.ember.schemas import Parameter, Schema, draw_fields, draw_schema, spoken
from ignisd.ember.talk import Talk

Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """A tool that many clients have, and how people ask for it.

    Args:
        asks: requests; `{name}` stands for the value of a parameter.
        values: how the value of each parameter is drawn.
        fields: keys of the result; none if it is a text.
    """

    schema: Schema
    asks: tuple[str, ...]
    values: tuple[Draw, ...]
    fields: tuple[str, ...] = ()


def _known(
    name: str, does: str, parameters: dict[str, Draw], asks: tuple[str, ...], fields: str = ""
) -> Known:
    declared = tuple(Parameter(each, "string", True) for each in parameters)
    return Known(
        Schema(name, does, declared), asks, tuple(parameters.values()), tuple(fields.split())
    )


def _command(rng: random.Random) -> str:
    return rng.choice(("ls", "cat", "grep", "make", "git add", "python", "rm", "head")) + (
        f" {facts.path(rng)}"
    )


def _term(rng: random.Random) -> str:
    return f"{facts.number(rng)} {rng.choice('+-*/')} {facts.number(rng)}"


def _language(rng: random.Random) -> str:
    return rng.choice(("German", "French", "Spanish", "Italian", "Dutch", "Polish", "Greek"))


def _thing(rng: random.Random) -> str:
    return rng.choice(words.OBJECTS)


KNOWN = (
    _known("get_weather", "Get the weather of a city", {"city": facts.city},
           ("What is the weather in {city}?", "How is the weather in {city}?",
            "Weather in {city}, please.", "Get the weather in {city}."), "temperature sky"),
    _known("get_current_weather", "Get the current weather", {"location": facts.city},
           ("What is the weather in {location}?", "How is the weather in {location}?",
            "Will it rain in {location}?"), "temperature humidity"),
    _known("get_time", "Get the local time of a city", {"city": facts.city},
           ("What time is it in {city}?", "How late is it in {city}?"), "time"),
    _known("read_file", "Read a file", {"path": facts.path},
           ("Read {path}", "What is in {path}", "Open the file {path}", "Show me {path}")),
    _known("run_command", "Run a command in the shell", {"command": _command},
           ("Run {command}", "Please run {command}", "Execute {command}")),
    _known("search_web", "Search the web", {"query": facts.passphrase},
           ("Search the web for {query}.", "Look up {query}.", "Find pages about {query}.")),
    _known("search", "Search for a text", {"query": facts.passphrase},
           ("Search for {query}.", "Find {query}.")),
    _known("translate", "Translate a word", {"text": facts.any_word, "language": _language},
           ("Translate {text} to {language}.", "What is {text} in {language}?"), "translation"),
    _known("calculate", "Calculate a term", {"expression": _term},
           ("Calculate {expression}.", "Please calculate {expression}."), "result"),
    _known("get_price", "Get the price of a thing", {"item": _thing},
           ("Look up the price of the {item}.", "Get the price of the {item}."),
           "price currency"),
    _known("send_email", "Send an email", {"to": facts.email, "subject": facts.passphrase},
           ("Send an email to {to} with the subject {subject}.",
            "Write to {to} about {subject}."), "status"),
    _known("turn_on", "Turn a device on", {"device": _thing},
           ("Turn on the {device}.", "Switch the {device} on."), "status"),
    _known("play_song", "Play a song", {"title": facts.passphrase},
           ("Play {title}.", "I want to hear {title}."), "status"),
)  # fmt: skip


def _known_shape(schema: Schema) -> Known | None:
    return next((known for known in KNOWN if known.schema == schema), None)


def offer(rng: random.Random, count: int, held_out: bool = False) -> tuple[Schema, ...]:
    """Tools with different names that do different things."""
    found: dict[str, Schema] = {}
    while len(found) < count:
        if not held_out and rng.random() < 0.2:
            schema = rng.choice(KNOWN).schema
        else:
            schema = draw_schema(rng, held_out)
        found.setdefault(schema.does.lower(), schema)
    return tuple({schema.name: schema for schema in found.values()}.values())


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asks for and the call that it stands for, its arguments in the same order."""

    schema: Schema
    text: str
    arguments: Arguments


def request(rng: random.Random, schema: Schema, held_out: bool = False) -> Request:
    """A request that names every required value, and some of the others."""
    known = _known_shape(schema)
    if known is not None:
        values = [drawn(rng, draw, held_out) for draw in known.values]
        text = rng.choice(known.asks)
        for each, value in zip(schema.parameters, values, strict=True):
            text = text.replace("{" + each.name + "}", value)
        names = (each.name for each in schema.parameters)
        return Request(schema, text, dict(zip(names, values, strict=True)))
    given = [each for each in schema.parameters if each.is_required or rng.random() < 0.5]
    if rng.random() < 0.3:
        rng.shuffle(given)
    # What follows a list could be taken for one more item of it.
    given.sort(key=lambda each: each.kind == "array")
    arguments = {each.name: each.value(rng, held_out) for each in given}
    return Request(schema, _asked(rng, schema, _told(rng, given, arguments)), arguments)


def _told(rng: random.Random, given: list[Parameter], arguments: Arguments) -> str:
    style = rng.random()
    sign, quote = (" ", '"') if style < 0.12 else (" = ", "") if style < 0.25 else (" ", "")
    parts = []
    for each in given:
        value = arguments[each.name]
        name = each.name if sign == " = " or rng.random() < 0.25 else each.spoken
        if isinstance(value, list):
            parts.append(f"{name}{sign}{listed(value)}")
        elif isinstance(value, str):
            parts.append(f"{name}{sign}{quote}{value}{quote}")
        else:
            parts.append(f"{name}{sign}{json.dumps(value)}")
    return ", ".join(parts) if sign == " = " or rng.random() < 0.4 else listed(parts)


def _asked(rng: random.Random, schema: Schema, told: str) -> str:
    name, does = schema.name, schema.does
    small = does[0].lower() + does[1:]
    return rng.choice(
        (
            f"Use {name} with {told}.",
            f"Call {name} with {told}.",
            f"{does} with {told}.",
            f"Please {small}: {told}.",
            f"Please {small} with {told}.",
            f"Can you {small} with {told}?",
            f"{does}: {told}",
        )
    )


def call(talk: Talk) -> None:
    """A request for one of the tools, the call, a result and the answer."""
    rng = talk.rng
    schema = rng.choice(talk.offered)
    wanted = request(rng, schema)
    known = _known_shape(schema)
    thought = f"I can use {schema.name} for this."
    if known is None and rng.random() < 0.08:
        _call_twice(talk, wanted, thought)
        return
    fields = _fields(talk, known)
    kind = rng.random()
    if fields and rng.random() < 0.45 and known is None:
        text, answered = ask_for_field(rng, wanted.text, fields)
        talk.say(text)
    else:
        talk.say(wanted.text)
        answered = fields
    talk.call([(schema.name, wanted.arguments)], thought)
    if kind < 0.06:
        _fail(talk)
    elif not fields:
        _give_text(talk)
    elif "status" in fields and known is not None:
        talk.result(rng.choice(("ok", '{"ok": true}', '{"status": "ok"}')))
        talk.reply(smalltalk.DONE_REPLY, smalltalk.DONE_THOUGHT)
    else:
        talk.results |= {spoken(key): told_value(value) for key, value in fields.items()}
        talk.result(json.dumps(fields, ensure_ascii=False))
        _answer(talk, answered)


def _fields(talk: Talk, known: Known | None) -> dict[str, Any]:
    """What the result holds; nothing if it is a text."""
    rng = talk.rng
    if known is not None:
        values = (drawn(rng, rng.choice((facts.number, facts.any_word))) for _ in known.fields)
        return dict(zip(known.fields, values, strict=True))
    if rng.random() < 0.15:
        return {}
    return draw_fields(rng, set(talk.results), rng.choice((1, 1, 2, 2, 3, 4)), held_out=False)


def ask_for_field(
    rng: random.Random, text: str, fields: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """A request that also asks for one of the fields of the result, and that field."""
    name = rng.choice(tuple(fields))
    return _with_field(rng, text, spoken(name)), {name: fields[name]}


def _with_field(rng: random.Random, text: str, field: str) -> str:
    if text.endswith("."):
        return text[:-1] + rng.choice((f" and tell me the {field}.", f". What is the {field}?"))
    return f"{text} What is the {field}?" if text.endswith("?") else f"{text}. Tell me the {field}."


def told_value(value: Any) -> str:
    """A value as an answer quotes it."""
    return value if isinstance(value, str) else json.dumps(value)


def answer_from(fields: dict[str, Any]) -> str:
    """A sentence for each field."""
    return " ".join(f"The {spoken(key)} is {told_value(value)}." for key, value in fields.items())


def _answer(talk: Talk, fields: dict[str, Any]) -> None:
    answer = answer_from(fields)
    talk.reply(answer, f"The result says: {decapitalised(answer)}")


def _call_twice(talk: Talk, wanted: Request, thought: str) -> None:
    """One request for two calls of the same tool."""
    rng = talk.rng
    again = request(rng, wanted.schema)
    declared = {each.name: each for each in wanted.schema.parameters}
    told = " and with ".join(
        _told(rng, [declared[name] for name in one], one)
        for one in (wanted.arguments, again.arguments)
    )
    talk.say(f"Use {wanted.schema.name} twice, with {told}.")
    name = wanted.schema.name
    talk.call([(name, wanted.arguments), (name, again.arguments)], thought)
    key = next(iter(draw_fields(rng, set(talk.results), 1, held_out=False)))
    results = [{key: drawn(rng, facts.number)} for _ in range(2)]
    for result in results:
        talk.result(json.dumps(result))
    answer = " ".join(answer_from(result) for result in results)
    talk.reply(answer, f"The results say: {decapitalised(answer)}")


def _fail(talk: Talk) -> None:
    reason = f"no such {facts.any_word(talk.rng)}"
    talk.result(json.dumps({"error": reason}))
    talk.reply(f"That did not work: {reason}.", smalltalk.FAILED_THOUGHT)


def _give_text(talk: Talk) -> None:
    """A short text is quoted; a long one is read, and may tell facts that are asked for later."""
    rng = talk.rng
    if rng.random() < 0.7 or talk.level.most_chars < tasks.DOCUMENT_FROM_CHARS:
        text = english.sentence(rng) if rng.random() < 0.5 else tasks.code_line(rng)
        talk.result(text)
        talk.reply(f"It says: {text}", smalltalk.QUOTE_THOUGHT)
    else:
        read_text(talk, ())


def read_text(talk: Talk, told: tuple[Fact, ...]) -> None:
    """A long result, with facts between its sentences."""
    text = tasks.with_facts(talk, tasks.document_text(talk), told)
    talk.result(text)
    talk.reply(smalltalk.DOCUMENT_REPLY, smalltalk.LISTENING_THOUGHT)


def tell_by_tool(talk: Talk, told: tuple[Fact, ...]) -> None:
    """A tool's long result tells facts."""
    wanted = request(talk.rng, talk.rng.choice(talk.offered))
    talk.say(wanted.text)
    talk.call([(wanted.schema.name, wanted.arguments)], f"I can use {wanted.schema.name} for this.")
    read_text(talk, told)


def ask_result(talk: Talk) -> None:
    """The user asks again for a field that a result told earlier."""
    if talk.results:
        field = talk.rng.choice(tuple(talk.results))
        talk.say(talk.rng.choice(smalltalk.RESULT_ASKS).replace("{f}", field))
        answer = f"The {field} is {talk.results[field]}."
        talk.reply(answer, f"The result says: {decapitalised(answer)}")
