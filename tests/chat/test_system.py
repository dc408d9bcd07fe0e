"""Where system and developer messages go, and what that means for the prompts of later turns."""

import itertools
from pathlib import Path

import numpy as np
import orjson
import pytest

import ignisd.ember
from ignisd.chat.checkpoint import read_model_info
from ignisd.chat.parse import parse_chat
from ignisd.chat.policies import ChatPolicies, DeveloperPolicy, SystemPolicy
from ignisd.chat.types import NoteKind
from ignisd.errors import RequestError
from tests.chat.toy import NOON, toy_model

TOY = toy_model()
EMBER = read_model_info(Path(ignisd.ember.__file__).parent / "weights", "e", 4096, lambda: NOON)
MODELS = [TOY, EMBER]
HEADER = "x-anthropic-billing-header: cc_version=1.2.3; cch=0f3a9;"
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b":1,"a":2}'}}


def say(role, content="", **fields):
    return {"role": role, "content": content, **fields}


def parse(messages, **policies):
    return parse_chat(orjson.dumps({"messages": messages}), ChatPolicies(**policies))


def placed(*messages, **policies):
    chat = parse([say(role, text) for role, text in messages], **policies)
    return [(message.role, message.content) for message in chat.messages]


def prompt(messages, model, **policies):
    return model.renderer.render(parse(messages, **policies))


MIXED = (
    ("system", "s"),
    ("developer", "d"),
    ("user", "q"),
    ("assistant", "r"),
    ("developer", "e"),
    ("user", "u"),
)


@pytest.mark.parametrize(
    ("policy", "want", "moved"),
    [
        ("inplace", "system:s\n\nd user:q assistant:r user:e user:u", False),
        ("into-system", "system:s\n\nd\n\ne user:q assistant:r user:u", True),
        ("after-system", "system:s user:d user:e user:q assistant:r user:u", True),
        ("one-after-system", "system:s user:d\n\ne user:q assistant:r user:u", True),
    ],
)
def test_developer_messages_go_where_the_policy_says(policy, want, moved):
    got = placed(*MIXED, developer=DeveloperPolicy(policy))
    assert " ".join(f"{role}:{text}" for role, text in got) == want
    messages = [say(role, text) for role, text in MIXED]
    notes = parse(messages, developer=DeveloperPolicy(policy)).notes
    assert [note.kind for note in notes] == [NoteKind.MESSAGE_MOVED] * moved
    # What stands at the head already is not moved, and costs nothing.
    assert parse(messages[:4], developer=DeveloperPolicy(policy)).notes == ()


@pytest.mark.parametrize("policy", ["into-system", "after-system", "one-after-system"])
def test_without_a_system_message_they_open_the_conversation(policy):
    got = placed(("user", "q"), ("developer", "d"), developer=DeveloperPolicy(policy))
    assert got == [("system" if policy == "into-system" else "user", "d"), ("user", "q")]
    assert placed(("user", "q"), developer=DeveloperPolicy(policy)) == [("user", "q")]


def test_refusing_policies_name_the_message_and_the_flag():
    with pytest.raises(RequestError, match="server-developer-message-policy") as caught:
        placed(*MIXED, developer=DeveloperPolicy.REJECT)
    assert caught.value.param == "messages[1].role"
    with pytest.raises(RequestError, match="server-system-message-policy") as caught:
        placed(("system", "a"), ("user", "q"), ("system", "b"), system=SystemPolicy.STRICT)
    assert caught.value.param == "messages[2].role"
    got = placed(("system", "a"), ("user", "q"), system=SystemPolicy.STRICT)
    assert got == [("system", "a"), ("user", "q")]


PLACES = [
    (("system", "a"), ("user", "b"), ("assistant", "c"), ("system", "d"), ("user", "e")),
    (("system", "a"), ("system", "b"), ("user", "c")),
    (("developer", "a"), ("user", "b")),
    (("user", "b"), ("developer", "a")),
    (("system", "a"), ("user", "b"), ("assistant", "c"), ("tool", "d"), ("developer", "e")),
    (("developer", "a"), ("system", "b"), ("user", "c"), ("system", "d"), ("developer", "e")),
]


@pytest.mark.parametrize("model", MODELS, ids=["toy", "ember"])
@pytest.mark.parametrize("messages", PLACES)
def test_l101_strict_templates_take_every_order_under_every_policy(model, messages):
    messages = [say(role, text) for role, text in messages]
    for system, developer in itertools.product(SystemPolicy, DeveloperPolicy):
        refuses = (
            developer is DeveloperPolicy.REJECT
            and any(each["role"] == "developer" for each in messages)
        ) or (
            system is SystemPolicy.STRICT and any(each["role"] == "system" for each in messages[1:])
        )
        if not refuses:
            rendered = prompt(messages, model, system=system, developer=developer)
            assert rendered.marks.opener is not None
            continue
        with pytest.raises(RequestError) as caught:
            prompt(messages, model, system=system, developer=developer)
        assert caught.value.status == 400
        assert str(caught.value.param).startswith("messages[")


def shared(first, second):
    """How many tokens two prompts begin with in common."""
    size = min(len(first.tokens), len(second.tokens))
    differ = np.flatnonzero(first.tokens[:size] != second.tokens[:size])
    return int(differ[0]) if len(differ) else size


def loop_with_notes(rounds, role):
    """A tool loop in which a note follows each result, turn by turn."""
    messages = [say("system", "rules"), say("user", "do it")]
    yield list(messages)
    for number in range(rounds):
        messages += [
            say("assistant", "", reasoning_content=f"step {number}", tool_calls=[CALL]),
            say("tool", f"result {number}", tool_call_id="c"),
            say(role, f"{100 - number} tokens left"),
        ]
        yield list(messages)


@pytest.mark.parametrize("model", MODELS, ids=["toy", "ember"])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_l16_a_note_in_every_turn_leaves_the_prompt_before_it_alone(model, role):
    prompts = [prompt(messages, model) for messages in loop_with_notes(6, role)]
    for before, after in itertools.pairwise(prompts):
        assert shared(before, after) >= before.marks.opener
        assert before.marks.turn_open == after.marks.turn_open


@pytest.mark.parametrize("policy", ["into-system", "after-system", "one-after-system"])
def test_l16_what_moves_notes_to_the_head_is_asked_for_and_noted(policy):
    turns = list(loop_with_notes(2, "developer"))
    options = {"developer": DeveloperPolicy(policy)}
    before, after = (prompt(messages, EMBER, **options) for messages in turns[1:])
    assert shared(before, after) < before.marks.opener
    assert [note.kind for note in parse(turns[1], **options).notes] == [NoteKind.MESSAGE_MOVED]
    assert parse(turns[1]).notes == ()


def chat_turns(think):
    """Three user turns, as a client sends them that echoes the reasoning."""
    messages = [say("system", "rules"), say("user", "one")]
    for number in range(3):
        yield list(messages)
        reasoning = {"reasoning_content": f"thought {number}"} if think else {}
        messages += [say("assistant", f"answer {number}", **reasoning), say("user", f"{number}")]


def test_l13_an_empty_think_block_at_the_opener_costs_the_turn_and_no_more():
    opener = EMBER.tokenizer.encode("<|im_start|>assistant\n")
    for before, after in itertools.pairwise([prompt(turn, EMBER) for turn in chat_turns(False)]):
        assert len(before.tokens) > before.marks.opener
        assert shared(before, after) >= before.marks.opener
        assert before.marks.opener == before.marks.turn_open
        assert (before.tokens[before.marks.opener - len(opener) :][: len(opener)] == opener).all()


def test_l13_reasoning_that_a_new_turn_drops_costs_the_last_turn_and_no_more():
    for before, after in itertools.pairwise([prompt(turn, EMBER) for turn in chat_turns(True)]):
        assert shared(before, after) >= before.marks.turn_open


def test_l13_an_echoed_tool_loop_is_rendered_as_it_was_generated():
    turns = list(loop_with_notes(4, "tool"))
    for before, after in itertools.pairwise([prompt(turn, EMBER) for turn in turns]):
        assert shared(before, after) >= before.marks.opener


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize(
    "content",
    [
        HEADER + "\nrules\nmore",
        HEADER.upper().replace("CC", "cc") + "\nrules\nmore",
        f"{HEADER}\n{HEADER}\nrules\nmore",
        [{"type": "text", "text": HEADER}, {"type": "text", "text": "rules\nmore"}],
        [{"type": "text", "text": HEADER + "\n"}, {"type": "text", "text": "rules\nmore"}],
    ],
)
def test_a_billing_header_is_dropped_before_rendering(role, content):
    messages = [say(role, content), say("user", "q")]
    chat = parse(messages)
    assert chat.messages[0].content == "rules\nmore"
    assert [note.kind for note in chat.notes] == [NoteKind.VOLATILE_HEADER]
    kept = parse(messages, strip_volatile_headers=False)
    assert "billing-header" in kept.messages[0].content.lower()
    assert kept.notes == ()


@pytest.mark.parametrize(
    "messages",
    [
        [say("system", "rules\n" + HEADER), say("user", "q")],
        [say("system", "about x-anthropic-billing-header: what it is"), say("user", "q")],
        [say("user", HEADER + "\nq")],
        [say("system", []), say("user", "q")],
    ],
)
def test_only_a_first_system_line_is_dropped(messages):
    chat = parse(messages)
    assert chat.notes == ()
    assert sum("billing-header" in message.content for message in chat.messages) == sum(
        "billing-header" in str(message["content"]) for message in messages
    )


def test_conversations_that_differ_in_the_header_only_share_their_prompt():
    first, second = (
        prompt([say("system", f"{HEADER}{number};\nrules"), say("user", "q")], EMBER)
        for number in (1, 2)
    )
    assert np.array_equal(first.tokens, second.tokens)
