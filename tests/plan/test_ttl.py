"""The idle time of --reuse-retained-interactive-ttl decides who gives way on the device."""

import pytest

from ignisd.engine.room import victims
from state.retained import DEFAULT_TTL_MS
from state.retention import Marks
from state.spec import Class
from tests.engine.harness import Harness, words

TTL_MS = 1000.0


def _after(harness: Harness, idle_ms: float, cls: Class, seed: int) -> None:
    """A request of 100 tokens, asked when the last one's state has been idle for so long."""
    harness.now_ms += idle_ms
    harness.ask(words(100, seed), marks=Marks(opener=100), cls=cls)


@pytest.mark.parametrize("ttl_ms", [TTL_MS, 2 * DEFAULT_TTL_MS])
def test_an_agent_takes_a_persons_slot_once_the_person_has_left(ttl_ms: float) -> None:
    for idle_ms, taken in ((ttl_ms, False), (ttl_ms + 1.0, True)):
        harness = Harness(num_host_slots=1, ttl_ms=ttl_ms)
        _after(harness, 0.0, Class.INTERACTIVE, 1)
        (held,) = harness.world.index
        _after(harness, held.used_ms + idle_ms - harness.now_ms, Class.AGENT, 2)
        (held,) = harness.world.index
        assert (held.cls is Class.AGENT) is taken, idle_ms


@pytest.mark.parametrize("ttl_ms", [TTL_MS, 2 * DEFAULT_TTL_MS])
def test_the_state_of_a_person_who_left_goes_before_a_later_one_of_an_agent(ttl_ms: float) -> None:
    harness = Harness(num_host_slots=2, ttl_ms=ttl_ms)
    _after(harness, 0.0, Class.INTERACTIVE, 1)
    _after(harness, 10.0, Class.AGENT, 2)
    person = next(held for held in harness.world.index if held.cls is Class.INTERACTIVE)
    for idle_ms, first in ((ttl_ms, Class.AGENT), (ttl_ms + 1.0, Class.INTERACTIVE)):
        _, goes = next(victims(harness.world, person.used_ms + idle_ms))
        assert goes.cls is first, idle_ms
