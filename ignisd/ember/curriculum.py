"""Made-up conversations, drawn from a seed: facts told and asked for, small talk, copying."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ignisd.ember import facts, smalltalk, words
from ignisd.ember.facts import Fact

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Level:
    """How hard the conversations of a training stage are.

    Args:
        max_facts: most facts told in one conversation.
        filler_turns: most turns of other talk between two turns about facts.
        max_questions: most questions asked for facts told.
        unknown_rate: share of questions for a fact that was never told.
        update_rate: share of facts that are told again with another value.
    """

    max_facts: int = 4
    filler_turns: int = 1
    max_questions: int = 5
    unknown_rate: float = 0.0
    update_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in the form the template takes, and whether old turns keep their think block."""

    messages: tuple[Message, ...]
    preserve_thinking: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """A conversation that ends with a question for a fact told in it.

    Args:
        messages: the last one is the question.
        told_at: index of the message that tells the fact.
        answer: the expected reply.
        form: the kind of fact.
    """

    messages: tuple[Message, ...]
    told_at: int
    answer: str
    form: str


def user(text: str) -> Message:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """An assistant message."""
    return {"role": "assistant", "content": text}


def _decapitalised(text: str) -> str:
    """The text as it goes on in the middle of a sentence: names and `I` keep their capital."""
    first = text.split(" ", 1)[0].rstrip(",.?!").split("'")[0]
    return text[0].lower() + text[1:] if first in _LOWERABLE else text


def _joined(rng: random.Random, parts: list[str]) -> str:
    """Sentences after each other, or two of them joined by `and`."""
    if len(parts) > 1 and rng.random() < 0.25:
        parts = [f"{parts[0].rstrip('.')} and {_decapitalised(parts[1])}", *parts[2:]]
    return " ".join(parts)


def _typed(rng: random.Random, text: str) -> str:
    """The text as hasty people type it: now and then without the last sign or the first capital."""
    if rng.random() < 0.1:
        text = text.rstrip(".?!")
    return _decapitalised(text) if rng.random() < 0.1 else text


def _opened(rng: random.Random, openers: tuple[str, ...], text: str) -> str:
    if rng.random() < 0.75 or not text[0].isupper():
        return _typed(rng, text)
    return rng.choice(openers) + _decapitalised(text)


_LOWERABLE = frozenset(
    "My The What Who Where When Which How Do Can At On Remember Our You People To In".split()
)


def sentence(rng: random.Random) -> str:
    """A narrative sentence without a fact that is asked for."""
    who = rng.choice(
        (
            f"my {rng.choice(('friend', 'neighbour', 'grandfather', 'cousin', 'colleague'))}",
            f"the {rng.choice(words.ADJECTIVES)} {rng.choice(words.JOBS)}",
            f"a {rng.choice(words.ADJECTIVES)} {rng.choice(words.ANIMALS)}",
            "we",
            "they",
        )
    )
    what = (
        f"{rng.choice(words.VERBS)} the {rng.choice(words.ADJECTIVES)} {rng.choice(words.OBJECTS)}"
    )
    where = rng.choice(("near", "in", "behind", "beside", "under"))
    text = f"{who} {what} {where} the {rng.choice(words.OBJECTS)}"
    if rng.random() < 0.4:
        text = f"{rng.choice(('yesterday', 'last week', 'this morning', 'in the evening'))} {text}"
    if rng.random() < 0.3:
        text += f" because the {rng.choice(words.OBJECTS)} was {rng.choice(words.ADJECTIVES)}"
    return text[0].upper() + text[1:] + "."


def copy_turn(rng: random.Random) -> list[Message]:
    """The user gives words, a name or digits and gets exactly these back."""
    draw = rng.random()
    if draw < 0.5:
        text = " ".join(facts.any_word(rng) for _ in range(rng.randrange(1, 8)))
    elif draw < 0.7:
        text = " ".join(words.invented_name(rng) for _ in range(rng.randrange(1, 5)))
    elif draw < 0.85:
        text = " ".join(facts.code(rng) for _ in range(rng.randrange(1, 4)))
    else:
        text = sentence(rng)
    ask = rng.choice(("Repeat: ", "Say: ", "Repeat after me: ", "Copy this: ", "Please repeat: "))
    return [user(ask + text), assistant(text)]


def filler_turn(rng: random.Random) -> list[Message]:
    """One exchange that tells no fact."""
    draw = rng.random()
    if draw < 0.5:
        asks, reply = rng.choice(smalltalk.EXCHANGES)
        return [user(_typed(rng, rng.choice(asks))), assistant(reply)]
    if draw < 0.8:
        text = " ".join(sentence(rng) for _ in range(rng.choice((1, 1, 2, 3))))
        return [user(text), assistant(rng.choice(smalltalk.LISTENING))]
    return copy_turn(rng)


def _acknowledge(rng: random.Random, told: list[Fact]) -> str:
    if told[0].form.name == "name" and rng.random() < 0.7:
        return f"Nice to meet you, {told[0].value}!"
    return rng.choice(smalltalk.ACKNOWLEDGEMENTS)


def _draw_facts(rng: random.Random, count: int, held_out: bool) -> list[Fact]:
    """Facts about different things; often several of one form, so that they distract."""
    drawn: dict[tuple[str, str], Fact] = {}
    while len(drawn) < count:
        fact = facts.draw_fact(rng, held_out)
        drawn.setdefault(fact.key, fact)
        if rng.random() < 0.3 and len(fact.form.subjects) > 2:
            other = replace(fact, subject=rng.choice(fact.form.subjects[1:]))
            value = fact.form.value(rng)
            if facts.is_held_out(value) == held_out and len(drawn) < count:
                drawn.setdefault(other.key, replace(other, value=value))
    return list(drawn.values())


class _Talk:
    """A conversation being put together."""

    def __init__(self, rng: random.Random, level: Level) -> None:
        self.rng = rng
        self.level = level
        self.messages: list[Message] = []
        self.known: dict[tuple[str, str], Fact] = {}
        self.last_key: tuple[str, str] | None = None

    def begin(self, told: list[Fact]) -> None:
        """Maybe a system message, which may tell facts itself."""
        if self.rng.random() < 0.3:
            text = self.rng.choice(smalltalk.SYSTEM_PROMPTS)
            for fact in told:
                text += " " + fact.statement(self.rng)
                self.known[fact.key] = fact
            self.messages.append({"role": "system", "content": text})
        elif told:
            self.tell(told)

    def tell(self, told: list[Fact]) -> None:
        """The user tells facts in one message."""
        rng = self.rng
        parts = [fact.statement(rng) for fact in told]
        for fact in told:
            self.known[fact.key] = fact
        if rng.random() < 0.15:
            parts.insert(rng.randrange(len(parts) + 1), sentence(rng))
        text = _opened(rng, smalltalk.STATEMENT_OPENERS, _joined(rng, parts))
        if rng.random() < 0.2:
            fact = rng.choice(told)
            self.messages += [user(f"{text} {fact.question(rng)}"), assistant(fact.answer)]
        else:
            self.messages += [user(text), assistant(_acknowledge(rng, told))]

    def ask(self, fact: Fact) -> None:
        """The user asks for a fact; now and then for one that was never told."""
        rng = self.rng
        if rng.random() < self.level.unknown_rate:
            other = facts.draw_fact(rng, held_out=False)
            same = {(key[0] in _CLASHING, key[1]) for key in self.known}
            if (
                other.key not in self.known
                and (other.form.name in _CLASHING, other.subject) not in same
            ):
                self.messages += [user(other.question(rng)), assistant(smalltalk.UNKNOWN)]
                return
        self.last_key = fact.key
        question = _opened(rng, smalltalk.QUESTION_OPENERS, fact.question(rng))
        reply = assistant(fact.answer)
        if rng.random() < 0.05:
            reply["reasoning_content"] = f"I was told: {fact.answer}"
        self.messages += [user(question), reply]

    def fill(self, most: int) -> None:
        """Up to `most` turns of other talk."""
        for _ in range(self.rng.randrange(most + 1)):
            self.messages += filler_turn(self.rng)


_CLASHING = frozenset(
    ("person", "pet", "named thing", "colour", "place", "travel", "age", "number", "code")
)


def conversation(rng: random.Random, level: Level) -> Conversation:
    """One training conversation: facts told, other talk, questions in random order."""
    if rng.random() < 0.08:
        messages: list[Message] = []
        for _ in range(rng.randrange(1, 4)):
            messages += filler_turn(rng)
        return Conversation(tuple(messages), rng.random() < 0.5)
    talk = _Talk(rng, level)
    pending = _draw_facts(rng, rng.randrange(1, level.max_facts + 1), held_out=False)
    questions = rng.randrange(1, level.max_questions + 1)
    first = rng.randrange(len(pending) + 1) if rng.random() < 0.5 else 1
    talk.begin(pending[:first])
    pending = pending[first:]
    while pending or questions:
        talk.fill(level.filler_turns)
        if pending and (not talk.known or not questions or rng.random() < 0.5):
            count = rng.randrange(1, min(3, len(pending)) + 1)
            talk.tell(pending[:count])
            pending = pending[count:]
        elif talk.known and questions:
            questions -= 1
            talk.ask(_next_asked(rng, talk))
            if rng.random() < level.update_rate:
                old = rng.choice(list(talk.known.values()))
                pending.append(_other_value(rng, old))
        else:
            break
    return Conversation(tuple(talk.messages), rng.random() < 0.5)


def _next_asked(rng: random.Random, talk: _Talk) -> Fact:
    """Any known fact but the one asked last: its answer would only be a copy of the line above."""
    others = [fact for key, fact in talk.known.items() if key != talk.last_key]
    return rng.choice(others or list(talk.known.values()))


def _other_value(rng: random.Random, fact: Fact) -> Fact:
    while True:
        value = fact.form.value(rng)
        if value != fact.value and not facts.is_held_out(value):
            return replace(fact, value=value)


def probe(rng: random.Random, held_out: bool, long_enough: Callable[[Probe], bool]) -> Probe:
    """Three facts told, other talk until the probe is `long_enough`, and a question for one."""
    told = _draw_facts(rng, 3, held_out)
    asked_at = rng.randrange(len(told))
    asked = told[asked_at]
    question = user(asked.question(rng))
    messages: list[Message] = []
    for fact in told:
        messages += [user(fact.statement(rng)), assistant(rng.choice(smalltalk.ACKNOWLEDGEMENTS))]
    while True:
        drawn = Probe((*messages, question), 2 * asked_at, asked.answer, asked.form.name)
        if long_enough(drawn):
            return drawn
        messages += filler_turn(rng)
