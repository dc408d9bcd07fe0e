"""The evaluation: probes stand where they should, greedy replies count, wrong ones do not."""

import dataclasses
import json
import random

import jax.numpy as jnp
import numpy as np
import pytest

from ignisd.ember import evaluate, facts, forms, json_talk, measuring, network, probes, tokenizer
from ignisd.ember.english import Prose
from ignisd.ember.measuring import Model, answer_all, answers_of, bits_per_byte
from ignisd.ember.probes import Probe, Recall
from ignisd.ember.reading import Answer, fits
from ignisd.ember.schemas import draw_schema, is_held_out_name
from ignisd.ember.talk import assistant, user
from tests.ember.test_network import TOY

TOKENIZER = tokenizer.load()
PROSE = Prose()
SHAPE = dataclasses.replace(TOY, vocab_size=TOKENIZER.get_vocab_size())
MODEL = Model(network.initial_params(SHAPE, 3), SHAPE, TOKENIZER, dtype=jnp.float32)


def recalls(count=12, **how):
    return probes.recall_probes(Recall(128, **how), count, TOKENIZER, PROSE)


@pytest.mark.parametrize("how", [{}, {"has_rivals": True}, {"is_updated": True}])
def test_probes_stand_at_the_asked_distance_and_are_answerable(how):
    for probe in recalls(20, **how):
        assert 0.9 * 128 <= probes.distance_of(probe, TOKENIZER) <= 1.1 * 128
        told = str(probe.messages[probe.told_at]["content"])
        value = value_of(probe)
        assert value in told
        assert facts.is_held_out(value)


def value_of(probe):
    """The value that the reply repeats, found by the words around it in the form's answer."""
    (form,) = (form for form in forms.FORMS if form.name == probe.form)
    before, after = form.answer.split("{v}")
    before = before.split("{s}")[-1]
    answer = str(probe.expected["content"])
    return answer[answer.rindex(before) + len(before) :].removesuffix(after)


def test_an_updated_fact_was_told_before_with_another_value(monkeypatch):
    told = []
    statement = facts.Fact.statement

    def record(fact, rng):
        told.append(fact)
        return statement(fact, rng)

    monkeypatch.setattr(facts.Fact, "statement", record)
    for seed in range(20):
        told.clear()
        how = Recall(128, is_updated=True)
        (probe,) = probes.recall_probes(how, 1, TOKENIZER, PROSE, seed=seed)
        last = next(fact for fact in reversed(told) if fact.answer == probe.expected["content"])
        values = [fact.value for fact in told if fact.key == last.key]
        assert values[-1] == last.value
        assert len(set(values)) > 1


def test_rivals_are_four_facts_of_the_same_form():
    for probe in recalls(has_rivals=True):
        assert len({each["content"] for each in probe.messages if each["role"] == "user"}) >= 5


def test_probes_are_a_function_of_their_seed():
    assert recalls() == recalls()
    assert probes.tool_probes(5) == probes.tool_probes(5)
    assert probes.tool_probes(5) != probes.tool_probes(5, seed=2)


def test_tool_probes_offer_only_held_out_tools_and_expect_a_call_that_fits():
    for probe in probes.tool_probes(60):
        (call,) = probe.expected["tool_calls"]
        function = call["function"]
        assert fits(probe.tools, function["name"], function["arguments"])
        assert all(is_held_out_name(tool["function"]["name"]) for tool in probe.tools)
        told = " ".join(map(str, function["arguments"]))
        assert told


def test_a_call_that_does_not_fit_is_told():
    rng = random.Random(2)
    while True:
        schema = draw_schema(rng, held_out=True)
        if any(each.kind == "integer" and each.is_required for each in schema.parameters):
            break
    tool = schema.tool()
    good = {each.name: each.value(rng, True) for each in schema.parameters if each.is_required}
    (number,) = [each.name for each in schema.parameters if each.kind == "integer"][:1]
    assert fits([tool], schema.name, good)
    assert not fits([tool], "another", good)
    assert not fits([tool], schema.name, {})
    assert not fits([tool], schema.name, good | {"more": 1})
    assert not fits([tool], schema.name, good | {number: "seven"})
    assert not fits([tool], schema.name, good | {number: True})


def greedy_probe(text):
    """A probe that expects what the model writes first, one token and the end left out."""
    return Probe((user(text),), assistant("Hello"), "chat")


def test_replies_are_right_exactly_when_greedy_decoding_gives_them(monkeypatch):
    monkeypatch.setattr(measuring, "MOST_NEW_TOKENS", 6)
    some = [*recalls(2), greedy_probe("Hi")]
    outcomes = answer_all(MODEL, some)
    assert not any(outcome.is_right for outcome in outcomes)
    decoded = measuring.decode_on(MODEL, outcomes)
    for outcome, reply in zip(outcomes, decoded, strict=True):
        assert reply[: len(outcome.given)] == outcome.given
    for probe, reply in zip(some, decoded, strict=True):
        prompt = TOKENIZER.encode(probe.prompt).ids
        row = [*prompt, *reply]
        likeliest = measuring._likeliest(MODEL, [row], measuring._padded(len(row)))[0]
        assert likeliest[len(prompt) - 1 : len(row) - 1].tolist() == list(reply)


def test_a_model_that_knows_the_reply_is_right_and_valid(monkeypatch):
    """The likeliest token after each place is the one that stands there: a perfect model."""

    def perfect(model, rows, length):
        return [[*row[1:], 0] + [0] * (length - len(row)) for row in rows]

    monkeypatch.setattr(measuring, "_likeliest", lambda *given: np.array(perfect(*given), np.int32))
    for row in evaluate.rows(TOKENIZER, PROSE, 6, (128,)):
        result = evaluate.result_of(MODEL, row)
        assert result.rate == 1.0
        assert result.num_valid in (None, len(row.probes))


def test_wrong_replies_are_neither_right_nor_valid(monkeypatch):
    monkeypatch.setattr(measuring, "MOST_NEW_TOKENS", 6)
    for row in evaluate.rows(TOKENIZER, PROSE, 2, (128,)):
        if row.valid is not None:
            result = evaluate.result_of(MODEL, row)
            assert (result.num_right, result.num_valid) == (0, 0)
            assert f"{0:.1%}" in result.line()


def test_json_counts_when_it_parses_to_what_was_asked():
    (probe,) = probes.json_probes(1)
    expected = json.dumps(probe.expected_json)
    for content, valid in ((expected, True), (expected[:-1], False), ('{"a": 1}', False)):
        assert measuring.is_valid_json(probe, Answer(content, "", ())) is valid
    assert json_talk.task(random.Random(1), True).expected is not None


def test_an_untrained_model_reads_a_text_at_about_the_bits_of_its_vocabulary():
    text = " ".join(f"word{index}" for index in range(1000))
    ids = TOKENIZER.encode(text).ids
    bits = bits_per_byte(MODEL, text)
    assert bits == pytest.approx(12 * len(ids) / len(text), rel=0.15)


def test_answers_of_right_outcomes_need_no_decoding():
    probe = greedy_probe("Hello")
    right = measuring.Outcome(probe, True, tuple(TOKENIZER.encode("Hello<|im_end|>").ids))
    assert answers_of(MODEL, [right]) == [Answer("Hello", "", ())]
