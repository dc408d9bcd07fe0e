"""A day of agents' traffic through the scheduler: python -m tests.engine.day [--requests 1000000]

Forty agents with subagents send turns of conversations that grow, fork, are retried and left, under
a few system blocks; people come in between. The device answers at once; the scheduler, the ledgers
of the device and of the arena, and the index are the real ones. Every invariant is checked every
few thousand rounds. Prints the processor time, what was reused from where, and the memory that the
process holds after each tenth, which must not grow once the tiers are full.
"""

import argparse
import random
import resource
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ignisd.engine import scheduler
from ignisd.engine.check import check_world
from ignisd.engine.tiers import TierLimits, Tiers
from ignisd.engine.types import Request, SamplingParams
from ignisd.engine.world import Limits, World, new_world
from state.chain import Chain, chain_of
from state.retention import Marks, RetentionPolicy
from state.spec import Class, Fingerprint
from state.tiers.arena import Arena
from tests.engine.measure import answered

DAY_MS = 86_400_000.0
NUM_AGENTS = 40
NUM_SYSTEMS = 6
LONGEST = 1_024
CELL_BYTES = 64
CHECK_EVERY = 5_000
MOST_GROWTH = 1.15
"""Memory after the last tenth to that after the third, at most."""


@dataclass
class Talk:
    """A conversation of an agent: its tokens so far, and where its system block ends."""

    tokens: list[int]
    system_end: int
    turns: int = 0


@dataclass
class Day:
    """One run."""

    num_requests: int
    seed: int = 0
    world: World = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.words = np.random.default_rng(self.seed)
        self.systems = [self._words(96 + 64 * number) for number in range(NUM_SYSTEMS)]
        self.talks = [self._talk() for _ in range(NUM_AGENTS)]
        self.recent: deque[tuple[Chain, Marks]] = deque(maxlen=64)
        self.now_ms = 0.0
        self.memory_bytes: list[int] = []
        arena = Arena.empty(4_096, 2, CELL_BYTES)
        limits = TierLimits(image_bytes=2 * CELL_BYTES, window_bytes=64 * CELL_BYTES)
        self.world = new_world(
            Limits(num_lanes=16, max_context=2 * LONGEST, chunk_tokens=1024),
            RetentionPolicy(),
            Fingerprint.of(test="day"),
            num_pages=1_501,
            num_device_slots=0,
            num_host_slots=32,
            tiers=Tiers(limits, arena),
        )

    def _words(self, count: int) -> list[int]:
        words: list[int] = self.words.integers(0, 30_000, count).tolist()
        return words

    def _talk(self) -> Talk:
        system = self.rng.choice(self.systems)
        return Talk(list(system), len(system))

    def _next(self) -> tuple[Chain, Marks]:
        """The next turn of somebody, a retry, a subagent's first turn, or something new."""
        rng = self.rng
        if self.recent and rng.random() < 0.05:
            return rng.choice(self.recent)
        place = rng.randrange(NUM_AGENTS)
        talk = self.talks[place]
        if len(talk.tokens) > LONGEST - 200 or rng.random() < 0.03:
            talk = self.talks[place] = self._talk()
        elif rng.random() < 0.05:
            talk = self.talks[rng.randrange(NUM_AGENTS)] = Talk(list(talk.tokens), talk.system_end)
        talk.tokens += self._words(rng.randint(8, 120))
        talk.turns += 1
        tokens = len(talk.tokens)
        chosen = chain_of(talk.tokens), Marks(talk.system_end, tokens, tokens)
        self.recent.append(chosen)
        return chosen

    def _request(self, number: int) -> Request:
        chain, marks = self._next()
        return Request(
            id=number,
            name="day",
            chain=chain,
            marks=marks,
            sampling=SamplingParams(),
            max_tokens=self.rng.randint(1, 4),
            cls=Class.INTERACTIVE if self.rng.random() < 0.1 else Class.AGENT,
            arrival_ms=self.now_ms,
        )

    def run(self) -> None:
        """Send all requests and wait for the last."""
        number, under_way, turn = 0, None, 0
        step_ms = DAY_MS / self.num_requests
        while number < self.num_requests or self.world.sequences:
            turn += 1
            while number < self.num_requests and len(self.world.queue) < 8:
                number += 1
                self.now_ms += step_ms
                request = self._request(number)
                self.world = scheduler.submit(self.world, request, self.now_ms)
                if number % 97 == 0:
                    self.world = scheduler.cancel(self.world, number - 5, self.now_ms)
                if number % max(self.num_requests // 10, 1) == 0:
                    self.memory_bytes.append(_resident_bytes())
            self.world, work = scheduler.plan(self.world, self.now_ms)
            if under_way is not None:
                self.world, _ = scheduler.commit(self.world, under_way, self.now_ms)
            self.world, _ = scheduler.take_events(self.world)
            self.world, _ = scheduler.take_notices(self.world)
            under_way = None if work is None else answered(work)
            if turn % CHECK_EVERY == 0:
                check_world(self.world)
        if under_way is not None:
            self.world, _ = scheduler.commit(self.world, under_way, self.now_ms)
        check_world(self.world)


def _resident_bytes() -> int:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> int:
    """Play the day and print what it took; 1 if memory grew."""
    parser = argparse.ArgumentParser(description="A day of agents' traffic.")
    parser.add_argument("--requests", type=int, default=1_000_000)
    asked = parser.parse_args().requests
    began = time.process_time()
    day = Day(asked)
    day.run()
    took_s = time.process_time() - began
    counters = day.world.counters
    lookups = max(counters.queried_tokens, 1)
    print(f"{asked} requests in {took_s / 60:.1f} minutes of processor, {counters.rounds} rounds")
    print(f"{1e6 * took_s / asked:.0f} us a request")
    for name, tokens in (
        ("computed", counters.computed_tokens),
        ("device", counters.device_tokens),
        ("kv_ram", counters.ram_tokens),
    ):
        print(f"{name:<10}{tokens:>14} tokens{100 * tokens / lookups:>7.1f} %")
    print(
        f"demoted {sum(counters.demoted.values())}, evicted {counters.evictions}, "
        f"computed anew {counters.recomputed}, parked {counters.parks}"
    )
    megabytes = [round(one / 1e6) for one in day.memory_bytes]
    print(f"memory after each tenth, MB: {megabytes}")
    grew = len(megabytes) > 3 and megabytes[-1] > MOST_GROWTH * megabytes[2]
    return int(grew)


if __name__ == "__main__":
    sys.exit(main())
