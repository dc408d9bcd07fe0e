"""Conversations whose every prompt is known beforehand, and what is answered to them cold.

Each prompt ends with a question for a fact that was told in an earlier turn or in the system block.
The embedded model has learnt to answer these, so an answer tells whether what was reused is right.
What the assistant has said is scripted, so that a prompt does not depend on any answer and each
answer can be held against a cold one, whoever asked for it and whatever happened meanwhile.
"""

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx

from ignisd.ember.english import sentence
from ignisd.ember.facts import Fact
from ignisd.ember.forms import draw_fact

PATH = "/v1/chat/completions"
TIMEOUT_S = 120.0

SHAPE = (
    *("--spec-decode-lanes", "2", "--model-max-context", "2048", "--vram-kv-pool-bytes", "6000tok"),
    *("--reuse-retained-device", "1", "--reuse-retained-host", "3"),
)
"""A daemon with so little room that what it retains moves all the time. All benches that press
one start it like this: its programs are compiled once."""

EVERYTHING_PAYS = ("--reuse-kv-ram-floor", "64", "--kv-disk-floor", "64")
"""Whatever lies below is restored: a small model reads so fast that it would never pay."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is said, in words.

    Args:
        system: in the system block, which several conversations share, beside its facts.
        user: in a message of the user, likewise.
        answer_tokens: that are asked for.
    """

    system: int = 60
    user: int = 90
    answer_tokens: int = 16


@dataclass(frozen=True)
class Ask:
    """One request: a turn of a conversation.

    Args:
        seed: of all texts.
        talk: which conversation; each four share a system block.
        turn: counted from 0.
        cls: the class that it asks for.
    """

    seed: str
    talk: int
    turn: int
    sizes: Sizes = Sizes()
    cls: str = "interactive"

    @cached_property
    def messages(self) -> list[dict[str, str]]:
        """What is said so far: in each turn a fact is told and one of before is asked for."""
        told = random.Random(f"{self.seed} system {self.talk // 4}")
        facts: list[Fact] = []
        for _ in range(2):
            facts.append(_new_fact(told, facts))
        stated = " ".join(fact.statement(told) for fact in facts)
        said = [
            ("system", f"You are a helpful assistant. {stated} {_talk(told, self.sizes.system)}")
        ]
        told = random.Random(f"{self.seed} talk {self.talk}")
        for _ in range(self.turn + 1):
            asked = told.choice(facts)
            facts.append(_new_fact(told, facts))
            text = f"{facts[-1].statement(told)} {_talk(told, self.sizes.user)}"
            said.append(("user", f"{text} {asked.question(told)}"))
            said.append(("assistant", asked.answer))
        return [{"role": role, "content": text} for role, text in said[:-1]]

    def body(self, **fields: object) -> dict[str, Any]:
        """The body of the request."""
        return {
            "messages": self.messages,
            "class": self.cls,
            "max_tokens": self.sizes.answer_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "return_reuse": True,
            **fields,
        }


@dataclass(frozen=True, slots=True)
class Told:
    """An answer and what it says of itself.

    Args:
        said: the text, and why it ended.
        prompt, cached: tokens.
        tier, kind: of the state that it resumed from, if any.
        miss: why it reused nothing, or not more.
    """

    said: tuple[str, str]
    prompt: int
    cached: int
    tier: str | None
    kind: str | None
    miss: str | None


class AnswerError(Exception):
    """A request was answered by an error, or not as the protocol has it."""


def ask(client: httpx.Client, one: Ask, **fields: object) -> Told:
    """The answer to one request.

    Raises:
        httpx.TransportError: nobody answers any more.
        AnswerError: an error came back.
    """
    answer = client.post(PATH, json=one.body(**fields))
    if answer.status_code != 200:
        raise AnswerError(f"status {answer.status_code}: {answer.text[:300]}")
    return told(answer.json())


def told(answer: Mapping[str, Any]) -> Told:
    """What an answer's body tells."""
    usage, reuse, choice = answer["usage"], answer["ignis_reuse"], answer["choices"][0]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    if cached != reuse["cached_tokens"]:
        raise AnswerError(f"usage has {cached} cached tokens, ignis_reuse {reuse}")
    tier = reuse["tier"]
    return Told(
        said=(choice["message"]["content"], choice["finish_reason"]),
        prompt=usage["prompt_tokens"],
        cached=cached,
        tier=f"{tier} ({reuse['slot']})" if reuse["slot"] else tier,
        kind=reuse["kind"],
        miss=reuse["miss_reason"] or reuse["shortfall"],
    )


def cold_answers(url: str, asks: Sequence[Ask], at_once: int = 4) -> dict[tuple[int, int], Told]:
    """What is answered to each request with nothing reused and nothing left, by talk and turn.

    Raises:
        ValueError: the answers hardly depend on the prompts, so that equal ones would tell nothing.
    """
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:

        def cold(one: Ask) -> Told:
            answer = ask(client, one, reuse=False)
            assert answer.cached == 0, f"{answer.cached} tokens reused for a cold answer"
            return answer

        with ThreadPoolExecutor(at_once) as threads:
            answers = list(threads.map(cold, asks))
    found = {(one.talk, one.turn): answer for one, answer in zip(asks, answers, strict=True)}
    distinct = len({answer.said for answer in found.values()})
    if distinct < len(found) / 3:
        raise ValueError(f"{distinct} different answers to {len(found)} prompts tell nothing")
    return found


def _new_fact(rng: random.Random, known: Sequence[Fact]) -> Fact:
    """A fact that contradicts none of those told."""
    keys = {fact.key for fact in known}
    return next(fact for fact in iter(lambda: draw_fact(rng, False), None) if fact.key not in keys)


def _talk(rng: random.Random, num_words: int) -> str:
    """Talk of no consequence."""
    text = ""
    while len(text.split()) < num_words:
        text = f"{text} {sentence(rng)}".strip()
    return text
