"""Facts: no question has two answers, the last value counts, held-out values are never told."""

import random
import re

from ignisd.ember import curriculum, facts, forms, smalltalk, tasks
from ignisd.ember.facts import Fact
from ignisd.ember.talk import Level

LEVEL = Level(max_facts=8, filler_turns=1, max_questions=12, unknown_rate=0.1, update_rate=0.4)
MANY_SUBJECTS = 600


def plain(text):
    """The text without what hasty typing changes."""
    return text.rstrip(".?!").lower()


def phrases(of):
    """Each phrase with its subject filled in, and the form it belongs to."""
    rng = random.Random(1)
    for form in forms.FORMS:
        for subject in {form.subject(rng) for _ in range(MANY_SUBJECTS)}:
            for phrase in of(form):
                yield plain(Fact(form, subject, "{v}").filled(phrase)), form, subject


def test_no_question_fits_two_answers():
    answers: dict[str, str] = {}
    for question, form, subject in phrases(lambda form: form.questions):
        answer = Fact(form, subject, "{v}").answer
        assert answers.setdefault(question, answer) == answer, question
    assert len(answers) > 5000


def test_no_question_for_a_fact_is_small_talk():
    asked = {question for question, *_ in phrases(lambda form: form.questions)}
    said = {plain(ask) for asks, _ in smalltalk.EXCHANGES for ask in asks}
    assert len(said) > 200
    assert not asked & said


def test_no_small_talk_has_two_replies():
    replies: dict[str, str] = {}
    for asks, reply in smalltalk.EXCHANGES:
        for ask in asks:
            assert replies.setdefault(plain(ask), reply) == reply, ask


def test_no_statement_tells_facts_of_two_kinds_about_one_thing():
    """Words that could mean two facts would make the later question a guess."""
    told: dict[str, facts.Form] = {}
    for statement, form, _ in phrases(lambda form: form.statements):
        if form.value in {each.value for each in forms.FORMS if each is not form}:
            assert told.setdefault(statement, form) is form, statement


def test_the_reply_names_the_value_that_was_told_last(monkeypatch):
    told, asked = {}, []

    statement, filled = Fact.statement, Fact.filled

    def record_statement(fact, rng):
        told[fact.key] = fact.value
        return statement(fact, rng)

    def record_answer(fact, phrase):
        if phrase == fact.form.answer:
            asked.append((fact.key, fact.value, told.get(fact.key)))
        return filled(fact, phrase)

    monkeypatch.setattr(Fact, "statement", record_statement)
    monkeypatch.setattr(Fact, "filled", record_answer)
    rng = random.Random(8)
    for _ in range(300):
        told.clear()
        curriculum.conversation(rng, LEVEL)
    assert len(asked) > 1000
    assert all(value == last for _, value, last in asked)


def test_an_unknown_fact_is_one_that_was_not_told(monkeypatch):
    told, unknown = set(), []
    statement = Fact.statement

    def record(fact, rng):
        told.add(fact.key)
        return statement(fact, rng)

    def record_unknown(talk, fact):
        unknown.append(fact.key in told)
        return ask_unknown(talk, fact)

    ask_unknown = tasks.ask_unknown
    monkeypatch.setattr(Fact, "statement", record)
    monkeypatch.setattr(tasks, "ask_unknown", record_unknown)
    rng = random.Random(9)
    for _ in range(300):
        told.clear()
        curriculum.conversation(rng, LEVEL)
    assert len(unknown) > 30
    assert not any(unknown)


def test_thoughts_repeat_the_answer_from_aside():
    rng = random.Random(10)
    for form in forms.FORMS:
        fact = Fact(form, form.subject(rng), facts.drawn(rng, form.value))
        assert fact.value in fact.thought
        assert fact.thought.startswith("I was told that ")
        assert not re.search(r"\b[Yy]ou", fact.thought)


def test_distractors_are_of_the_same_form_and_updates_have_another_value():
    rng = random.Random(11)
    for _ in range(300):
        fact = forms.draw_fact(rng, held_out=False)
        other = forms.with_other_value(rng, fact, held_out=False)
        assert (other.key, other.value == fact.value) == (fact.key, False)
        beside = forms.distractor(rng, fact, held_out=False)
        assert beside.key != fact.key
        assert not facts.is_held_out(beside.value)
