"""What the scheduler promises of the tiers below, one promise at a time."""

from collections.abc import Callable
from functools import partial

import pytest

from ignisd.engine import scheduler
from ignisd.engine.types import FinishReason, Phase
from state.retention import Marks
from state.spec import Class
from tests.engine.below import Tiered
from tests.engine.harness import words

AGENT = Class.AGENT


def stands(harness: Tiered, request_id: int, phase: Phase) -> bool:
    """Whether a request is in a phase."""
    return harness.phase(request_id) is phase


def hold(harness: Tiered, request_id: int, held: bool) -> None:
    """A reader falls behind, or goes on."""
    harness.world = scheduler.hold(harness.world, request_id, held)


def evicted(harness: Tiered, max_tokens: int = 60, person_tokens: int = 25) -> tuple[int, int]:
    """An agent's request that lies below, and the person's that took its place."""
    agent = harness.submit(words(200, 1), max_tokens=max_tokens, cls=AGENT, reuse=False)
    harness.until_stepped(agent, 5)
    person = harness.submit(words(80, 2), max_tokens=person_tokens)
    harness.until_phase(Phase.EVICTED, agent)
    return agent, person


# Who gives way.


def test_a_person_at_the_door_takes_the_lane_of_the_latest_agent() -> None:
    harness = Tiered(num_lanes=2)
    agents = [harness.submit(words(90, who), max_tokens=60, cls=AGENT) for who in range(2)]
    harness.until(lambda: all(harness.stepped(one) > 3 for one in agents))
    person = harness.submit(words(80, 5), max_tokens=10)
    harness.until_phase(Phase.EVICTED, agents[1])
    assert stands(harness, agents[0], Phase.DECODING)
    assert harness.phase(person) in (Phase.PREFILLING, Phase.DECODING)
    harness.drain()
    harness.assert_cold()
    harness.assert_leak_free()


def test_who_still_reads_its_prompt_goes_before_who_decodes() -> None:
    harness = Tiered(num_lanes=2, chunk_tokens=64, max_context=4096, num_pages=300)
    reading = harness.submit(words(3000, 1), max_tokens=5, cls=AGENT)
    harness.until(lambda: harness.rows(reading) > 200)
    harness.now_ms += 1.0
    decoding = harness.submit(words(60, 2), max_tokens=200, cls=AGENT)
    harness.world = scheduler.cancel(harness.world, reading, harness.now_ms)
    harness.until_stepped(decoding, 3)
    late = harness.submit(words(3000, 3), max_tokens=5, cls=AGENT)
    harness.until(lambda: harness.rows(late) > 100)
    harness.submit(words(80, 4), max_tokens=3)
    harness.until_phase(Phase.EVICTED, late)
    assert stands(harness, decoding, Phase.DECODING)
    harness.drain()
    harness.assert_cold(decoding, late)


def test_nobody_gives_way_to_its_own_class_or_to_an_agent() -> None:
    for running, coming in ((Class.INTERACTIVE, AGENT), (AGENT, AGENT), (Class.INTERACTIVE,) * 2):
        harness = Tiered(num_lanes=1)
        first = harness.submit(words(90, 1), max_tokens=40, cls=running)
        harness.until_stepped(first, 3)
        later = harness.submit(words(90, 2), max_tokens=3, cls=coming)
        harness.drain()
        harness.assert_cold(first, later)
        assert list(harness.finishes) == [first, later]
        assert harness.world.counters.evictions == 0


def test_nobody_gives_way_to_a_request_that_would_not_fit_all_the_same() -> None:
    harness = Tiered(num_lanes=3, num_pages=24, max_context=1472, num_cells=100)
    person = harness.submit(words(500, 1), max_tokens=150, reuse=False)
    agent = harness.submit(words(90, 2), max_tokens=100, cls=AGENT, reuse=False)
    harness.until_stepped(agent, 5)
    large = harness.submit(words(1200, 3), max_tokens=3, reuse=False)
    harness.until(lambda: agent in harness.finishes)
    assert harness.world.counters.evictions == 0
    harness.drain()
    harness.assert_cold(person, agent, large)


def test_one_sequence_goes_down_at_a_time() -> None:
    harness = Tiered(num_lanes=3, window_pages=1, num_pages=120)
    agents = [harness.submit(words(500, who), max_tokens=90, cls=AGENT) for who in range(3)]
    harness.until(lambda: all(harness.stepped(one) > 3 for one in agents))
    for who in range(3):
        harness.submit(words(90, 10 + who), max_tokens=30)
    for _ in range(60):
        harness.turn()
        phases = [harness.phase(one) for one in agents]
        assert phases.count(Phase.EVICTING) <= 1
    harness.drain()
    harness.assert_cold()
    harness.assert_leak_free()


def test_a_parked_person_gets_its_page_from_an_agent() -> None:
    harness = Tiered(
        num_lanes=2, num_pages=17, max_context=1024, step_tokens=64, headroom_steps=0, num_cells=60
    )
    person = harness.submit(words(400, 1), max_tokens=200, reuse=False)
    agent = harness.submit(words(300, 2), max_tokens=300, cls=AGENT, reuse=False)
    harness.until_phase(Phase.EVICTED, agent)
    assert harness.world.counters.parks >= 1
    harness.drain()
    harness.assert_cold(person, agent)
    assert harness.finishes[person].evictions == 0
    harness.assert_leak_free()


def test_a_lane_that_waits_for_a_page_may_give_way_itself() -> None:
    harness = Tiered(
        num_lanes=2, num_pages=17, max_context=1024, step_tokens=64, headroom_steps=0, num_cells=60
    )
    agents = [
        harness.submit(words(400, who), max_tokens=300, cls=AGENT, reuse=False) for who in range(2)
    ]
    harness.until_phase(Phase.EVICTED, agents[1])
    harness.drain()
    harness.assert_cold(*agents)
    assert [harness.finishes[one].evictions for one in agents] == [0, 1]
    assert harness.world.counters.unplaced == 0


# Who goes on, and when.


def test_the_evicted_go_on_in_the_order_of_their_class_and_arrival() -> None:
    harness = Tiered(num_lanes=2)
    agents = [harness.submit(words(90, who), max_tokens=60, cls=AGENT) for who in range(2)]
    harness.until(lambda: all(harness.stepped(one) > 3 for one in agents))
    people = [harness.submit(words(80, 10 + who), max_tokens=20) for who in range(2)]
    harness.until(lambda: all(stands(harness, one, Phase.EVICTED) for one in agents))
    harness.now_ms += 5.0
    later = harness.submit(words(80, 20), max_tokens=2, cls=AGENT)
    harness.cancel(people[1])
    harness.until(lambda: harness.phase(agents[0]) is not Phase.EVICTED)
    assert stands(harness, agents[1], Phase.EVICTED)
    while stands(harness, agents[1], Phase.EVICTED):
        assert harness.rows(later) == 0
        harness.turn()
    harness.drain()
    harness.assert_cold(people[0], *agents, later)


def test_an_evicted_person_takes_its_place_from_agents() -> None:
    """An agent that could not be moved when a person had to give way makes room for it later."""
    harness = Tiered(
        num_lanes=3,
        num_pages=30,
        num_host_slots=1,
        num_cells=90,
        image_cells=1,
        max_context=1600,
        step_tokens=64,
        headroom_steps=0,
        ahead_tokens=0,
    )
    known = words(800, 3)
    harness.ask(known, marks=Marks(opener=800), cls=AGENT)
    harness.ask(words(70, 4), marks=Marks(opener=70))
    harness.window(0)
    first = harness.submit(words(400, 1), max_tokens=200, reuse=False)
    harness.now_ms += 1.0
    second = harness.submit(words(300, 2), max_tokens=300, reuse=False)
    harness.until_stepped(first, 106)
    agent = harness.submit(known, marks=Marks(opener=800), max_tokens=700, cls=AGENT)
    harness.until_phase(Phase.EVICTED, second)
    assert stands(harness, agent, Phase.RESTORING)
    harness.until(lambda: harness.phase(agent) in (Phase.EVICTING, Phase.EVICTED))
    harness.drain()
    harness.assert_cold(first, second, agent)
    assert list(harness.finishes).index(agent) == 4
    harness.assert_leak_free()


def test_a_sequence_whose_reader_is_behind_does_not_go_on_and_holds_nobody_up() -> None:
    harness = Tiered(num_lanes=1)
    agent, person = evicted(harness)
    hold(harness, agent, held=True)
    harness.until(lambda: person in harness.finishes)
    other = harness.submit(words(80, 5), max_tokens=10, cls=AGENT)
    harness.until(lambda: other in harness.finishes)
    assert stands(harness, agent, Phase.EVICTED)
    for _ in range(5):
        harness.turn()
    assert stands(harness, agent, Phase.EVICTED)
    hold(harness, agent, held=False)
    harness.drain()
    harness.assert_cold()


def test_a_reader_that_falls_behind_on_the_way_is_waited_for_in_the_lane() -> None:
    harness = Tiered(num_lanes=1, window_pages=1)
    agent, _ = evicted(harness)
    harness.until_phase(Phase.RESTORING, agent)
    hold(harness, agent, held=True)
    harness.until_phase(Phase.DECODING, agent)
    stepped = harness.stepped(agent)
    for _ in range(5):
        harness.turn()
    assert harness.stepped(agent) == stepped
    hold(harness, agent, held=False)
    harness.drain()
    harness.assert_cold()


# Ends on the way.


def test_a_stop_that_arrives_on_the_way_down_is_an_end() -> None:
    probe = Tiered(num_lanes=1)
    key = probe.submit(words(90, 1), max_tokens=40)
    probe.drain()
    said = probe.answers[key]
    for at in range(8, 20):
        stop = frozenset({said[at]} - set(said[:at]))
        if not stop:
            continue
        harness = Tiered(num_lanes=1, window_pages=1)
        agent = harness.submit(words(90, 1), max_tokens=40, cls=AGENT, stop_ids=stop)
        harness.until_stepped(agent, at)
        harness.submit(words(80, 2), max_tokens=3)
        seen = set()
        while agent in harness.world.sequences:
            seen.add(harness.phase(agent))
            harness.turn()
        assert harness.finishes[agent].reason is FinishReason.STOP
        harness.drain()
        harness.assert_cold()
        harness.assert_leak_free()


def test_an_answer_that_ends_by_its_length_on_the_way_down_is_whole() -> None:
    for length in range(6, 14):
        harness = Tiered(num_lanes=1, window_pages=1)
        agent = harness.submit(words(90, 1), max_tokens=length, cls=AGENT)
        harness.until_stepped(agent, 6 if length > 6 else 5)
        harness.submit(words(80, 2), max_tokens=3)
        harness.drain()
        harness.assert_cold()
        assert harness.finishes[agent].generated_tokens == length
        harness.assert_leak_free()


def test_a_request_for_no_tokens_can_give_way_too() -> None:
    harness = Tiered(num_lanes=1, chunk_tokens=64, window_pages=1)
    agent = harness.submit(words(600, 1), marks=Marks(opener=600), max_tokens=0, cls=AGENT)
    harness.until(lambda: harness.rows(agent) > 200)
    harness.submit(words(80, 2), max_tokens=5)
    harness.until_phase(Phase.EVICTED, agent)
    harness.drain()
    finish = harness.finishes[agent]
    assert (finish.reason, finish.generated_tokens, finish.evictions) == (
        FinishReason.LENGTH,
        0,
        1,
    )
    assert harness.rows(agent) == 600
    assert harness.ask(words(600, 1), marks=Marks(opener=600)).cached_tokens == 576
    harness.assert_leak_free()


def _in_arena(harness: Tiered, agent: int) -> bool:
    stored_id = harness.world.sequences[agent].stored_id
    in_arena = stored_id is not None and stored_id in harness.arena.index
    return in_arena and stands(harness, agent, Phase.EVICTED)


def _in_file(harness: Tiered, agent: int) -> bool:
    return stands(harness, agent, Phase.EVICTED) and not _in_arena(harness, agent)


PLACES: dict[str, Callable[[Tiered, int], bool]] = {
    "queued": partial(lambda phase, h, a: stands(h, a, phase), Phase.QUEUED),
    "reading": partial(lambda phase, h, a: stands(h, a, phase), Phase.PREFILLING),
    "decoding": partial(lambda phase, h, a: stands(h, a, phase), Phase.DECODING),
    "chosen": lambda h, a: stands(h, a, Phase.EVICTING) and h.world.sequences[a].stored_id is None,
    "windows": lambda h, a: stands(h, a, Phase.EVICTING) and h.world.sequences[a].moved_pages > 1,
    "in host memory": _in_arena,
    "being written": lambda h, a: _in_arena(h, a) and bool(h.tiers.writing),
    "in a file": _in_file,
    "file being read": lambda h, a: stands(h, a, Phase.RESTORING) and bool(h.tiers.reading),
    "rising": lambda h, a: stands(h, a, Phase.RESTORING) and h.world.sequences[a].moved_pages > 0,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_request_that_leaves_gives_everything_back(place: str) -> None:
    on_disk = place in ("being written", "in a file", "file being read")
    harness = Tiered(
        num_lanes=1,
        window_pages=1,
        chunk_tokens=64,
        disk_bytes=1 << 22 if on_disk else None,
        low_cells=200 if on_disk else 0,
    )
    if place == "queued":
        harness.submit(words(70, 9), max_tokens=5)
    agent = harness.submit(words(300, 1), max_tokens=90, cls=AGENT)
    person = None
    for _ in range(300):
        if PLACES[place](harness, agent):
            break
        if harness.stepped(agent) >= 5 and person is None:
            person = harness.submit(words(80, 2), max_tokens=30)
        harness.slow_files = bool(harness.tiers.writing or harness.tiers.reading) and (
            place.startswith(("being", "file"))
        )
        harness.turn()
        if place == "being written" and harness.orders:
            harness.slow_files = True
    else:
        raise AssertionError(f"it never was {place}: {harness.phases()}")
    harness.cancel(agent)
    assert harness.finishes[agent].reason is FinishReason.CANCELLED
    harness.slow_files = False
    harness.drain()
    if person is not None:
        harness.assert_cold(person)
    harness.assert_leak_free()
