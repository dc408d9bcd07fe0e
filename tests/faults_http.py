"""Faults between the socket and the engine: who has left, what is refused, and what is counted."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ignisd import connections
from ignisd.chat import arguments
from ignisd.chat.tokenizer import ChatTokenizer
from ignisd.connections import Connection, Http1
from ignisd.http.counters import HttpCounters
from ignisd.http.intake import Intake
from tests.planting import mutant

Plant = AbstractContextManager[Any]


@mutant
def what_is_ahead_stops_the_reading() -> Plant:
    """A connection is not read on while bytes wait behind the request under way."""
    return patch.object(connections, "_AHEAD_BYTES", -1)


@mutant
def an_end_is_a_leaving() -> Plant:
    """A client that has closed its own side counts as gone."""

    async def answer_on(self: Connection) -> None:
        return

    return patch.object(Connection, "_answer_on", answer_on)


@mutant
def nobody_is_probed() -> Plant:
    """A client that has closed its own side is never asked whether it is still there."""

    async def probe(self: Http1) -> bool:
        return True

    return patch.object(Http1, "probe", probe)


@mutant
def framed_twice_is_taken() -> Plant:
    """A request whose length is told twice is served by one of the two."""
    return patch.object(connections, "_FRAMING", (b"content-length", b"no-such-header"))


@mutant
def long_prompts_are_tokenized_whole() -> Plant:
    """Megabytes are tokenized to tell by how much they are too long."""
    return patch.object(ChatTokenizer, "at_least", lambda self, text, limit: None)


@mutant
def a_bound_that_is_none() -> Plant:
    """The bytes of a text are taken for its tokens."""

    def at_least(self: ChatTokenizer, text: str, limit: int) -> int | None:
        return len(text) if len(text) >= limit else None

    return patch.object(ChatTokenizer, "at_least", at_least)


@mutant
def refusals_are_not_counted() -> Plant:
    """Only what the engine turns away counts as refused."""
    return patch.object(HttpCounters, "count_refusal", HttpCounters.count_error)


@mutant
def schemas_are_followed_without_end() -> Plant:
    """Nothing bounds how much of a tool's schema is read."""
    return patch.object(arguments, "_MAX_PARTS", 1 << 60)


@mutant
def answers_share_a_seed() -> Plant:
    """Several answers to one request are all drawn alike."""
    real = Intake.engine_requests

    def engine_requests(self: Intake, *given: Any) -> Any:
        wanted = real(self, *given)
        first = wanted[0].sampling
        return tuple(replace(each, sampling=first) for each in wanted)

    return patch.object(Intake, "engine_requests", engine_requests)
