"""Facts a user may tell: what one is, and how its values are drawn."""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from ignisd.ember import words

HELD_OUT_BUCKETS = 8
"""One value in this many is never told in training."""

Draw = Callable[[random.Random], str]
"""Draws a text from a random source."""


@dataclass(frozen=True, slots=True)
class Form:
    """Phrasings of one kind of fact; `{v}` stands for the value and `{s}` for the subject.

    Args:
        subject: draws what such a fact is about.
        key: the key of the value in JSON about the user; empty if there is none.
    """

    name: str
    subject: Draw
    value: Draw
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    answer: str
    weight: float = 1.0
    key: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact with its subject and value filled in."""

    form: Form
    subject: str
    value: str

    @property
    def key(self) -> tuple[str, str]:
        """What the fact is about: two facts with one key contradict each other."""
        return (self.form.name, self.subject)

    @property
    def answer(self) -> str:
        """The reply that repeats the value."""
        return self.filled(self.form.answer)

    @property
    def thought(self) -> str:
        """What a model that thinks says to itself before it answers."""
        answer = self.form.answer
        for ours, theirs in _SEEN_FROM_ASIDE:
            if answer.startswith(ours):
                answer = theirs + answer[len(ours) :]
                break
        return f"I was told that {answer.replace('{s}', self.subject).replace('{v}', self.value)}"

    def statement(self, rng: random.Random) -> str:
        """One way in which a user tells the fact."""
        return self.filled(rng.choice(self.form.statements))

    def question(self, rng: random.Random) -> str:
        """One way in which a user asks for the value."""
        return self.filled(rng.choice(self.form.questions))

    def filled(self, phrase: str) -> str:
        """The phrase with subject and value in their places."""
        text = phrase.replace("{s}", self.subject).replace("{v}", self.value)
        return text[0].upper() + text[1:] if phrase[0] == "{" else text


_SEEN_FROM_ASIDE = (("Your ", "their "), ("You ", "they "), ("The ", "the "))


def is_held_out(value: str) -> bool:
    """Whether a value is kept for evaluation: decided by its checksum, not by a list."""
    return zlib.crc32(value.encode()) % HELD_OUT_BUCKETS == 0


def drawn(rng: random.Random, draw: Draw, held_out: bool = False) -> str:
    """A value that is held out, or is not, as asked."""
    while True:
        value = draw(rng)
        if is_held_out(value) == held_out:
            return value


def person_name(rng: random.Random) -> str:
    """Mostly invented names, so that copying is learnt and not a list of names.

    A known first name that is held out by itself still comes before an invented second one: a word
    that is never said at all would be taken for one that must not be said.
    """
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(words.FIRST_NAMES)
    name = words.invented_name(rng)
    return f"{rng.choice(words.FIRST_NAMES)} {name}" if kind > 0.9 else name


def city(rng: random.Random) -> str:
    """A real city, an invented one, or either with a usual prefix."""
    draw = rng.random()
    if draw < 0.45:
        return rng.choice(words.CITIES)
    name = words.invented_name(rng) if draw < 0.85 else rng.choice(words.CITIES)
    return name if draw < 0.75 else f"{rng.choice(('New', 'Old', 'Port', 'Saint', 'Lake'))} {name}"


def number(rng: random.Random) -> str:
    """A number of two to six digits."""
    length = rng.choice((2, 3, 3, 4, 4, 4, 5, 6))
    return str(rng.randrange(10 ** (length - 1), 10**length))


def code(rng: random.Random) -> str:
    """Digits, or capital letters and digits with a dash."""
    if rng.random() < 0.5:
        return number(rng)
    letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.choice((1, 2))))
    return f"{letters}{rng.choice(('', '-'))}{rng.randrange(10, 1000)}"


def colour(rng: random.Random) -> str:
    """A colour, in most cases with a shade."""
    tone = rng.choice(words.COLOURS)
    return tone if rng.random() < 0.4 else f"{rng.choice(words.SHADES)} {tone}"


_WORD_LISTS = (
    words.OBJECTS, words.ADJECTIVES, words.ANIMALS, words.COMMON, words.COMMON, words.COLOURS,
    words.FOODS, words.HOBBIES, words.JOBS, words.VERBS, words.FIELDS,
)  # fmt: skip


def any_word(rng: random.Random) -> str:
    """A common word of any list, or an invented one."""
    draw = rng.random()
    if draw < 0.3:
        return words.invented_word(rng)
    return rng.choice(rng.choice(_WORD_LISTS))


def passphrase(rng: random.Random) -> str:
    """One to three words, sometimes joined by dashes."""
    count = rng.choice((1, 2, 2, 3))
    parts = [any_word(rng) for _ in range(count)]
    joined = rng.choice((" ", "-")).join(parts)
    return joined if rng.random() < 0.8 else f"{parts[0]}{rng.randrange(10, 100)}"


def clock_time(rng: random.Random) -> str:
    """A time of day such as 14:35."""
    return f"{rng.randrange(24)}:{rng.randrange(60):02d}"


def date(rng: random.Random) -> str:
    """A day and a month, e.g. 12 March."""
    return f"{rng.randrange(1, 29)} {rng.choice(words.MONTHS)}"


def place(rng: random.Random) -> str:
    """A place inside or around a house, e.g. the old garage."""
    noun = rng.choice(words.OBJECTS[-40:])
    return f"{rng.choice(words.ADJECTIVES)} {noun}"


def food(rng: random.Random) -> str:
    """A dish, or two of them."""
    dish = rng.choice(words.FOODS)
    return dish if rng.random() < 0.5 else f"{dish} with {rng.choice(words.FOODS)}"


def job(rng: random.Random) -> str:
    """A job, sometimes with an adjective."""
    title = rng.choice(words.JOBS)
    return title if rng.random() < 0.5 else f"{rng.choice(words.ADJECTIVES)} {title}"


def hobby(rng: random.Random) -> str:
    """One or two pastimes."""
    first = rng.choice(words.HOBBIES)
    return first if rng.random() < 0.5 else f"{first} and {rng.choice(words.HOBBIES)}"


def age(rng: random.Random) -> str:
    """Years of a life."""
    return str(rng.randrange(3, 100))


def moment(rng: random.Random) -> str:
    """When something happens, with its preposition: a time, a day, or both."""
    kind = rng.random()
    if kind < 0.4:
        return f"at {clock_time(rng)}"
    if kind < 0.55:
        return f"on {rng.choice(words.WEEKDAYS)} at {clock_time(rng)}"
    return f"on {date(rng)}" if kind < 0.85 else f"on {date(rng)} at {clock_time(rng)}"


def email(rng: random.Random) -> str:
    """An address for mail."""
    name = words.invented_word(rng) if rng.random() < 0.6 else rng.choice(words.FIRST_NAMES).lower()
    return f"{name}@{any_word(rng)}.{rng.choice(('com', 'org', 'net', 'io'))}"


def path(rng: random.Random) -> str:
    """The path of a file."""
    folders = "/".join(any_word(rng) for _ in range(rng.choice((0, 1, 1, 2))))
    ending = rng.choice(("txt", "md", "py", "json", "csv", "log", "toml"))
    lead = rng.choice(("", "/", "src/", "/data/"))
    return f"{lead}{folders}{'/' if folders else ''}{any_word(rng)}.{ending}"
