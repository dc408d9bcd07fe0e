"""Kinds of facts a user may tell: how each is stated, asked for and answered."""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from ignisd.ember import words

HELD_OUT_BUCKETS = 8
"""One value in this many is never stated as a fact in training."""


@dataclass(frozen=True, slots=True)
class Form:
    """Phrasings of one kind of fact; `{v}` stands for the value and `{s}` for the subject."""

    name: str
    subjects: tuple[str, ...]
    value: Callable[[random.Random], str]
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    answer: str
    weight: float = 1.0


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
        return self._fill(self.form.answer)

    def statement(self, rng: random.Random) -> str:
        """One way in which a user tells the fact."""
        return self._fill(rng.choice(self.form.statements))

    def question(self, rng: random.Random) -> str:
        """One way in which a user asks for the value."""
        return self._fill(rng.choice(self.form.questions))

    def _fill(self, phrase: str) -> str:
        text = phrase.replace("{s}", self.subject).replace("{v}", self.value)
        return text[0].upper() + text[1:] if phrase[0] == "{" else text


def is_held_out(value: str) -> bool:
    """Whether a value is kept for evaluation: decided by its checksum, not by a list."""
    return zlib.crc32(value.encode()) % HELD_OUT_BUCKETS == 0


def person_name(rng: random.Random) -> str:
    """Mostly invented names, so that copying is learnt and not a list of names."""
    return rng.choice(words.FIRST_NAMES) if rng.random() < 0.3 else words.invented_name(rng)


def city(rng: random.Random) -> str:
    """A real city, an invented one, or an invented one with a usual prefix."""
    draw = rng.random()
    if draw < 0.5:
        return rng.choice(words.CITIES)
    name = words.invented_name(rng)
    return name if draw < 0.8 else f"{rng.choice(('New', 'Old', 'Port', 'Saint', 'Lake'))} {name}"


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


def any_word(rng: random.Random) -> str:
    """A common word of any list, or an invented one."""
    draw = rng.random()
    if draw < 0.3:
        return words.invented_word(rng)
    return rng.choice(rng.choice((words.OBJECTS, words.ADJECTIVES, words.ANIMALS, words.COMMON)))


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


_PEOPLE = (
    "sister", "brother", "mother", "father", "boss", "neighbour", "teacher", "doctor",
    "best friend", "son", "daughter", "wife", "husband", "cousin", "uncle", "aunt", "colleague",
    "roommate", "grandmother", "landlord", "coach", "nephew", "niece", "dentist", "manager",
)  # fmt: skip
_CODED = (
    "door", "gate", "locker", "safe", "garage", "alarm", "office", "bike lock", "suitcase",
    "server", "printer", "phone", "vault", "cabin", "archive",
)  # fmt: skip
_NUMBERED = (
    "room", "ticket", "order", "invoice", "seat", "flight", "platform", "house", "account",
    "badge", "case", "parcel", "bus", "table", "flat",
)  # fmt: skip
_EVENTS = (
    "meeting", "dinner", "train", "concert", "lesson", "appointment", "party", "lunch",
    "interview", "exam", "call", "match", "flight", "wedding",
)  # fmt: skip

FORMS = (
    Form(
        "name", ("user",), person_name,
        ("My name is {v}.", "I am {v}.", "I'm {v}.", "You can call me {v}.", "Hi, I am {v}.",
         "Hello, my name is {v}.", "Hi! My name is {v}.", "People call me {v}."),
        ("What is my name?", "What's my name?", "Who am I?", "Do you remember my name?",
         "Do you know my name?", "What am I called?", "How am I called?",
         "Can you tell me my name?"),
        "Your name is {v}.", 3.0,
    ),
    Form(
        "person", _PEOPLE, person_name,
        ("My {s} is called {v}.", "My {s}'s name is {v}.", "The name of my {s} is {v}.",
         "My {s} is {v}.", "{v} is my {s}."),
        ("What is my {s} called?", "What is the name of my {s}?", "What's my {s}'s name?",
         "Who is my {s}?", "Do you remember my {s}'s name?"),
        "Your {s} is called {v}.", 3.0,
    ),
    Form(
        "pet", words.ANIMALS, person_name,
        ("My {s} is called {v}.", "I have a {s} named {v}.", "My {s}'s name is {v}.",
         "I have a {s} called {v}.", "The name of my {s} is {v}."),
        ("What is my {s} called?", "What is the name of my {s}?", "What's my {s}'s name?",
         "What is my {s}'s name?", "Do you remember the name of my {s}?"),
        "Your {s} is called {v}.", 3.0,
    ),
    Form(
        "named thing", words.OBJECTS, person_name,
        ("My {s} is called {v}.", "I named my {s} {v}.", "The {s} is called {v}."),
        ("What is my {s} called?", "What is the {s} called?", "What is the name of my {s}?"),
        "The {s} is called {v}.",
    ),
    Form(
        "home", ("user",), city,
        ("I live in {v}.", "My home is in {v}.", "I come from {v}.", "I am from {v}.",
         "My city is {v}."),
        ("Where do I live?", "Which city do I live in?", "Where am I from?", "What city am I from?",
         "What is my city?"),
        "You live in {v}.", 2.0,
    ),
    Form(
        "travel", ("user", *_PEOPLE), city,
        ("My {s} lives in {v}.", "My {s} moved to {v}.", "My {s} is in {v}."),
        ("Where does my {s} live?", "Which city does my {s} live in?", "Where is my {s}?"),
        "Your {s} lives in {v}.",
    ),
    Form(
        "favourite colour", ("user",), colour,
        ("My favourite colour is {v}.", "My favorite color is {v}.", "I like the colour {v} best.",
         "The colour I like most is {v}."),
        ("What is my favourite colour?", "What is my favorite color?",
         "Which colour do I like best?", "Do you remember my favourite colour?"),
        "Your favourite colour is {v}.", 2.0,
    ),
    Form(
        "colour", words.OBJECTS, colour,
        ("My {s} is {v}.", "The colour of my {s} is {v}.", "I painted my {s} {v}.",
         "The {s} is {v}."),
        ("What colour is my {s}?", "What colour is the {s}?", "What is the colour of my {s}?"),
        "The {s} is {v}.", 1.5,
    ),
    Form(
        "food", ("user",), food,
        ("My favourite food is {v}.", "I love to eat {v}.", "I like {v} most of all.",
         "My favorite food is {v}."),
        ("What is my favourite food?", "What do I love to eat?", "What food do I like?",
         "What is my favorite food?"),
        "Your favourite food is {v}.",
    ),
    Form(
        "job", ("user",), job,
        ("I work as a {v}.", "My job is {v}.", "I am a {v}."),
        ("What is my job?", "What do I do for work?", "What do I work as?"),
        "You work as a {v}.",
    ),
    Form(
        "hobby", ("user",), hobby,
        ("My hobby is {v}.", "In my free time I enjoy {v}.", "I enjoy {v}."),
        ("What is my hobby?", "What do I enjoy?", "What do I do in my free time?"),
        "Your hobby is {v}.",
    ),
    Form(
        "age", ("user", *_PEOPLE), lambda rng: str(rng.randrange(3, 100)),
        ("My {s} is {v} years old.", "My {s} turned {v}."),
        ("How old is my {s}?", "What age is my {s}?"),
        "Your {s} is {v} years old.",
    ),
    Form(
        "birthday", ("user",), date,
        ("My birthday is on {v}.", "I was born on {v}."),
        ("When is my birthday?", "On which day was I born?"),
        "Your birthday is on {v}.",
    ),
    Form(
        "code", (*_CODED, *words.OBJECTS[:60]), code,
        ("The {s} code is {v}.", "The code for the {s} is {v}.", "The code of the {s} is {v}.",
         "To open the {s}, enter {v}.", "My {s} code is {v}."),
        ("What is the {s} code?", "What is the code for the {s}?", "Which code opens the {s}?",
         "What's the {s} code?", "Do you remember the {s} code?"),
        "The {s} code is {v}.", 3.0,
    ),
    Form(
        "number", _NUMBERED, number,
        ("My {s} number is {v}.", "The {s} number is {v}.", "The number of my {s} is {v}."),
        ("What is my {s} number?", "What is the {s} number?", "What's the number of my {s}?"),
        "The {s} number is {v}.", 2.0,
    ),
    Form(
        "lucky number", ("user",), number,
        ("My lucky number is {v}.", "My favourite number is {v}."),
        ("What is my lucky number?", "What is my favourite number?"),
        "Your number is {v}.",
    ),
    Form(
        "password", ("wifi", "server", "email", "club", "library", "guest", "backup", "laptop"),
        passphrase,
        ("The {s} password is {v}.", "The password for the {s} is {v}.", "My {s} password is {v}."),
        ("What is the {s} password?", "What is the password for the {s}?",
         "What's my {s} password?"),
        "The {s} password is {v}.", 2.0,
    ),
    Form(
        "word", ("secret word", "code word", "magic word", "safe word", "project name", "team name",
                 "codename", "title", "topic"),
        passphrase,
        ("The {s} is {v}.", "Our {s} is {v}.", "Remember the {s}: {v}.", "The {s} is \"{v}\"."),
        ("What is the {s}?", "What was the {s}?", "What is our {s}?", "Tell me the {s}."),
        "The {s} is {v}.", 3.0,
    ),
    Form(
        "time", _EVENTS, clock_time,
        ("The {s} is at {v}.", "My {s} starts at {v}.", "The {s} begins at {v}."),
        ("When is the {s}?", "At what time is the {s}?", "When does my {s} start?"),
        "The {s} is at {v}.", 1.5,
    ),
    Form(
        "day", _EVENTS, date,
        ("The {s} is on {v}.", "My {s} takes place on {v}."),
        ("On which day is the {s}?", "What is the date of the {s}?"),
        "The {s} is on {v}.",
    ),
    Form(
        "place", words.OBJECTS[:70], place,
        ("The {s} is in the {v}.", "I left my {s} in the {v}.", "I put the {s} in the {v}."),
        ("Where is the {s}?", "Where is my {s}?", "Where did I leave my {s}?"),
        "The {s} is in the {v}.", 1.5,
    ),
    Form(
        "entry", (*words.OBJECTS, *words.ANIMALS), passphrase,
        ("{s} = {v}", "{s}: {v}", "Remember that {s} means {v}.", "The word for {s} is {v}."),
        ("{s} = ?", "{s}?", "What does {s} mean?", "What is the word for {s}?"),
        "The word is {v}.", 1.5,
    ),
)  # fmt: skip
_WEIGHTS = tuple(form.weight for form in FORMS)


def draw_fact(rng: random.Random, held_out: bool) -> Fact:
    """A random fact whose value is held out, or is not, as asked."""
    while True:
        form = rng.choices(FORMS, _WEIGHTS)[0]
        subject = rng.choice(form.subjects)
        if subject == "user" and len(form.subjects) > 1:
            continue
        value = form.value(rng)
        if is_held_out(value) == held_out:
            return Fact(form, subject, value)
