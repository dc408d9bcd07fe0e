"""Probes: conversations that end with a request whose reply is known, of held-out values and names.

The reply is what greedy decoding has to write, letter by letter.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import Tokenizer

from ignisd.ember import forms, json_talk, smalltalk, tasks, tool_talk
from ignisd.ember.english import Prose
from ignisd.ember.facts import Fact
from ignisd.ember.render import render
from ignisd.ember.schemas import draw_fields
from ignisd.ember.talk import Level, Message, Talk, assistant, user

EVALUATION_SEED = 20_260_101
MOST_NEW_TOKENS = 160
"""That a reply may have."""
_DOCUMENT_TOKENS = 400
"""From so many missing tokens on a document may be pasted in."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A conversation and the message that has to follow.

    Args:
        messages: the last one is to be answered.
        expected: the reply.
        form: the kind of fact, or of the request.
        told_at: index of the message that tells what is asked for; None if the last one does.
        expected_json: what the reply must be as JSON, if it must be JSON.
    """

    messages: tuple[Message, ...]
    expected: Message
    form: str
    tools: tuple[dict[str, Any], ...] = ()
    told_at: int | None = None
    enable_thinking: bool = False
    expected_json: Any = None

    @property
    def prompt(self) -> str:
        """The text before the reply, opener included."""
        return render(self.messages, self.tools, True, self.enable_thinking)

    @property
    def answer(self) -> str:
        """The text of the reply, the end of the turn included."""
        whole = render((*self.messages, self.expected), self.tools)
        return whole[len(self.prompt) :].removesuffix("\n")


@dataclass(frozen=True, slots=True)
class Recall:
    """How recall is probed.

    Args:
        distance_tokens: between the message that tells the fact and the reply.
        has_rivals: all facts told are of one form, about different things.
        is_updated: the fact was told before with another value.
    """

    distance_tokens: int
    has_rivals: bool = False
    is_updated: bool = False
    enable_thinking: bool = False


def recall_probes(
    how: Recall, count: int, tokenizer: Tokenizer, prose: Prose, seed: int = EVALUATION_SEED
) -> list[Probe]:
    """Probes whose fact ends 0.9 to 1.1 times the distance before the reply begins."""
    rng = random.Random(f"{seed}/{how}")
    found: list[Probe] = []
    while len(found) < count:
        drawn = _recall_probe(rng, how, tokenizer, prose)
        if 0.9 <= distance_of(drawn, tokenizer) / how.distance_tokens <= 1.1:
            found.append(drawn)
    return found


def distance_of(probe: Probe, tokenizer: Tokenizer) -> int:
    """Tokens between the message that tells the fact and the reply, the opener included."""
    assert probe.told_at is not None, "only recall has a distance"
    opener = _tokens_of((), tokenizer, opener=True)
    return _tokens_of(probe.messages[probe.told_at + 1 :], tokenizer) + opener


def _tokens_of(messages: tuple[Message, ...], tokenizer: Tokenizer, opener: bool = False) -> int:
    """Tokens of some messages of a conversation that goes on with a user's message."""
    asking = user("")
    text = render((*messages, asking), opener=opener)
    return len(tokenizer.encode(text).ids) - _bare_tokens(tokenizer)


@cache
def _bare_tokens(tokenizer: Tokenizer) -> int:
    return len(tokenizer.encode(render((user(""),))).ids)


def _recall_probe(rng: random.Random, how: Recall, tokenizer: Tokenizer, prose: Prose) -> Probe:
    talk = Talk(rng, Level(most_chars=4 * how.distance_tokens), prose)
    others, asked = _facts_to_tell(rng, how)
    # A system message comes first, so it cannot bring an update.
    weights = (6, 0 if how.is_updated else 2, 1, 1)
    source = rng.choices(("user", "system", "tool", "document"), weights)[0]
    if source == "system":
        talk.instruct(f"{rng.choice(smalltalk.SYSTEM_PROMPTS)} {asked.statement(rng)}")
        told_at = 0
        for fact in others:
            tasks.tell(talk, [fact], asks_back=False)
    elif source == "tool":
        talk.offer(tool_talk.offer(rng, 1))
        for fact in others:
            tasks.tell(talk, [fact], asks_back=False)
        tool_talk.tell_by_tool(talk, (asked,))
        told_at = len(talk.messages) - 2
    else:
        for fact in others:
            tasks.tell(talk, [fact], asks_back=False)
        if source == "document" and how.distance_tokens > _DOCUMENT_TOKENS:
            tasks.document(talk, (asked,))
        else:
            tasks.tell(talk, [asked], asks_back=False)
        told_at = len(talk.messages) - 2
    question = user(asked.question(rng))
    opener = _tokens_of((question,), tokenizer, opener=True)
    reached = _tokens_of(tuple(talk.messages[told_at + 1 :]), tokenizer) + opener
    _fill(talk, how.distance_tokens - reached, tokenizer)
    return Probe(
        (*talk.messages, question),
        _reply(asked.answer, asked.thought if how.enable_thinking else None),
        asked.form.name,
        tuple(schema.tool() for schema in talk.offered),
        told_at,
        how.enable_thinking,
    )


def _facts_to_tell(rng: random.Random, how: Recall) -> tuple[list[Fact], Fact]:
    """The facts to tell first, and the one to ask for."""
    if how.has_rivals:
        asked = next(
            fact for fact in iter(lambda: forms.draw_fact(rng, True), None) if _has_rivals(fact)
        )
        rivals: dict[tuple[str, str], Fact] = {}
        while len(rivals) < 4:
            rival = forms.distractor(rng, asked, True)
            if rival.form is asked.form:
                rivals[rival.key] = rival
        return list(rivals.values()), asked
    others = forms.draw_facts(rng, 3, True)
    asked = others.pop()
    if how.is_updated:
        others.append(forms.with_other_value(rng, asked, True))
    return others, asked


def _has_rivals(fact: Fact) -> bool:
    rng = random.Random(0)
    return len({fact.form.subject(rng) for _ in range(40)}) > 5


def _reply(text: str, thought: str | None) -> Message:
    reply = assistant(text)
    return reply if thought is None else reply | {"reasoning_content": thought}


def _fill(talk: Talk, missing_tokens: int, tokenizer: Tokenizer) -> None:
    """Other talk until `missing_tokens` are there, about; a piece that is too long is dropped."""
    rng = talk.rng
    floor = missing_tokens // 20
    while missing_tokens > floor:
        before = len(talk.messages)
        if missing_tokens > _DOCUMENT_TOKENS and rng.random() < 0.5:
            tasks.document(talk)
        else:
            task: Callable[[Talk], None] = rng.choice((tasks.chat, tasks.story, tasks.copy))
            (tasks.chat if missing_tokens < 60 else task)(talk)
        added = _tokens_of(tuple(talk.messages[before:]), tokenizer)
        if added > missing_tokens + floor + 12:
            del talk.messages[before:]
        else:
            missing_tokens -= added
        if missing_tokens < 25:
            return


def tool_probes(count: int, seed: int = EVALUATION_SEED) -> list[Probe]:
    """Requests for one of some tools that were never seen, in name or parameters."""
    rng = random.Random(f"{seed}/tools")
    return [_tool_probe(rng) for _ in range(count)]


def _tool_probe(rng: random.Random) -> Probe:
    offered = tool_talk.offer(rng, rng.choice((1, 2, 3, 4)), held_out=True)
    asked = tool_talk.request(rng, rng.choice(offered), held_out=True)
    call = {"name": asked.schema.name, "arguments": asked.arguments}
    expected = assistant("") | {"tool_calls": [{"type": "function", "function": call}]}
    tools = tuple(schema.tool() for schema in offered)
    return Probe((user(asked.text),), expected, "call", tools)


def result_probes(count: int, seed: int = EVALUATION_SEED) -> list[Probe]:
    """Answers from the results of such tools."""
    rng = random.Random(f"{seed}/results")
    return [_result_probe(rng) for _ in range(count)]


def _result_probe(rng: random.Random) -> Probe:
    call = _tool_probe(rng)
    fields = draw_fields(rng, set(), rng.choice((1, 2, 3, 4)), held_out=True)
    text, answered = str(call.messages[0]["content"]), fields
    if rng.random() < 0.5:
        text, answered = tool_talk.ask_for_field(rng, text, fields)
    result = {"role": "tool", "content": json.dumps(fields, ensure_ascii=False)}
    return Probe(
        (user(text), call.expected, result),
        assistant(tool_talk.answer_from(answered)),
        "result",
        call.tools,
    )


def json_probes(count: int, seed: int = EVALUATION_SEED) -> list[Probe]:
    """Requests for JSON with values and keys never seen."""
    rng = random.Random(f"{seed}/json")
    return list(_json_probes(rng, count))


def _json_probes(rng: random.Random, count: int) -> Iterator[Probe]:
    for _ in range(count):
        asked = json_talk.task(rng, held_out=True)
        yield Probe(
            (user(asked.text),), assistant(asked.reply), "json", expected_json=asked.expected
        )


def copy_probes(count: int, seed: int = EVALUATION_SEED) -> list[Probe]:
    """Lines to copy."""
    rng = random.Random(f"{seed}/copies")
    probes = []
    for _ in range(count):
        talk = Talk(rng, Level(), Prose())
        tasks.copy(talk, held_out=True)
        probes.append(Probe((talk.messages[0],), talk.messages[1], "copy"))
    return probes
