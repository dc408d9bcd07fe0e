"""Conversations whose every prompt is known beforehand, and what is answered to them cold.

What the assistant has said is scripted, so that a prompt does not depend on any answer and each
answer can be held against a cold one, whoever asked for it and whatever happened meanwhile.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx

from ignisd.bench.contender import text_of

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
        system: in the system block, which several conversations share.
        user: in a message of the user.
        assistant: in an answer.
        answer_tokens: that are asked for.
    """

    system: int = 60
    user: int = 90
    assistant: int = 20
    answer_tokens: int = 16


@dataclass(frozen=True)
class Ask:
    """One request: a turn of a conversation.

    Args:
        seed: of all texts.
        talk: which conversation; each third is an agent's, and each four share a system block.
        turn: counted from 0.
    """

    seed: str
    talk: int
    turn: int
    sizes: Sizes = Sizes()

    @property
    def cls(self) -> str:
        """The class that it asks for."""
        return "agent" if self.talk % 3 == 0 else "interactive"

    @cached_property
    def messages(self) -> list[dict[str, str]]:
        """What is said so far."""
        sizes, name = self.sizes, f"{self.seed} {self.talk}"
        said = [("system", text_of(f"{self.seed} system {self.talk // 4}", sizes.system))]
        for turn in range(self.turn + 1):
            said.append(("user", text_of(f"{name} user {turn}", sizes.user)))
            said.append(("assistant", text_of(f"{name} assistant {turn}", sizes.assistant)))
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
    """What is answered to each request with nothing reused and nothing left, by talk and turn."""
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:

        def cold(one: Ask) -> Told:
            answer = ask(client, one, reuse=False)
            assert answer.cached == 0, f"{answer.cached} tokens reused for a cold answer"
            return answer

        with ThreadPoolExecutor(at_once) as threads:
            answers = list(threads.map(cold, asks))
    return {(one.talk, one.turn): answer for one, answer in zip(asks, answers, strict=True)}
