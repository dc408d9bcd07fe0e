"""The curriculum: seeded, held-out values kept out, weights on the assistant's words only."""

import random

import numpy as np

from ignisd.ember import curriculum, facts, forms, tokenizer
from ignisd.ember.packing import CONTEXT_WEIGHT, answer_weights, encode, packed_batch
from ignisd.ember.render import render

TOKENIZER = tokenizer.load()
LEVEL = curriculum.Level(max_facts=5, filler_turns=2, max_questions=6, update_rate=0.1)


def test_the_same_seed_gives_the_same_conversations():
    first, second = ([curriculum.conversation(random.Random(3), LEVEL)] for _ in range(2))
    assert first == second
    assert curriculum.conversation(random.Random(4), LEVEL) != first[0]


def test_training_facts_and_probe_facts_share_no_value():
    rng = random.Random(5)
    trained = {forms.draw_fact(rng, held_out=False).value for _ in range(5000)}
    kept = {forms.draw_fact(rng, held_out=True).value for _ in range(1000)}
    assert not trained & kept
    assert not any(facts.is_held_out(value) for value in trained)


def test_no_told_fact_of_a_training_conversation_is_held_out(monkeypatch):
    told = []
    statement = facts.Fact.statement

    def record(fact, rng):
        told.append(fact.value)
        return statement(fact, rng)

    monkeypatch.setattr(facts.Fact, "statement", record)
    rng = random.Random(6)
    for _ in range(1000):
        curriculum.conversation(rng, LEVEL)
    assert len(told) > 1000
    assert not any(facts.is_held_out(value) for value in told)


def test_every_form_fills_all_its_phrases():
    rng = random.Random(7)
    for form in forms.FORMS:
        fact = facts.Fact(form, form.subject(rng), form.value(rng))
        assert fact.value in fact.answer
        for phrase in form.statements:
            assert "{v}" in phrase
        for phrase in form.questions:
            assert "{v}" not in phrase
        assert "{" not in fact.statement(rng) + fact.question(rng) + fact.answer


def test_weights_cover_the_reply_and_its_end_and_not_the_opener():
    talk = curriculum.Conversation(
        (curriculum.user("Hi"), curriculum.assistant("Hello!")), preserve_thinking=False
    )
    tokens, weights = encode(talk, TOKENIZER)
    said = [TOKENIZER.id_to_token(t) for t, w in zip(tokens, weights, strict=True) if w == 1.0]
    assert said == ["Hello", "!", "<|im_end|>"]
    assert weights[0] == 0.0
    assert set(weights[1:].tolist()) == {1.0, weights[1].item()}
    assert abs(weights[1].item() - CONTEXT_WEIGHT) < 1e-6


def test_reasoning_is_learnt_when_there_is_some():
    reply = curriculum.assistant("Yes.") | {"reasoning_content": "Hm."}
    tokens = TOKENIZER.encode(render((curriculum.user("Hi"), reply))).ids
    weights = answer_weights(tokens, TOKENIZER)
    said = TOKENIZER.decode(
        [t for t, w in zip(tokens, weights, strict=True) if w == 1.0], skip_special_tokens=False
    )
    assert said == "Hm.\n</think>\n\nYes.<|im_end|>"


def test_rows_are_full_and_positions_restart_with_each_conversation():
    batch = packed_batch(
        random.Random(9), lambda rng: curriculum.conversation(rng, LEVEL), TOKENIZER, 3, 512
    )
    assert batch.tokens.shape == (3, 512)
    conversations, positions, weights = (
        np.asarray(part) for part in (batch.conversations, batch.positions, batch.weights)
    )
    same = conversations[:, 1:] == conversations[:, :-1]
    assert not same.all()
    assert np.array_equal(positions[:, 1:], np.where(same, positions[:, :-1] + 1, 0))
    assert np.array_equal(weights[:, 1:] > 0, same)
