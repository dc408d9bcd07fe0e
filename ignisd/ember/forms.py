"""The kinds of facts: how each is stated, asked for and answered.

No question fits two kinds with different answers, so that a reply follows from the conversation:
tests/ember/test_facts.py checks it.
"""

import random
from dataclasses import replace

from ignisd.ember import facts, words
from ignisd.ember.facts import Draw, Fact, Form

PEOPLE = (
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


def _of(*subjects: str) -> Draw:
    return lambda rng: rng.choice(subjects)


_user = _of("user")

FORMS = (
    Form(
        "name", _user, facts.person_name,
        ("My name is {v}.", "I am {v}.", "I'm {v}.", "You can call me {v}.", "Hi, I am {v}.",
         "Hello, my name is {v}.", "Hi! My name is {v}.", "People call me {v}."),
        ("What is my name?", "What's my name?", "Who am I?", "Do you remember my name?",
         "Do you know my name?", "What am I called?", "Can you tell me my name?"),
        "Your name is {v}.", 3.0, "name",
    ),
    Form(
        "person", _of(*PEOPLE), facts.person_name,
        ("My {s} is called {v}.", "My {s}'s name is {v}.", "The name of my {s} is {v}.",
         "My {s} is {v}.", "{v} is my {s}."),
        ("What is my {s} called?", "What is the name of my {s}?", "What's my {s}'s name?",
         "Who is my {s}?", "Do you remember my {s}'s name?"),
        "Your {s} is called {v}.", 3.0,
    ),
    Form(
        "pet", _of(*words.ANIMALS), facts.person_name,
        ("My {s} is called {v}.", "I have a {s} named {v}.", "My {s}'s name is {v}.",
         "I have a {s} called {v}.", "The name of my {s} is {v}."),
        ("What is my {s} called?", "What is the name of my {s}?", "What's my {s}'s name?",
         "What is my {s}'s name?", "Do you remember the name of my {s}?"),
        "Your {s} is called {v}.", 3.0,
    ),
    Form(
        "named thing", _of(*words.OBJECTS), facts.person_name,
        ("My {s} is called {v}.", "I named my {s} {v}.", "The name of my {s} is {v}."),
        ("What is my {s} called?", "What is the name of my {s}?", "How did I name my {s}?"),
        "Your {s} is called {v}.",
    ),
    Form(
        "home", _user, facts.city,
        ("I live in {v}.", "My home is in {v}.", "My city is {v}.", "I moved to {v}."),
        ("Where do I live?", "Which city do I live in?", "What is my city?", "Where is my home?"),
        "You live in {v}.", 2.0, "city",
    ),
    Form(
        "origin", _user, facts.city,
        ("I come from {v}.", "I am from {v}.", "I'm from {v}."),
        ("Where do I come from?", "Where am I from?", "What city am I from?"),
        "You come from {v}.", 1.0, "origin",
    ),
    Form(
        "kin's home", _of(*PEOPLE), facts.city,
        ("My {s} lives in {v}.", "My {s} moved to {v}."),
        ("Where does my {s} live?", "Which city does my {s} live in?"),
        "Your {s} lives in {v}.",
    ),
    Form(
        "favourite colour", _user, facts.colour,
        ("My favourite colour is {v}.", "My favorite color is {v}.", "I like the colour {v} best.",
         "The colour I like most is {v}."),
        ("What is my favourite colour?", "What is my favorite color?",
         "Which colour do I like best?", "Do you remember my favourite colour?"),
        "Your favourite colour is {v}.", 2.0, "colour",
    ),
    Form(
        "colour", _of(*words.OBJECTS), facts.colour,
        ("My {s} is {v}.", "The colour of my {s} is {v}.", "I painted my {s} {v}.",
         "The {s} is {v}."),
        ("What colour is my {s}?", "What colour is the {s}?", "What is the colour of my {s}?"),
        "The {s} is {v}.", 1.5,
    ),
    Form(
        "food", _user, facts.food,
        ("My favourite food is {v}.", "I love to eat {v}.", "My favorite food is {v}."),
        ("What is my favourite food?", "What do I love to eat?", "What food do I like?",
         "What is my favorite food?"),
        "Your favourite food is {v}.", 1.0, "food",
    ),
    Form(
        "job", _user, facts.job,
        ("I work as a {v}.", "My job is {v}.", "I am a {v}."),
        ("What is my job?", "What do I do for work?", "What do I work as?"),
        "You work as a {v}.", 1.0, "job",
    ),
    Form(
        "hobby", _user, facts.hobby,
        ("My hobby is {v}.", "In my free time I enjoy {v}.", "I enjoy {v}."),
        ("What is my hobby?", "What do I enjoy?", "What do I do in my free time?"),
        "Your hobby is {v}.", 1.0, "hobby",
    ),
    Form(
        "own age", _user, facts.age,
        ("I am {v} years old.", "I'm {v} years old.", "I turned {v}.", "My age is {v}."),
        ("How old am I?", "What is my age?"),
        "You are {v} years old.", 1.0, "age",
    ),
    Form(
        "age", _of(*PEOPLE, *words.ANIMALS), facts.age,
        ("My {s} is {v} years old.", "My {s} turned {v}."),
        ("How old is my {s}?", "What age is my {s}?"),
        "Your {s} is {v} years old.",
    ),
    Form(
        "birthday", _user, facts.date,
        ("My birthday is on {v}.", "I was born on {v}."),
        ("When is my birthday?", "On which day was I born?"),
        "Your birthday is on {v}.", 1.0, "birthday",
    ),
    Form(
        "email", _user, facts.email,
        ("My email is {v}.", "My email address is {v}.", "You can write to me at {v}."),
        ("What is my email?", "What is my email address?"),
        "Your email is {v}.", 0.7, "email",
    ),
    Form(
        "code", _of(*_CODED, *words.OBJECTS[:60]), facts.code,
        ("The {s} code is {v}.", "The code for the {s} is {v}.", "The code of the {s} is {v}.",
         "To open the {s}, enter {v}.", "My {s} code is {v}."),
        ("What is the {s} code?", "What is the code for the {s}?", "Which code opens the {s}?",
         "What's the {s} code?", "Do you remember the {s} code?"),
        "The {s} code is {v}.", 3.0,
    ),
    Form(
        "number", _of(*_NUMBERED), facts.number,
        ("My {s} number is {v}.", "The {s} number is {v}.", "The number of my {s} is {v}."),
        ("What is my {s} number?", "What is the {s} number?", "What's the number of my {s}?"),
        "The {s} number is {v}.", 2.0,
    ),
    Form(
        "lucky number", _user, facts.number,
        ("My lucky number is {v}.",),
        ("What is my lucky number?", "What's my lucky number?"),
        "Your lucky number is {v}.", 1.0, "number",
    ),
    Form(
        "price", _of(*words.OBJECTS), lambda rng: str(rng.randrange(2, 2000)),
        ("The {s} costs {v} euros.", "The price of the {s} is {v} euros.",
         "I paid {v} euros for the {s}."),
        ("How much does the {s} cost?", "What is the price of the {s}?"),
        "The {s} costs {v} euros.",
    ),
    Form(
        "password",
        _of("wifi", "server", "email", "club", "library", "guest", "backup", "laptop"),
        facts.passphrase,
        ("The {s} password is {v}.", "The password for the {s} is {v}.", "My {s} password is {v}."),
        ("What is the {s} password?", "What is the password for the {s}?",
         "What's my {s} password?"),
        "The {s} password is {v}.", 2.0,
    ),
    Form(
        "word",
        _of("secret word", "code word", "magic word", "safe word", "project name", "team name",
            "codename", "title", "topic"),
        facts.passphrase,
        ("The {s} is {v}.", "Our {s} is {v}.", "Remember the {s}: {v}.", "The {s} is \"{v}\"."),
        ("What is the {s}?", "What was the {s}?", "What is our {s}?", "Tell me the {s}."),
        "The {s} is {v}.", 3.0,
    ),
    Form(
        "event", _of(*_EVENTS), facts.moment,
        ("The {s} is {v}.", "My {s} is {v}.", "The {s} begins {v}.", "My {s} starts {v}."),
        ("When is the {s}?", "When is my {s}?", "When does the {s} begin?",
         "When does my {s} start?"),
        "The {s} is {v}.", 2.0,
    ),
    Form(
        "place", _of(*words.OBJECTS[:70]), facts.place,
        ("The {s} is in the {v}.", "I left my {s} in the {v}.", "I put the {s} in the {v}."),
        ("Where is the {s}?", "Where is my {s}?", "Where did I leave my {s}?"),
        "The {s} is in the {v}.", 1.5,
    ),
    Form(
        "entry", _of(*words.OBJECTS, *words.ANIMALS), facts.passphrase,
        ("{s} = {v}", "The word for {s} is {v}.", "Remember that {s} means {v}."),
        ("{s} = ?", "What does {s} mean?", "What is the word for {s}?"),
        "The word for {s} is {v}.", 1.5,
    ),
    Form(
        "someone's home", facts.person_name, facts.city,
        ("{s} lives in {v}.", "{s} has a flat in {v}.", "{s} moved to {v}."),
        ("Where does {s} live?", "Which city does {s} live in?"),
        "{s} lives in {v}.", 1.5,
    ),
    Form(
        "someone's job", facts.person_name, facts.job,
        ("{s} works as a {v}.", "{s} is a {v}."),
        ("What does {s} work as?", "What is the job of {s}?"),
        "{s} works as a {v}.",
    ),
    Form(
        "someone's age", facts.person_name, facts.age,
        ("{s} is {v} years old.", "{s} turned {v}."),
        ("How old is {s}?", "What is the age of {s}?"),
        "{s} is {v} years old.",
    ),
    Form(
        "someone's colour", facts.person_name, facts.colour,
        ("{s}'s favourite colour is {v}.", "{s} likes {v} best."),
        ("What is {s}'s favourite colour?", "Which colour does {s} like best?"),
        "{s}'s favourite colour is {v}.",
    ),
    Form(
        "someone's number", facts.person_name, facts.number,
        ("{s}'s number is {v}.", "The number of {s} is {v}.", "You can reach {s} at {v}."),
        ("What is {s}'s number?", "What is the number of {s}?", "How can I reach {s}?"),
        "{s}'s number is {v}.", 1.5,
    ),
    Form(
        "capital", words.invented_name, facts.city,
        ("The capital of {s} is {v}.", "{v} is the capital of {s}."),
        ("What is the capital of {s}?", "Which city is the capital of {s}?"),
        "The capital of {s} is {v}.",
    ),
)  # fmt: skip
_WEIGHTS = tuple(form.weight for form in FORMS)


def draw_fact(rng: random.Random, held_out: bool) -> Fact:
    """A random fact whose value is held out, or is not, as asked."""
    form = rng.choices(FORMS, _WEIGHTS)[0]
    return Fact(form, form.subject(rng), facts.drawn(rng, form.value, held_out))


def draw_facts(rng: random.Random, count: int, held_out: bool) -> list[Fact]:
    """Facts about different things; often several of one form, so that they distract."""
    found: dict[tuple[str, str], Fact] = {}
    while len(found) < count:
        fact = draw_fact(rng, held_out)
        found.setdefault(fact.key, fact)
        if rng.random() < 0.35 and len(found) < count:
            other = distractor(rng, fact, held_out)
            found.setdefault(other.key, other)
    return list(found.values())


def distractor(rng: random.Random, fact: Fact, held_out: bool) -> Fact:
    """A fact of the same form about another subject, if the form has one; or any other fact."""
    for _ in range(8):
        subject = fact.form.subject(rng)
        if subject != fact.subject:
            break
    else:
        return next(
            other for other in iter(lambda: draw_fact(rng, held_out), None) if other.key != fact.key
        )
    value = facts.drawn(rng, fact.form.value, held_out)
    if fact.form.value is facts.person_name and rng.random() < 0.3:
        similar = words.similar_name(rng, fact.value)
        value = similar if facts.is_held_out(similar) == held_out else value
    return Fact(fact.form, subject, value)


def with_other_value(rng: random.Random, fact: Fact, held_out: bool) -> Fact:
    """The fact as it is told anew, with a value that contradicts the old one."""
    while True:
        value = facts.drawn(rng, fact.form.value, held_out)
        if value != fact.value:
            return replace(fact, value=value)
