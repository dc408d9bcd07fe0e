"""Prints what the ledgers and the index cost: python -m tests.state.measure."""

import statistics
import time
from collections.abc import Callable

import numpy as np

from state.chain import chain_of
from state.pages import PageLedger
from state.reuse import Match, ReuseIndex
from tests.state.builders import FINGERPRINT, retained

NUM_STATES = 10_000
PROMPT_TOKENS = 131_072
STATE_TOKENS = 2_048
NUM_PAGES = 10_625
VOCABULARY = 150_000


def report(name: str, times: int, call: Callable[[], object]) -> None:
    """Median and worst of some calls, in microseconds."""
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        spent.append(1e6 * (time.perf_counter() - start))
    print(f"{name:56s} median {statistics.median(spent):9.1f} us  best {min(spent):9.1f} us")


def measure_pages() -> None:
    """A pool of 680K tokens, half of it in use."""
    half, _ = PageLedger.empty(NUM_PAGES).take(NUM_PAGES // 2)
    report("take one page of 10,625", 2_000, lambda: half.take(1))
    report("take 720 pages (46K tokens)", 2_000, lambda: half.take(720))
    held, table = half.take(720)
    report("share 720 pages", 2_000, lambda: held.share(table))
    report("drop 720 pages", 2_000, lambda: held.drop(table))


def measure_index(name: str, shared_tokens: Callable[[int], int]) -> None:
    """States that share some of their tokens with one prompt, and that prompt looked up."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, VOCABULARY, PROMPT_TOKENS, dtype=np.int32)
    index = ReuseIndex.empty(FINGERPRINT)
    for id in range(NUM_STATES):
        shared = shared_tokens(id)
        other = rng.integers(0, VOCABULARY, STATE_TOKENS - shared, dtype=np.int32)
        chain = chain_of(np.concatenate([prompt[:shared], other]))
        index = index.insert(retained(id, chain, table=tuple(range(1, STATE_TOKENS // 64 + 1))))
    index = index.insert(retained(NUM_STATES, chain_of(prompt[:STATE_TOKENS])))
    deep = retained(NUM_STATES + 1, chain_of(prompt[: PROMPT_TOKENS - 64]))
    chain = chain_of(prompt)
    for label, held in (("at 2K", index), ("at 128K", index.insert(deep))):
        found = held.longest_match(chain, PROMPT_TOKENS)
        assert isinstance(found, Match), "the measured lookup does not match"
        report(
            f"{name}: longest match {label}",
            200,
            lambda held=held: held.longest_match(chain, PROMPT_TOKENS),  # type: ignore[misc]
        )
    report(
        f"{name}: chain of 128K tokens and longest match",
        30,
        lambda: index.longest_match(chain_of(prompt), PROMPT_TOKENS),
    )
    report(f"{name}: insert", 200, lambda: index.insert(deep))
    report(f"{name}: remove", 200, lambda: index.remove(NUM_STATES // 2))
    report(f"{name}: touch", 200, lambda: index.touch(NUM_STATES // 2, 1.0))
    report(f"{name}: first victim", 20, lambda: next(index.victims(1.0, 1000.0)))


def main() -> None:
    """Everything, with 10,000 states and a prompt of 128K tokens."""
    tokens = np.arange(PROMPT_TOKENS, dtype=np.int32)
    report("chain of 128K tokens", 30, lambda: chain_of(tokens))
    measure_pages()
    measure_index("unrelated states", lambda id: 0)
    measure_index("states that part late", lambda id: 1_024 + id % 1_000)


if __name__ == "__main__":
    main()
