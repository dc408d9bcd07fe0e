"""Requests of an agent through OpenAI's client, each held against its promise."""

import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import openai

from tests.bench.agent_story import Conversation
from tests.bench.promise import Asked, History, Promise, Prompt, read_prompt, single_flight

ANSWER_TOKENS = 24
_TIMEOUT_S = 600.0
_HEADER = "x-ignis-reuse"
_GAVE_WAY = ("evicted", "no_slot", "below_floor")
"""Reasons of a request that would have had more with more slots: a state below the device is left
where it is if it would not save enough."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request.

    Args:
        prompt, cached: tokens, as the answer's usage has them.
        most: tokens that it can have resumed at most.
        kind, tier: of the state that it resumed from, if any, and where it lay.
        why: why it reused nothing, or not more.
        same: whether the answer is the cold one; None where that was not tried.
    """

    who: str
    turn: int
    step: int
    what: str
    prompt: int
    cached: int
    promise: Promise
    most: int
    kind: str | None
    tier: str | None
    why: str | None
    same: bool | None = None

    def verdict(self, used: int, slots: int) -> str:
        """What is wrong with it; "slots" where only the number of slots is, "" for nothing.

        Args:
            used, slots: how many slots held a state at the same time, of how many.
        """
        if self.same is False:
            return "the answer differs from the cold one"
        if self.cached > self.most:
            return f"{self.cached} tokens cached, but at most {self.most} were ever sent before"
        if self.cached >= self.promise.ample:
            return ""
        firm = self.promise.firm if self.promise.needed <= slots else 0
        if self.cached >= firm and used == slots and self.why in _GAVE_WAY:
            return "slots"
        return f"{self.cached} tokens cached, {self.promise.ample} promised ({self.why})"


@dataclass(slots=True)
class Talker:
    """Talks to one daemon and writes down what it answers.

    Args:
        url: where it listens.
        fields: for every request's body.
        cold_tokens: of the prompts of cold answers, which have no rows.
        slots_used, num_slots: most slots that were seen to hold a state, and slots.
        read_before: what the device had read before the first request.
    """

    url: str
    api_key: str = "none"
    fields: Mapping[str, object] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    history: History = field(default_factory=History)
    cold_tokens: int = 0
    slots_used: int = 0
    num_slots: int = 0
    read_before: int = field(init=False)
    _client: openai.OpenAI = field(init=False, repr=False)
    _model: str = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        base = f"{self.url.rstrip('/').removesuffix('/v1')}/v1"
        self._client = openai.OpenAI(
            base_url=base, api_key=self.api_key, max_retries=0, timeout=_TIMEOUT_S
        )
        self._model = self._client.models.list().data[0].id
        self.read_before = self.device_read()

    def __enter__(self) -> "Talker":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _count_slots(self) -> None:
        told: Any = self._client.get("/reuse?limit=1", cast_to=object)
        slots = told["totals"]["slots"]
        with self._lock:
            self.slots_used = max(self.slots_used, slots["used"])
            self.num_slots = slots["total"]

    def device_read(self) -> int:
        """Prompt tokens that the device has read, whoever asked."""
        url = str(self._client.base_url.copy_with(path="/metrics"))
        text = self._client.get(url, cast_to=str)
        found = re.search(r'^ignis_prompt_tokens_total{source="computed"} (\S+)$', text, re.M)
        assert found, "no computed prompt tokens in /metrics"
        return int(float(found[1]))

    def ask(
        self, chat: Conversation, what: str, *, temperature: float = 0.0, check: bool = False
    ) -> str:
        """One request and its row; the answer's text.

        Args:
            check: ask for a cold answer too, and compare.
        """
        prompt = self._rendered(chat)
        with self._lock:
            asked = self.history.ask(prompt)
        row, content = self._answered(chat, what, asked, temperature)
        if check:
            row = replace(row, same=self._cold(chat) == content)
        with self._lock:
            self.rows.append(row)
        return content["content"] or ""

    def ask_together(self, chats: Sequence[Conversation], what: str) -> list[str]:
        """Requests that are sent at once. One of them leads, and the others may wait for it."""
        prompts = [self._rendered(chat) for chat in chats]
        asked = [self.history.ask(prompt) for prompt in prompts]
        together = threading.Barrier(len(chats))

        def send(place: int) -> tuple[Row, dict[str, Any]]:
            together.wait(_TIMEOUT_S)
            return self._answered(chats[place], what, asked[place], 0.0)

        with ThreadPoolExecutor(len(chats)) as threads:
            answers = list(threads.map(send, range(len(chats))))
        rows = [row for row, _ in answers]
        leader = min(range(len(rows)), key=lambda place: rows[place].cached)
        for place, row in enumerate(rows):
            if place != leader:
                follows = single_flight(prompts[leader], prompts[place], row.promise.ample)
                row = replace(row, promise=row.promise.raised_to(follows))
            self.rows.append(row)
        return [content["content"] or "" for _, content in answers]

    def cancel(self, chat: Conversation, what: str) -> None:
        """A streamed request whose reader leaves with the first piece; its prompt was read."""
        with self._lock:
            asked = self.history.ask(self._rendered(chat))
        raw = self._client.chat.completions.with_raw_response.create(
            **self._body(chat), stream=True, extra_body={**self.fields}
        )
        told = raw.headers[_HEADER]
        with raw.parse() as stream:
            next(stream)
            next(stream)
        facts = dict(re.findall(r"(\w+)=(\w+)", told))
        self.rows.append(
            self._row(chat, what, asked, asked.prompt.length, int(facts["cached"]), facts)
        )

    def _answered(
        self, chat: Conversation, what: str, asked: Asked, temperature: float
    ) -> tuple[Row, dict[str, Any]]:
        answer = self._client.chat.completions.create(
            **self._body(chat, temperature), extra_body={"return_reuse": True, **self.fields}
        )
        usage, told = answer.usage, (answer.model_extra or {})["ignis_reuse"]
        cached = usage.prompt_tokens_details.cached_tokens
        assert cached == told["cached_tokens"], f"{usage} and {told}"
        assert usage.prompt_tokens == asked.prompt.length, f"{usage} of {asked.prompt.length}"
        why = told["miss_reason"] or told["shortfall"]
        facts = {"kind": told["kind"], "tier": told["tier"], "miss": why}
        row = self._row(chat, what, asked, usage.prompt_tokens, cached, facts)
        return row, _message(answer)

    def _row(
        self,
        chat: Conversation,
        what: str,
        asked: Asked,
        prompt_tokens: int,
        cached: int,
        facts: Mapping[str, str | None],
    ) -> Row:
        with self._lock:
            most = self.history.answered(asked, cached)
        self._count_slots()
        return Row(
            who=chat.name,
            turn=chat.turn,
            step=chat.step,
            what=what,
            prompt=prompt_tokens,
            cached=cached,
            promise=asked.promise,
            most=most,
            kind=facts.get("kind"),
            tier=facts.get("tier"),
            why=facts.get("miss"),
        )

    def _cold(self, chat: Conversation) -> dict[str, Any]:
        answer = self._client.chat.completions.create(
            **self._body(chat), extra_body={**self.fields, "reuse": False}
        )
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert cached == 0, f"{cached} tokens reused for a cold answer"
        with self._lock:
            self.cold_tokens += answer.usage.prompt_tokens
        return _message(answer)

    def _body(self, chat: Conversation, temperature: float = 0.0) -> dict[str, Any]:
        return {
            "model": f"{self._model}{chat.model}",
            "messages": chat.messages,
            "tools": chat.tools,
            "temperature": temperature,
            "max_tokens": ANSWER_TOKENS,
        }

    def _rendered(self, chat: Conversation) -> Prompt:
        body = {**self._body(chat), "return_token_strs": True}
        told: Any = self._client.post("/tokenize", body=body, cast_to=object)
        return read_prompt(told["tokens"], told["token_strs"])


def _message(answer: Any) -> dict[str, Any]:
    told: dict[str, Any] = answer.choices[0].message.model_dump()
    for call in told["tool_calls"] or ():
        del call["id"]
    return told
