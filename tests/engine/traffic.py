"""Prompts of random traffic, which grow out of each other."""

import random
from dataclasses import dataclass

from ignisd.engine.types import SamplingParams
from ignisd.engine.world import Limits
from state.retention import Marks
from state.spec import PAGE_TOKENS
from tests.fake_device import VOCABULARY, cold_answer


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation."""

    tokens: tuple[int, ...]
    marks: Marks


def sampling_of(rng: random.Random, request_id: int) -> SamplingParams:
    """A draw, now and then with penalties that look at what was said before."""
    return SamplingParams(
        seed=rng.choice((0, 0, 5)),
        frequency_penalty=0.5 * (request_id % 4 == 0),
        repetition_penalty=1.5 if request_id % 6 == 0 else 1.0,
    )


class Traffic:
    """Prompts that grow out of each other: systems, turns, retries, forks, edits."""

    def __init__(self, rng: random.Random, max_context: int) -> None:
        self.rng = rng
        self.longest = max_context - 8
        self.scale = rng.choice((0.25, 1.0))
        self.systems = [self._words(self._upto(260)) for _ in range(2)]
        self.seen: list[Prompt] = []

    def _words(self, count: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(VOCABULARY) for _ in range(count))

    def _upto(self, most: int) -> int:
        return self.rng.randint(1, max(int(most * self.scale), 1))

    def next(self) -> Prompt:
        """A new conversation, a turn more, the same again, or an edited tail."""
        rng = self.rng
        kind = rng.random()
        if not self.seen or kind < 0.25:
            prompt = self._fresh()
        else:
            known = rng.choice(self.seen[-6:])
            if kind < 0.6:
                prompt = self._next_turn(known)
            elif kind < 0.8:
                prompt = known
            else:
                prompt = self._edited(known)
        self.seen.append(prompt)
        return prompt

    def _fresh(self) -> Prompt:
        rng = self.rng
        if rng.random() < 0.2:
            tokens = self._words(rng.choice((1, 2, 63, 64, 65, 128, 129, self._upto(400))))
            return self._cut(tokens, Marks())
        system = rng.choice(self.systems)
        tokens = system + self._words(self._upto(400))
        marks = Marks(len(system), len(tokens), len(tokens))
        return self._cut(tokens, marks)

    def _next_turn(self, known: Prompt) -> Prompt:
        answer = cold_answer(known.tokens, SamplingParams(), self.rng.randint(0, 40), frozenset())
        tokens = known.tokens + tuple(answer) + self._words(self._upto(150))
        turn_open = len(tokens) if self.rng.random() < 0.5 else known.marks.turn_open
        return self._cut(tokens, Marks(known.marks.system_end, turn_open, len(tokens)))

    def _edited(self, known: Prompt) -> Prompt:
        keep = self.rng.randint(0, len(known.tokens) - 1)
        tokens = known.tokens[:keep] + self._words(self._upto(200))
        return self._cut(tokens, Marks(None, len(tokens), len(tokens)))

    def _cut(self, tokens: tuple[int, ...], marks: Marks) -> Prompt:
        tokens = tokens[: self.longest]
        if len(tokens) > PAGE_TOKENS and self.rng.random() < 0.15:
            tokens = tokens[: len(tokens) // PAGE_TOKENS * PAGE_TOKENS]
        limit = len(tokens)

        def within(mark: int | None) -> int | None:
            return None if mark is None else min(mark, limit)

        return Prompt(
            tokens, Marks(within(marks.system_end), within(marks.turn_open), within(marks.opener))
        )


def random_limits(rng: random.Random, tight: bool, max_pages: int, chunk: int) -> Limits:
    """The bounds of a run; `tight` ones leave hardly a page to spare."""
    return Limits(
        num_lanes=rng.choice((3, 4) if tight else (1, 2, 3, 4)),
        max_context=max_pages * PAGE_TOKENS,
        chunk_tokens=chunk,
        max_captures_per_chunk=rng.randint(1, 3),
        decode_share=rng.choice((0, 25, 80)),
        step_tokens=1 if tight else rng.choice((1, 64, 512)),
        headroom_steps=0 if tight else rng.choice((0, 4)),
        ageing_ms=rng.choice((50.0, 60_000.0)),
        ttl_ms=rng.choice((100.0, 300_000.0)),
        single_flight_tokens=rng.choice((64, 192, 512)),
        reuse=rng.random() > 0.04,
    )
