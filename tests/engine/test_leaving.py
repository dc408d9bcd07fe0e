"""A request that leaves before its prompt was read leaves what it has read, wherever it stood."""

from collections.abc import Callable

from ignisd.engine.types import Phase
from state.retained import Kind
from state.spec import PAGE_TOKENS, Class
from tests.engine.below import Tiered
from tests.engine.harness import words

PROMPT = words(3000, 1)
READ_TOKENS = 1600

Reached = Callable[[Tiered, int], bool]


def _is(phase: Phase) -> Reached:
    return lambda harness, key: harness.phase(key) is phase


def _chosen(harness: Tiered, key: int) -> bool:
    return _is(Phase.EVICTING)(harness, key) and harness.world.sequences[key].stored_id is None


def _sinking(harness: Tiered, key: int) -> bool:
    return _is(Phase.EVICTING)(harness, key) and harness.world.sequences[key].moved_pages > 1


def _sent(harness: Tiered, key: int) -> bool:
    return _is(Phase.EVICTING)(harness, key) and bool(harness.tiers.landings)


def _rising(harness: Tiered, key: int) -> bool:
    return _is(Phase.RESTORING)(harness, key) and harness.world.sequences[key].moved_pages > 0


PLACES: dict[str, Reached] = {
    "reading": _is(Phase.PREFILLING),
    "chosen": _chosen,
    "between windows": _sinking,
    "all sent": _sent,
    "below": _is(Phase.EVICTED),
    "rising": _rising,
}


def left(place: str) -> Tiered:
    """An agent that read half of its prompt, gave way to a person, and left at some place."""
    harness = Tiered(num_lanes=1, window_pages=4, chunk_tokens=64, num_cells=300)
    agent = harness.submit(PROMPT, max_tokens=3, cls=Class.AGENT)
    harness.until(lambda: harness.rows(agent) >= READ_TOKENS)
    person = None
    for _ in range(400):
        if PLACES[place](harness, agent):
            break
        if person is None:
            person = harness.submit(words(80, 2), max_tokens=20)
        harness.turn()
    else:
        raise AssertionError(f"it never was {place}: {harness.phases()}")
    harness.cancel(agent)
    harness.drain()
    harness.settle()
    if person is not None:
        harness.assert_cold(person)
    return harness


def test_what_was_read_serves_the_retry_wherever_it_stood() -> None:
    for place in PLACES:
        harness = left(place)
        assert harness.world.counters.captured[Kind.INTERRUPTED] == 1, place
        finish = harness.ask(PROMPT)
        assert finish.cached_tokens >= READ_TOKENS - PAGE_TOKENS, place
        assert finish.reuse.kind is Kind.INTERRUPTED, place
        harness.assert_leak_free()


def test_who_asked_for_no_reuse_leaves_nothing_below() -> None:
    harness = Tiered(num_lanes=1, window_pages=4, chunk_tokens=64, num_cells=300)
    agent = harness.submit(PROMPT, max_tokens=3, cls=Class.AGENT, reuse=False)
    harness.until(lambda: harness.rows(agent) >= READ_TOKENS)
    harness.submit(words(80, 2), max_tokens=5)
    harness.until_phase(Phase.EVICTED, agent)
    harness.cancel(agent)
    harness.drain()
    harness.settle()
    assert harness.world.counters.captured[Kind.INTERRUPTED] == 0
    assert not any(one.kind is Kind.INTERRUPTED for one in harness.arena.index)
    assert harness.ask(PROMPT).cached_tokens == 0
    harness.assert_leak_free()


def test_a_flush_takes_what_is_still_on_its_way() -> None:
    harness = Tiered(num_lanes=1, window_pages=1, chunk_tokens=64, num_cells=300)
    agent = harness.submit(PROMPT, max_tokens=3, cls=Class.AGENT)
    harness.until(lambda: harness.rows(agent) >= READ_TOKENS)
    harness.submit(words(80, 2), max_tokens=3)
    harness.until(lambda: _sinking(harness, agent))
    harness.cancel(agent)
    assert harness.world.sinking
    harness.flush()
    harness.drain()
    assert harness.ask(PROMPT).cached_tokens == 0
    harness.assert_leak_free()
