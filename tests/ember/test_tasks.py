"""Tools and JSON: calls and objects that read back, held-out names, texts as the daemon renders."""

import json
import random
from datetime import UTC, datetime

import pytest

from ignisd.chat.parse import parse_chat
from ignisd.chat.template import ChatTemplate
from ignisd.ember import (
    WEIGHTS_DIR,
    curriculum,
    facts,
    json_talk,
    schemas,
    served,
    tasks,
    tokenizer,
    tool_talk,
)
from ignisd.ember.probes import Probe
from ignisd.ember.reading import read_answer
from ignisd.ember.render import TEMPLATE_NAME, render
from ignisd.ember.schemas import draw_schema, is_held_out_name
from ignisd.ember.talk import Level, Talk

LEVEL = Level(max_facts=4, filler_turns=2, max_questions=6, update_rate=0.1, thinking_rate=0.4)
OPENER = "<|im_start|>assistant\n<think>\n"
EMPTY_BLOCK = "\n</think>\n\n"


def talks(count, seed=1, level=LEVEL):
    rng = random.Random(seed)
    return [curriculum.conversation(rng, level) for _ in range(count)]


def rendered(talk, messages, opener):
    return render(
        messages, talk.tools, opener, talk.enable_thinking, preserve_thinking=talk.preserve_thinking
    )


def replies(talk):
    """Each reply with the messages before it and the text that the model has to write."""
    for index, message in enumerate(talk.messages):
        if message["role"] != "assistant":
            continue
        before, now = talk.messages[:index], talk.messages[: index + 1]
        prompt = rendered(talk, before, opener=True)
        whole = rendered(talk, now, opener=False)
        assert whole.startswith(prompt), "training goes on as generation begins"
        yield message, prompt, whole[len(prompt) :].removesuffix("<|im_end|>\n")


def test_every_reply_reads_back_as_the_daemon_reads_it():
    num_calls = 0
    for talk in talks(120):
        for message, _, text in replies(talk):
            tokens = tokenizer.load().encode(text).ids
            answer = read_answer(tokens, talk.tools, talk.enable_thinking)
            calls = [call["function"] for call in message.get("tool_calls", ())]
            assert list(answer.calls) == [(each["name"], each["arguments"]) for each in calls]
            assert answer.content == message["content"]
            assert answer.reasoning == (
                message["reasoning_content"] if talk.enable_thinking else ""
            )
            num_calls += len(calls)
    assert num_calls > 100


def test_the_daemon_renders_the_same_prompt():
    template = ChatTemplate(
        (WEIGHTS_DIR / TEMPLATE_NAME).read_text(), lambda: datetime(2026, 1, 1, tzinfo=UTC)
    )
    for talk in talks(60, seed=2):
        last = max(i for i, each in enumerate(talk.messages) if each["role"] == "assistant")
        probe = Probe(
            talk.messages[:last],
            talk.messages[last],
            "talk",
            talk.tools,
            enable_thinking=talk.enable_thinking,
        )
        body = served.body_of(probe) | {"preserve_thinking": talk.preserve_thinking}
        request = parse_chat(json.dumps(body).encode())
        text = template.render(request.messages, request.tools, request.template_kwargs)
        assert text == rendered(talk, talk.messages[:last], opener=True)


def test_requests_name_what_the_call_holds_and_calls_fit_their_schema():
    rng = random.Random(3)
    for held_out in (False, True):
        for _ in range(400):
            schema = draw_schema(rng, held_out)
            asked = tool_talk.request(rng, schema, held_out)
            required = {each.name for each in schema.parameters if each.is_required}
            assert required
            assert required <= set(asked.arguments) <= {each.name for each in schema.parameters}
            for value in asked.arguments.values():
                parts = value if isinstance(value, list) else [tool_talk.told_value(value)]
                assert all(part in asked.text for part in parts)


def test_held_out_tools_are_held_out_by_name_and_by_a_parameter():
    rng = random.Random(4)
    for _ in range(300):
        schema = draw_schema(rng, held_out=True)
        assert is_held_out_name(schema.name)
        assert any(is_held_out_name(each.name) for each in schema.parameters)


def test_no_held_out_tool_or_parameter_is_offered_in_training():
    names = set()
    for talk in talks(300, seed=5):
        for tool in talk.tools:
            function = tool["function"]
            names |= {function["name"], *function["parameters"]["properties"]}
    assert len(names) > 300
    assert not any(map(is_held_out_name, names))


def test_no_held_out_value_is_in_the_arguments_results_json_or_copies_of_training():
    values = []
    for talk in talks(300, seed=6):
        for message in talk.messages:
            for call in message.get("tool_calls", ()):
                values += call["function"]["arguments"].values()
    texts = [each for value in values for each in (value if isinstance(value, list) else [value])]
    said = [each if isinstance(each, str) else json.dumps(each) for each in texts]
    said = [each for each in said if each not in ("true", "false") and each not in enumerations()]
    assert len(said) > 500
    assert not any(map(facts.is_held_out, said))


def enumerations():
    return {value for allowed in schemas._ENUMS for value in allowed}


def test_json_replies_are_json_with_the_values_that_were_told():
    rng = random.Random(7)
    for _ in range(1000):
        asked = json_talk.task(rng, held_out=rng.random() < 0.5)
        assert json.loads(asked.reply) == asked.expected
        for value in leaves(asked.expected):
            assert json_talk._told(value) in asked.text


def leaves(value):
    if isinstance(value, dict):
        for each in value.values():
            yield from leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each)
    else:
        yield value


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12), ("1.5", 1.5), ("007", "007"), ("A1", "A1")]
)
def test_what_looks_like_a_number_is_one(text, value):
    assert json_talk.typed_value(text) == value


def test_copies_are_exact():
    for seed in range(200):
        talk = Talk(random.Random(seed), LEVEL, curriculum.INVENTED)
        tasks.copy(talk)
        asked, reply = (message["content"] for message in talk.messages)
        assert asked.endswith(reply)
        assert reply


@pytest.mark.parametrize("num_chars", [1500, 8000, 30000])
def test_a_conversation_is_about_as_long_as_asked(num_chars):
    level = Level(max_facts=10, least_chars=num_chars, most_chars=num_chars)
    for talk in talks(8, seed=8, level=level):
        length = len(rendered(talk, talk.messages, opener=False))
        assert 0.75 * num_chars <= length <= 1.3 * num_chars + 2500


def test_the_same_seed_gives_the_same_talks():
    assert talks(20, seed=9) == talks(20, seed=9)
    assert talks(20, seed=9) != talks(20, seed=10)
