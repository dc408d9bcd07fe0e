"""Prints what the tiers' ledgers cost: python -m tests.state.tiers.measure."""

import numpy as np

from state.chain import Chain, chain_of
from state.retained import Kind
from state.spec import PAGE_TOKENS, Class
from state.tiers.arena import Arena
from state.tiers.cells import Placement
from state.tiers.index import TierIndex
from state.tiers.stored import Stored
from tests.state.measure import NUM_STATES, PROMPT_TOKENS, VOCABULARY, report

STATE_TOKENS = 512
LONG_PAGES = 720
NUM_CELLS = 100_000
TTL_MS = 300_000.0
NOW_MS = 1e6


def stored(id: int, chain: Chain, used_ms: float, cls: Class = Class.AGENT) -> Stored:
    """A retained state of a whole chain."""
    return Stored(
        id=id,
        chain=chain,
        length=chain.num_tokens,
        num_common=chain.num_tokens // PAGE_TOKENS,
        kind=Kind.CHECKPOINT,
        cls=cls,
        owner=None,
        hits=0,
        used_ms=used_ms,
    )


def some_states(rng: np.random.Generator) -> list[Stored]:
    """Small states, in pairs that share half of their pages, used at random times."""
    states = []
    for id in range(NUM_STATES):
        if not id % 2:
            first = rng.integers(0, VOCABULARY, STATE_TOKENS, dtype=np.int32)
        tokens = first.copy()
        if id % 2:
            tokens[STATE_TOKENS // 2 :] += 1
        used_ms = NOW_MS - float(rng.integers(1, int(2 * TTL_MS)))
        states.append(stored(id, chain_of(tokens), used_ms, list(Class)[id % 3 == 0]))
    return states


def measure_index(states: list[Stored], prompt: Chain) -> None:
    """Changes, look-ups and victims."""
    index = TierIndex.empty()
    for one in states[:-1]:
        index = index.insert(one)
    report("index: insert", 2_000, lambda: index.insert(states[-1]))
    report("index: remove", 2_000, lambda: index.remove(NUM_STATES // 2))
    report("index: touch", 2_000, lambda: index.touch(NUM_STATES // 2, NOW_MS))
    report("index: hold", 2_000, lambda: index.hold(NUM_STATES // 2))
    report("index: first victim", 2_000, lambda: next(index.victims(NOW_MS, TTL_MS)))
    report("index: all victims", 5, lambda: list(index.victims(NOW_MS, TTL_MS)))
    report("index: no match of 128K", 100, lambda: index.longest_match(prompt, PROMPT_TOKENS))
    for name, length in (("shallow", STATE_TOKENS), ("deep", PROMPT_TOKENS - PAGE_TOKENS)):
        held = index.insert(stored(NUM_STATES, prompt.prefix(length), NOW_MS))
        found = held.longest_match(prompt, PROMPT_TOKENS)
        assert found is not None, "the measured lookup does not match"
        assert found.length == length, "the measured lookup matches something else"
        report(
            f"index: longest match of 128K, {name}",
            100,
            lambda held=held: held.longest_match(prompt, PROMPT_TOKENS),  # type: ignore[misc]
        )


def placed(arena: Arena, one: Stored, placement: Placement | None) -> Arena:
    """The arena with a state that a plan has room for."""
    assert placement is not None, f"state {one.id} finds no room"
    return arena.place(one, placement)[0]


def measure_arena(states: list[Stored], prompt: Chain) -> None:
    """A long state among many small ones: placed, landed, sharing, and in place of others."""
    arena = Arena.empty(NUM_CELLS, 2, 65_536)
    for one in states:
        arena = placed(arena, one, arena.plan(one, NOW_MS, TTL_MS)).land(one.id)
    long = stored(NUM_STATES, prompt.prefix(LONG_PAGES * PAGE_TOKENS), NOW_MS)
    plan = arena.plan(long, NOW_MS, TTL_MS)
    assert plan is not None
    assert not plan.victims
    name = "arena: 720 pages"
    report(f"{name}, plan", 500, lambda: arena.plan(long, NOW_MS, TTL_MS))
    report(f"{name}, place", 500, lambda: arena.place(long, plan))
    pending = placed(arena, long, plan)
    report(f"{name}, land", 500, lambda: pending.land(long.id))
    report(f"{name}, abandon", 500, lambda: pending.abandon(long.id))
    landed = pending.land(long.id)
    report(f"{name}, drop", 500, lambda: landed.drop(long.id))
    sibling = stored(NUM_STATES + 1, prompt.prefix((LONG_PAGES - 1) * PAGE_TOKENS), NOW_MS)
    shared = landed.plan(sibling, NOW_MS, TTL_MS)
    assert shared is not None
    assert shared.num_shared == LONG_PAGES - 1
    report(f"{name}, plan of a sibling", 500, lambda: landed.plan(sibling, NOW_MS, TTL_MS))
    report(f"{name}, place a sibling", 500, lambda: landed.place(sibling, shared))
    measure_full(arena, long)


def measure_full(arena: Arena, long: Stored) -> None:
    """An arena with no free cell."""
    filler = stored(
        NUM_STATES + 2,
        chain_of(np.arange((arena.num_free - arena.image_cells) * PAGE_TOKENS, dtype=np.int32)),
        NOW_MS,
        Class.INTERACTIVE,
    )
    full = placed(arena, filler, arena.plan(filler, NOW_MS, TTL_MS)).land(filler.id)
    plan = full.plan(long, NOW_MS, TTL_MS)
    assert plan is not None
    name = f"arena: 720 pages for {len(plan.victims)} victims"
    report(f"{name}, plan", 50, lambda: full.plan(long, NOW_MS, TTL_MS))
    report(f"{name}, place", 50, lambda: full.place(long, plan))
    tokens = np.arange(NUM_CELLS * 9 // 10 * PAGE_TOKENS, dtype=np.int32)
    huge = stored(NUM_STATES + 3, chain_of(tokens[::-1]), NOW_MS)
    assert full.plan(huge, NOW_MS, TTL_MS) is None
    name = "arena: 90,000 pages, for which all that may leave is too little"
    report(name, 5, lambda: full.plan(huge, NOW_MS, TTL_MS))


def main() -> None:
    """Everything, with 10,000 states."""
    rng = np.random.default_rng(0)
    states = some_states(rng)
    prompt = chain_of(rng.integers(0, VOCABULARY, PROMPT_TOKENS, dtype=np.int32))
    measure_index(states, prompt)
    measure_arena(states, prompt)


if __name__ == "__main__":
    main()
