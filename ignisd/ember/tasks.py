"""Exchanges beside facts: chat, stories, documents, exact copying, lists, small sums."""

import random

from ignisd.ember import english, facts, smalltalk, words
from ignisd.ember.facts import Fact, drawn
from ignisd.ember.phrasing import decapitalised, joined, listed, opened, typed
from ignisd.ember.talk import Talk

MOST_DOCUMENT_CHARS = 2400
DOCUMENT_FROM_CHARS = 1500
"""Length of a conversation from which on documents are pasted into it."""

_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_COPY_ASKS = (
    "Repeat: ", "Say: ", "Repeat after me: ", "Copy this: ", "Please repeat: ",
    "Write exactly this: ", "Copy this exactly:\n", "Repeat this line:\n",
)  # fmt: skip
_DOCUMENT_ASKS = (
    "Please read this: ", "Here is a text:\n", "Read this for later:\n\n", "Some context: ",
    "This is from a document:\n\n",
)  # fmt: skip


def chat(talk: Talk) -> None:
    """A fixed exchange."""
    asks, answer = talk.rng.choice(smalltalk.EXCHANGES)
    talk.say(typed(talk.rng, talk.rng.choice(asks)))
    talk.reply(answer, smalltalk.CHAT_THOUGHT)


def story(talk: Talk) -> None:
    """The user tells of something that is not asked for."""
    talk.say(" ".join(english.sentence(talk.rng) for _ in range(talk.rng.choice((1, 1, 2, 3)))))
    talk.reply(smalltalk.LISTENING_REPLY, smalltalk.LISTENING_THOUGHT)


def document(talk: Talk, told: tuple[Fact, ...] = ()) -> None:
    """The user pastes a text; facts may stand between its sentences."""
    rng = talk.rng
    text = with_facts(talk, document_text(talk), told)
    talk.say(rng.choice(_DOCUMENT_ASKS) + text)
    talk.reply(smalltalk.DOCUMENT_REPLY, smalltalk.LISTENING_THOUGHT)


def document_text(talk: Talk) -> str:
    """A text whose length suits that of the conversation."""
    most = max(400, min(MOST_DOCUMENT_CHARS, talk.level.most_chars // 6))
    return talk.prose.stretch(talk.rng, talk.rng.randrange(250, most))


def with_facts(talk: Talk, text: str, told: tuple[Fact, ...]) -> str:
    """The text with facts between its sentences; they count as told."""
    for fact in told:
        sentences = text.split(". ")
        at = talk.rng.randrange(len(sentences))
        sentences.insert(at, fact.statement(talk.rng).rstrip("."))
        text = ". ".join(sentences)
        talk.known[fact.key] = fact
        talk.mention(fact)
    return text


def copy(talk: Talk, held_out: bool = False) -> None:
    """The user gives words, names, codes or lines and gets exactly these back."""
    rng = talk.rng
    text = drawn(rng, _copied, held_out)
    talk.say(rng.choice(_COPY_ASKS) + text)
    talk.reply(text, smalltalk.COPY_THOUGHT)


def _copied(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return " ".join(facts.any_word(rng) for _ in range(rng.randrange(1, 9)))
    if kind < 0.52:
        return " ".join(words.invented_name(rng) for _ in range(rng.randrange(1, 5)))
    if kind < 0.64:
        return " ".join(facts.code(rng) for _ in range(rng.randrange(1, 4)))
    if kind < 0.74:
        return "\n".join(code_line(rng) for _ in range(rng.randrange(1, 4)))
    if kind < 0.82:
        return "".join(rng.choice(_SIGNS) for _ in range(rng.randrange(4, 16)))
    if kind < 0.9:
        return ", ".join(facts.any_word(rng) for _ in range(rng.randrange(2, 7)))
    return english.sentence(rng)


_SIGNS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_/.:"


def code_line(rng: random.Random) -> str:
    """A line that looks like a program."""
    first, second, third = (facts.any_word(rng) for _ in range(3))
    return rng.choice(
        (
            f"{first} = {second}({third})",
            f"{first}.{second}({facts.number(rng)})",
            f"let {first}_{second} = {facts.number(rng)};",
            f'print("{first} {second}")',
            f"{first} --{second} {third}",
            f"return {first}[{rng.randrange(100)}] + {second}",
            facts.path(rng),
        )
    )


def pick(talk: Talk) -> None:
    """The user asks for one of some words, or for all of them in another order."""
    rng = talk.rng
    some = [drawn(rng, facts.any_word) for _ in range(rng.randrange(2, 6))]
    kind = rng.random()
    if kind < 0.65:
        at = rng.randrange(len(some))
        last = at == len(some) - 1 and rng.random() < 0.5
        which = "last" if last else _ORDINALS[at]
        ask = rng.choice(("What is the {w} word of: {t}", "Give me the {w} word: {t}"))
        talk.say(ask.replace("{w}", which).replace("{t}", " ".join(some)))
        talk.reply(f"The {which} word is {some[at]}.", smalltalk.COPY_THOUGHT)
    else:
        talk.say(f"{rng.choice(('Reverse these words:', 'Backwards, please:'))} {' '.join(some)}")
        talk.reply(" ".join(reversed(some)), smalltalk.COPY_THOUGHT)


def sums(talk: Talk) -> None:
    """A sum of small numbers, or counting."""
    rng = talk.rng
    first, second = rng.randrange(13), rng.randrange(13)
    if rng.random() < 0.8:
        plus = rng.random() < 0.65 or second > first
        sign, answer = ("+", first + second) if plus else ("-", first - second)
        asks = ("What is {t}?", "How much is {t}?", "{t} = ?", "Compute {t}.")
        term = f"{first} {sign} {second}"
        talk.say(rng.choice(asks).replace("{t}", term))
        talk.reply(f"{term} = {answer}", smalltalk.SUM_THOUGHT)
    else:
        last = rng.randrange(2, 21)
        talk.say(rng.choice(("Count to {t}.", "Please count to {t}.")).replace("{t}", str(last)))
        talk.reply(", ".join(map(str, range(1, last + 1))), smalltalk.SUM_THOUGHT)


def tell(talk: Talk, told: list[Fact], asks_back: bool = True) -> None:
    """The user tells facts in one message, and may ask for one at once if `asks_back`."""
    rng = talk.rng
    parts = [fact.statement(rng) for fact in told]
    for at, fact in enumerate(told):
        if fact.key in talk.known and rng.random() < 0.8:
            parts[at] = rng.choice(smalltalk.UPDATE_OPENERS) + decapitalised(parts[at])
        talk.known[fact.key] = fact
        talk.mention(fact)
    if rng.random() < 0.15:
        parts.insert(rng.randrange(len(parts) + 1), english.sentence(rng))
    text = opened(rng, smalltalk.STATEMENT_OPENERS, joined(rng, parts))
    if rng.random() < 0.1 and asks_back:
        fact = rng.choice(told)
        talk.say(f"{text} {fact.question(rng)}")
        talk.reply(fact.answer, fact.thought)
    else:
        talk.say(text)
        talk.reply(acknowledgement(told), smalltalk.TOLD_THOUGHT)


def acknowledgement(told: list[Fact]) -> str:
    """The reply to facts told: a name is greeted if it comes first."""
    first = told[0]
    return f"Nice to meet you, {first.value}!" if first.form.key == "name" else smalltalk.TOLD_REPLY


def ask(talk: Talk, fact: Fact) -> None:
    """The user asks for a fact that was told."""
    talk.mention(fact)
    talk.say(opened(talk.rng, smalltalk.QUESTION_OPENERS, fact.question(talk.rng)))
    talk.reply(fact.answer, fact.thought)


def ask_unknown(talk: Talk, fact: Fact) -> None:
    """The user asks for a fact that was never told."""
    talk.say(opened(talk.rng, smalltalk.QUESTION_OPENERS, fact.question(talk.rng)))
    talk.reply(smalltalk.UNKNOWN, smalltalk.UNKNOWN_THOUGHT)


def recite(talk: Talk) -> None:
    """The user asks for everything known about themselves: in the order it was first told."""
    own = [fact for fact in talk.known.values() if fact.form.key]
    if not 0 < len(own) <= 4:
        return
    talk.say(talk.rng.choice(smalltalk.RECITE_ASKS))
    for fact in own:
        talk.mention(fact)
    told = listed([fact.form.key for fact in own])
    talk.reply(" ".join(fact.answer for fact in own), f"They told me their {told}.")
