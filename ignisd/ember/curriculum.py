"""Made-up conversations, drawn from a seed: facts told and asked for, tools, JSON, talk."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from ignisd.ember import forms, json_talk, smalltalk, tasks, tool_talk
from ignisd.ember.english import Prose
from ignisd.ember.facts import Fact
from ignisd.ember.talk import Conversation, Level, Message, Talk, assistant, user

__all__ = ["Conversation", "Level", "Message", "assistant", "conversation", "user"]

INVENTED = Prose()


@dataclass(frozen=True, slots=True)
class Focus:
    """What a conversation is mostly about.

    Args:
        weight: how often it is drawn.
        extra_turns: turns between two about facts, beyond what the level gives.
        fillers: weights of the exchanges between turns about facts.
        has_tools: whether tools are offered.
    """

    weight: float
    extra_turns: int
    fillers: tuple[tuple[Callable[[Talk], None], float], ...]
    has_tools: bool = False


MIXTURE = (
    Focus(
        5.0, 0,
        ((tasks.chat, 2.0), (tasks.story, 2.0), (tasks.document, 3.0), (tasks.copy, 0.7),
         (tasks.recite, 0.5), (json_talk.ask_json, 0.3), (tasks.pick, 0.3), (tasks.sums, 0.2)),
    ),
    Focus(1.0, 4, ((tasks.chat, 6.0), (tasks.story, 1.0), (tasks.recite, 0.5), (tasks.sums, 1.0))),
    Focus(
        6.0, 3,
        ((tool_talk.call, 8.0), (tool_talk.ask_result, 1.0), (tasks.chat, 0.7), (tasks.story, 0.5),
         (tasks.document, 0.5)),
        has_tools=True,
    ),
    Focus(
        3.0, 3,
        ((json_talk.ask_json, 8.0), (json_talk.ask_field, 1.5), (tasks.chat, 0.5),
         (tasks.story, 0.5)),
    ),
    Focus(1.0, 3, ((tasks.copy, 6.0), (tasks.pick, 3.0), (tasks.document, 1.0))),
)  # fmt: skip
_CHARS_A_TOOL = 700
"""Length of a conversation for each tool offered beyond the first."""
_FOCUS_WEIGHTS = tuple(focus.weight for focus in MIXTURE)


def conversation(rng: random.Random, level: Level, prose: Prose = INVENTED) -> Conversation:
    """One training conversation: facts told, other talk, questions in random order.

    Args:
        prose: where pasted documents come from.
    """
    focus = rng.choices(MIXTURE, _FOCUS_WEIGHTS)[0]
    talk = Talk(rng, level, prose, thinking=rng.random() < level.thinking_rate)
    wanted = rng.randrange(level.least_chars, level.most_chars + 1) if level.most_chars else 0
    if focus.has_tools:
        most = 1 + (wanted or tasks.DOCUMENT_FROM_CHARS) // _CHARS_A_TOOL
        talk.offer(tool_talk.offer(rng, min(most, rng.choice((1, 1, 2, 2, 3, 4, 6)))))
    _begin(talk)
    pending = forms.draw_facts(rng, rng.randrange(1, level.max_facts + 1), held_out=False)
    questions = rng.randrange(1, level.max_questions + 1)
    if focus.extra_turns and rng.random() < 0.4:
        pending, questions = [], 0
    while True:
        _fill(talk, focus)
        if pending and (not talk.known or rng.random() < 0.5):
            pending = _tell_some(talk, pending)
        elif talk.known and (wanted or questions):
            questions -= 1
            pending += _ask(talk)
        done = talk.num_chars >= wanted if wanted else questions <= 0 and not pending
        if done and talk.messages and talk.messages[-1]["role"] == "assistant":
            break
    tools = tuple(schema.tool() for schema in talk.offered)
    return Conversation(tuple(talk.messages), rng.random() < 0.5, tools, talk.thinking)


def _begin(talk: Talk) -> None:
    """Maybe a system message, which may tell facts itself."""
    rng = talk.rng
    if rng.random() < 0.35:
        text = rng.choice(smalltalk.SYSTEM_PROMPTS)
        if rng.random() < 0.4:
            for fact in forms.draw_facts(rng, rng.randrange(1, 4), held_out=False):
                text += " " + fact.statement(rng)
                talk.known[fact.key] = fact
                talk.mention(fact)
        talk.instruct(text)


def _fill(talk: Talk, focus: Focus) -> None:
    """Some turns of other talk, at least one if nothing else was said."""
    most = talk.level.filler_turns + focus.extra_turns
    count = talk.rng.randrange(bool(focus.extra_turns), most + 1)
    tasks_of, weights = zip(*focus.fillers, strict=True)
    for task in talk.rng.choices(tasks_of, weights, k=count):
        if task is tasks.document and talk.level.most_chars < tasks.DOCUMENT_FROM_CHARS:
            task = tasks.story
        task(talk)


def _tell_some(talk: Talk, pending: list[Fact]) -> list[Fact]:
    """Tells a few of the pending facts, in a message or in a document; returns the others."""
    count = talk.rng.randrange(1, min(3, len(pending)) + 1)
    if len({fact.key for fact in pending[:count]}) < count:
        # Told in one message, the old value and the new one would not stand in order.
        count = 1
    some, others = pending[:count], pending[count:]
    if talk.offered and talk.rng.random() < 0.25:
        tool_talk.tell_by_tool(talk, tuple(some))
    elif talk.level.most_chars >= tasks.DOCUMENT_FROM_CHARS and talk.rng.random() < 0.2:
        tasks.document(talk, tuple(some))
    else:
        tasks.tell(talk, some)
    return others


def _ask(talk: Talk) -> list[Fact]:
    """Asks for a fact, now and then for one that was never told; returns what changes then."""
    rng = talk.rng
    if rng.random() < talk.level.unknown_rate:
        other = forms.draw_fact(rng, held_out=False)
        if other.key not in talk.known:
            tasks.ask_unknown(talk, other)
            return []
    tasks.ask(talk, _next_asked(talk))
    if rng.random() < talk.level.update_rate:
        return [forms.with_other_value(rng, rng.choice(list(talk.known.values())), held_out=False)]
    return []


def _next_asked(talk: Talk) -> Fact:
    """Often one of those not mentioned for longest, never the last if there are others.

    An answer given just above would only have to be copied.
    """
    known = sorted(talk.known.values(), key=lambda fact: talk.mentioned_at[fact.key])
    if len(known) > 1:
        known.pop()
    if talk.rng.random() < 0.6:
        known = known[: max(1, len(known) // 3)]
    return talk.rng.choice(known)
