"""Rendered conversations: the embedded model's own template and tokenizer, the fake device."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path

from ignisd.chat.checkpoint import read_template
from ignisd.chat.marks import MarkFinder
from ignisd.chat.output import StopMatcher, TextDecoder
from ignisd.chat.template import ChatTemplate
from ignisd.chat.tokenizer import ChatTokenizer
from ignisd.chat.types import Message, ToolCall
from ignisd.engine.types import Finish
from state.retained import Kind
from state.retention import Marks
from state.reuse import MissReason
from tests.cases.prompts import floor
from tests.engine.harness import Harness, words
from tests.planting import catches

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
WEIGHTS = Path(str(files("ignisd.ember") / "weights"))
PAGE = 64
SYSTEM = Message("system", "You look things up for people and answer them shortly. " * 6)
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("look_up", "count", "tell")
)


@cache
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer.from_file(WEIGHTS / "tokenizer.json")


@cache
def template() -> ChatTemplate:
    return ChatTemplate(read_template(WEIGHTS), lambda: NOON)


def rendered(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, object]] = (),
    **kwargs: object,
) -> tuple[list[int], Marks]:
    """The prompt as the daemon renders it."""
    tokens = tokenizer().encode(template().render(messages, tools, kwargs))
    return tokens.tolist(), MarkFinder(tokenizer()).find(tokens)


def user(text: str) -> Message:
    return Message("user", f"{text} " * 12)


def answer(text: str, thought: str | None = None, call: str | None = None) -> Message:
    calls = (ToolCall(None, call, {"key": text}),) if call else ()
    return Message("assistant", f"{text} " * 5, thought and f"{thought} " * 30, calls)


def asked(
    harness: Harness, messages: Sequence[Message], **kwargs: object
) -> tuple[Finish, Marks, int]:
    """How a request went, its marks, and the tokens that the device read for it."""
    tokens, marks = rendered(messages, **kwargs)  # type: ignore[arg-type]
    finish = harness.ask(tokens, marks=marks)
    return finish, marks, harness.rows(finish.request_id)


def loop(question: str, calls: int) -> list[Message]:
    """A user's message and the tool calls that follow it, each with thoughts and a result."""
    messages = [user(question)]
    for call in range(calls):
        messages.append(answer(f"call {call}", f"I think of {question} {call}", "look_up"))
        messages.append(Message("tool", f"the result of {question} {call} " * 4))
    return messages


@catches("no-opener-cut")
def test_v112_each_turn_hits_where_the_one_before_opened() -> None:
    harness = Harness(max_context=8192, num_pages=600, num_host_slots=12)
    messages: list[Message] = [SYSTEM]
    openers: list[int] = []
    for turn in range(6):
        messages.append(user(f"question {turn}"))
        finish, marks, _ = asked(harness, messages, tools=TOOLS)
        assert marks.opener is not None
        if openers:
            assert finish.cached_tokens == floor(openers[-1] - 1)
        openers.append(marks.opener)
        # What was thought is dropped from the history once the user has spoken again.
        messages.append(answer(f"answer {turn}", f"thoughts {turn}"))
    assert openers == sorted(openers)


@catches("cut-beyond-the-seam")
def test_v113_a_plain_prompt_is_cut_before_what_may_merge() -> None:
    for length in (131, 134, 193, 199):
        harness = Harness()
        prompt = words(length, 1)
        harness.ask(prompt)
        # The last word is continued: its tokens are others now.
        continued = [*prompt[:-4], *words(40, 2)]
        assert harness.ask(continued).cached_tokens == floor(length - 8)


@catches("no-opener-cut")
def test_l13_an_empty_block_in_the_last_turn_only_costs_that_turn() -> None:
    harness = Harness(max_context=8192, num_pages=600)
    history = [SYSTEM, user("one " * 80), answer("first"), user("two")]
    with_block, _ = rendered(history)
    longer = [*history, answer("second"), user("three")]
    without, _ = rendered(longer)
    assert without[: len(with_block)] != with_block
    _, marks, _ = asked(harness, history)
    finish, after, read = asked(harness, longer)
    assert marks.opener is not None
    assert finish.cached_tokens >= floor(marks.opener - 1)
    assert after.opener is not None
    assert read <= after.opener - marks.opener + PAGE + 8


@catches("no-turn-open-cut")
def test_l14_a_new_question_drops_old_thoughts_and_hits_where_they_began() -> None:
    harness = Harness(max_context=16_384, num_pages=900, num_host_slots=12)
    messages = [SYSTEM, *loop("the first task", 12)]
    turn_opens: list[int] = []
    for steps in range(2, len(messages) + 1, 2):
        _, marks, _ = asked(harness, messages[:steps], tools=TOOLS)
        assert marks.turn_open is not None
        turn_opens.append(marks.turn_open)
    assert len(set(turn_opens)) == 1
    messages += [answer("done"), user("the next task")]
    finish, marks, _ = asked(harness, messages, tools=TOOLS)
    assert finish.cached_tokens == floor(turn_opens[0])
    assert finish.reuse.kind is Kind.TURN_OPEN
    kept, _ = rendered(messages[:-2], TOOLS, preserve_thinking=True)
    again, _ = rendered(messages, TOOLS, preserve_thinking=True)
    assert again[: floor(len(kept) - 8)] == kept[: floor(len(kept) - 8)]


@catches("finished-turns-stay")
def test_l14_a_finished_turn_leaves_its_slots_to_others() -> None:
    harness = Harness(max_context=16_384, num_pages=900, num_host_slots=12)
    messages = [SYSTEM]
    for turn in range(3):
        steps = loop(f"task {turn}", 2)
        for upto in range(1, len(steps) + 1, 2):
            finish, _, _ = asked(harness, messages + steps[:upto], tools=TOOLS)
        messages += [*steps, answer(f"done {turn}")]
    kept = [one.kind for one in harness.world.index if not one.superseded]
    assert sorted(kept) == [Kind.CHECKPOINT, Kind.PREFIX, Kind.TURN_OPEN]
    assert finish.cached_tokens > 0


@catches("no-opener-cut")
def test_l16_notes_of_the_system_in_the_middle_leave_the_head_alone() -> None:
    harness = Harness(max_context=8192, num_pages=600)
    messages: list[Message] = [SYSTEM]
    opener = 0
    for turn in range(5):
        messages += [user(f"question {turn}"), user(f"tokens left: {9000 - turn}")]
        finish, marks, _ = asked(harness, messages)
        assert finish.cached_tokens >= floor(max(opener - 1, 0))
        assert marks.opener is not None
        opener = marks.opener
        messages.append(answer(f"answer {turn}"))
    assert harness.world.counters.misses[MissReason.NO_MATCH] == 1


@catches("every-miss-is-no-match")
def test_v109_the_parts_of_a_rendered_prompt_are_named() -> None:
    messages = [SYSTEM, user("one"), answer("first"), user("two")]
    tokens, marks = rendered(messages, TOOLS)
    assert marks.tools is not None
    text = tokenizer()
    shown = b"".join(text.token_bytes(token) for token in tokens[slice(*marks.tools)]).decode()
    assert json.loads(shown.splitlines()[1]) == TOOLS[0]
    assert shown.startswith("<tools>")
    assert marks.system_end is not None
    parts = {marks.segment_at(at) for at in range(len(tokens))}
    assert parts == {"tools", "system", *(f"message {at}" for at in range(1, 5))}
    harness = Harness(max_context=8192, num_pages=400, num_host_slots=1)
    harness.ask(tokens, marks=Marks(opener=marks.opener))
    other, marks = rendered([SYSTEM, user("one"), answer("another"), user("two")], TOOLS)
    told = harness.ask(other, marks=marks).reuse
    assert told.segment == "message 2"
    assert told.miss is not None
    assert told.miss.reason is MissReason.STATE_MISSING


@catches("characters-are-cut")
def test_l109_characters_are_never_split() -> None:
    for raw in (
        "😀👨\u200d👩\u200d👧 漢字 é".encode(),
        b"\x80 lone \xc3",
        b"\xe2\x82 cut \xf0\x9f\x98",
        b"\xc0\xaf over-long",
    ):
        for size in (1, 2, 3, 5):
            decoder = TextDecoder()
            pieces = [decoder.feed(raw[at : at + size]) for at in range(0, len(raw), size)]
            assert "".join([*pieces, decoder.flush()]) == raw.decode("utf-8", "replace")
            for piece in pieces:
                piece.encode()


@catches("a-stop-in-one-piece-only")
def test_l110_a_stop_string_is_found_across_tokens_and_never_shown() -> None:
    text = "one two  three\n\nSTOP four ⛔ five"
    for stops in (["STOP"], ["two  t", "two"], ["⛔"], ["\n\n"], ["ee\n\nS", "e f", "one"]):
        whole = text[: min(text.find(stop) for stop in stops if stop in text)]
        for size in range(1, 8):
            matcher = StopMatcher(stops)
            shown = ""
            for at in range(0, len(text), size):
                if matcher.hit:
                    break
                shown += matcher.feed(text[at : at + size])
                assert whole.startswith(shown)
            assert shown + matcher.flush() == whole
            assert matcher.hit
