"""What waiting does for an agent's request, and what it does not."""

from ignisd.engine.types import Phase
from state.spec import Class
from tests.engine.below import Tiered
from tests.engine.harness import words

AGENT = Class.AGENT


def test_an_agent_that_waited_its_turn_is_spared_for_as_long() -> None:
    harness = Tiered(num_lanes=1, ageing_ms=50.0)
    first = harness.submit(words(80, 1), max_tokens=80)
    harness.until_stepped(first, 1)
    agent = harness.submit(words(80, 2), max_tokens=100, cls=AGENT)
    while first in harness.world.sequences:
        harness.turn()
    harness.until_stepped(agent, 5)
    spared_ms = harness.world.sequences[agent].spared_until_ms
    assert spared_ms > harness.now_ms
    person = harness.submit(words(80, 3), max_tokens=3)
    while harness.now_ms < spared_ms:
        assert harness.phase(agent) is Phase.DECODING
        harness.turn()
    harness.until(lambda: person in harness.finishes)
    assert harness.finishes[person].generated_tokens == 3
    assert agent in harness.world.sequences
    harness.drain()
    harness.assert_cold()


def test_an_agent_is_served_although_people_keep_coming() -> None:
    harness = Tiered(num_lanes=1, ageing_ms=60.0)
    agent = harness.submit(words(80, 1), max_tokens=10, cls=AGENT)
    came = 0
    while agent in harness.world.sequences:
        if len(harness.world.queue) < 3:
            harness.submit(words(70, 10 + came), max_tokens=4)
            came += 1
        harness.turn()
        assert harness.now_ms < 400.0
    assert came > 5


def test_an_agent_that_waited_its_time_takes_the_lane_of_who_came_later() -> None:
    harness = Tiered(num_lanes=1, ageing_ms=50.0)
    first = harness.submit(words(80, 1), max_tokens=20)
    agent = harness.submit(words(80, 2), max_tokens=90, cls=AGENT)
    later = harness.submit(words(80, 3), max_tokens=400)
    harness.until(lambda: first in harness.finishes)
    while harness.phase(agent) is Phase.QUEUED:
        assert harness.now_ms < 60.0, "it waits beyond its time and one eviction"
        harness.turn()
    assert harness.now_ms >= 50.0
    assert harness.phase(later) in (Phase.EVICTING, Phase.EVICTED)
    harness.drain()
    harness.assert_cold(first, agent, later)
    evictions = [harness.finishes[one].evictions for one in (first, agent, later)]
    assert evictions[0] == 0
    assert 1 <= evictions[2] <= 1 + harness.now_ms / 50.0, "nobody is moved twice in that time"
    harness.assert_leak_free()


def test_who_came_before_an_agent_gives_way_to_it_never() -> None:
    harness = Tiered(num_lanes=1, ageing_ms=50.0)
    person = harness.submit(words(80, 1), max_tokens=200)
    agent = harness.submit(words(80, 2), max_tokens=3, cls=AGENT)
    harness.drain()
    harness.assert_cold(person, agent)
    assert list(harness.finishes) == [person, agent]
    assert harness.world.counters.evictions == 0


def test_an_agent_that_ran_for_long_stays_away_when_it_has_given_way() -> None:
    """Its time in a lane is no time that it has waited."""
    harness = Tiered(num_lanes=1, ageing_ms=50.0)
    agent = harness.submit(words(80, 1), max_tokens=300, cls=AGENT)
    harness.until_stepped(agent, 100)
    person = harness.submit(words(80, 2), max_tokens=10)
    harness.until(lambda: person in harness.finishes, most=40)
    assert harness.world.counters.evictions == 1
    harness.drain()
    harness.assert_cold(agent, person)
