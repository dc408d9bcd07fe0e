"""The idle time of --reuse-retained-interactive-ttl decides who gives way on the device."""

from ignisd.engine import room
from state.retained import DEFAULT_TTL_MS
from state.retention import Marks
from state.spec import Class
from tests.engine.harness import Harness, words

TTLS_MS = (1000.0, 2 * DEFAULT_TTL_MS)


def _after(harness: Harness, idle_ms: float, cls: Class, seed: int) -> None:
    """A request of 100 tokens, asked when so much time has passed."""
    harness.now_ms += idle_ms
    harness.ask(words(100, seed), marks=Marks(opener=100), cls=cls)


def test_an_agent_takes_a_persons_slot_once_the_person_has_left() -> None:
    for ttl_ms in TTLS_MS:
        for idle_ms, taken in ((ttl_ms, False), (ttl_ms + 1.0, True)):
            harness = Harness(num_host_slots=1, ttl_ms=ttl_ms)
            _after(harness, 0.0, Class.INTERACTIVE, 1)
            (held,) = harness.world.index
            _after(harness, held.used_ms + idle_ms - harness.now_ms, Class.AGENT, 2)
            (held,) = harness.world.index
            assert (held.cls is Class.AGENT) is taken, (ttl_ms, idle_ms)


def test_the_state_of_a_person_who_left_goes_before_a_later_one_of_an_agent() -> None:
    for ttl_ms in TTLS_MS:
        harness = Harness(num_host_slots=2, ttl_ms=ttl_ms)
        _after(harness, 0.0, Class.INTERACTIVE, 1)
        _after(harness, 10.0, Class.AGENT, 2)
        person = next(held for held in harness.world.index if held.cls is Class.INTERACTIVE)
        for idle_ms, first in ((ttl_ms, Class.AGENT), (ttl_ms + 1.0, Class.INTERACTIVE)):
            _, goes = next(room.victims(harness.world, person.used_ms + idle_ms))
            assert goes.cls is first, (ttl_ms, idle_ms)
