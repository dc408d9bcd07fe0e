"""What reuse saves and what capturing costs, in one process and interleaved.

usage: python -m tests.bench.spine CHECKPOINT [--reps N]

Prints the time to first token of a cold prompt of 4,096 tokens and of the next turn of the same
conversation, and that of a cold prompt of 1,024 tokens with and without reuse; medians, and the
ratio of the medians. The first tokens' logits of reused and cold turns are compared first: a wrong
answer is not timed.
"""

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ignisd.engine.loop import Engine
from ignisd.engine.types import Finished, Request, SamplingParams, Token
from ignisd.load import load_model
from ignisd.settings import Settings
from state.chain import chain_of
from state.retention import Marks

SYSTEM_TOKENS = 512
TURN_TOKENS = 4096
NEXT_TOKENS = 48
SHORT_TOKENS = 1024
ANSWER_TOKENS = 2


@dataclass(frozen=True, slots=True)
class Answered:
    """Seconds to the first token, cached prompt tokens, and the answer."""

    ttft_s: float
    cached_tokens: int
    tokens: tuple[int, ...]


class Client:
    """Sends prompts of token ids, one at a time."""

    def __init__(self, engine: Engine, vocab_size: int) -> None:
        self._engine = engine
        self._rng = np.random.default_rng(int(time.time()))
        self._vocab_size = vocab_size
        self._number = 0

    def text(self, num_tokens: int) -> np.ndarray:
        """Tokens that nobody has sent before."""
        return self._rng.integers(0, self._vocab_size, num_tokens).astype(np.int32)

    async def ask(self, tokens: np.ndarray, *, reuse: bool = True) -> Answered:
        """One greedy answer."""
        self._number += 1
        opener = len(tokens) - 2
        began_s = time.monotonic()
        request = Request(
            id=self._number,
            name=f"bench-{self._number}",
            chain=chain_of(tokens),
            marks=Marks(
                system_end=SYSTEM_TOKENS,
                turn_open=opener,
                opener=opener,
                message_starts=(0, SYSTEM_TOKENS),
            ),
            sampling=SamplingParams(temperature=0.0),
            max_tokens=ANSWER_TOKENS,
            reuse=reuse,
            arrival_ms=began_s * 1000.0,
        )
        ttft_s, got, cached = 0.0, [], 0
        async with self._engine.submit(request) as stream:
            async for event in stream:
                if isinstance(event, Token):
                    ttft_s = ttft_s or time.monotonic() - began_s
                    got.append(event.token)
                elif isinstance(event, Finished):
                    cached = event.finish.cached_tokens
        return Answered(ttft_s, cached, tuple(got))


async def measure(client: Client, reps: int) -> None:
    """Both comparisons."""
    await client.ask(client.text(TURN_TOKENS))
    cold, warm = [], []
    for _ in range(reps):
        first = client.text(TURN_TOKENS)
        cold.append((await client.ask(first)).ttft_s)
        later = np.concatenate([first, client.text(NEXT_TOKENS)])
        reused = await client.ask(later)
        assert reused.cached_tokens >= TURN_TOKENS - 128, f"only {reused.cached_tokens} reused"
        check = await client.ask(later, reuse=False)
        assert check.cached_tokens == 0, "the comparison was not cold"
        assert check.tokens == reused.tokens, "a reused answer differs from a cold one"
        warm.append(reused.ttft_s)
    report("cold 4,096 tokens", cold)
    report("next turn, reused", warm)
    print(f"cold / reused: {statistics.median(cold) / statistics.median(warm):.1f}")
    kept, plain = [], []
    for _ in range(3 * reps):
        plain.append((await client.ask(client.text(SHORT_TOKENS), reuse=False)).ttft_s)
        kept.append((await client.ask(client.text(SHORT_TOKENS))).ttft_s)
    report("cold 1,024 tokens, reuse off", plain)
    report("cold 1,024 tokens, reuse on", kept)
    print(f"on / off: {statistics.median(kept) / statistics.median(plain):.4f}")


def report(name: str, seconds: list[float]) -> None:
    """Minimum, median and maximum in milliseconds."""
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    print(f"{name:<30} {low * 1e3:9.1f} {middle * 1e3:9.1f} {high * 1e3:9.1f} ms", flush=True)


async def run(checkpoint: Path, reps: int) -> None:
    """Load, measure, stop."""
    settings = Settings(model=str(checkpoint), model_max_context=8192)
    loaded = load_model(settings, {}, lambda: datetime.now(UTC), lambda _: None)
    print(f"exact: {'off: ' + loaded.inexact[0] if loaded.inexact else 'on'}", flush=True)
    engine = Engine(loaded.world, loaded.runner, clock=lambda: time.monotonic() * 1000.0)
    turning = asyncio.create_task(engine.run())
    vocab_size = loaded.runner.device.sampler.seen.shape[1]
    await measure(Client(engine, vocab_size), reps)
    await engine.stop()
    await turning
    loaded.close()


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--reps", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.checkpoint, arguments.reps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
