"""Large retained states on their way down, and what may come between."""

from ignisd.engine.stats import NotDemoted
from ignisd.engine.types import Phase, Tier
from state.retention import Marks
from state.spec import Class
from tests.engine.below import Tiered, check_bytes
from tests.engine.harness import words

LARGE = 1000
KEPT = 960


def going_down() -> tuple[Tiered, list[int]]:
    """A harness whose only retained state, of many windows, has begun to go down."""
    harness = Tiered(num_host_slots=1, window_pages=1, num_lanes=2)
    prompt = words(LARGE, 1)
    harness.submit(prompt, marks=Marks(opener=LARGE), max_tokens=40)
    harness.until(lambda: harness.tiers.ahead is not None)
    harness.turn()
    ahead = harness.tiers.ahead
    assert ahead is not None
    assert 0 < ahead.moved_pages < KEPT // 64
    return harness, prompt


def test_a_state_of_many_windows_goes_down_before_its_place_is_wanted() -> None:
    harness, prompt = going_down()
    harness.until(lambda: harness.in_ram(prompt, KEPT) is not None)
    check_bytes(harness)
    assert not harness.on_device(prompt, KEPT), "it is nowhere twice"
    harness.drain()
    finish = harness.ask(prompt, marks=Marks(opener=LARGE))
    assert (finish.cached_tokens, finish.reuse.tier) == (KEPT, Tier.KV_RAM)
    harness.assert_cold()
    harness.assert_leak_free()


def test_a_state_that_is_claimed_on_its_way_stays_on_the_device_as_well() -> None:
    harness, prompt = going_down()
    claim = harness.submit([*prompt, 1], marks=Marks(opener=LARGE + 1), max_tokens=1)
    harness.turn()
    assert harness.world.sequences[claim].position >= KEPT
    harness.until(lambda: harness.in_ram(prompt, KEPT) is not None)
    assert harness.on_device(prompt, KEPT)
    assert harness.ask(prompt, marks=Marks(opener=LARGE)).reuse.tier is Tier.DEVICE
    harness.drain()
    harness.assert_cold()
    harness.assert_leak_free()


def test_a_state_that_is_flushed_on_its_way_leaves_nothing_below() -> None:
    harness, prompt = going_down()
    harness.flush()
    harness.drain()
    harness.settle()
    assert harness.arena.used_bytes == 0
    assert harness.tiers.ahead is None
    assert harness.ask(prompt, marks=Marks(opener=LARGE)).cached_tokens == 0
    harness.assert_leak_free()


def test_a_place_that_is_wanted_before_all_has_gone_down_is_given_at_once() -> None:
    harness, prompt = going_down()
    other = harness.submit(words(300, 2), marks=Marks(opener=300), max_tokens=1)
    harness.until(lambda: other in harness.finishes, most=8)
    assert harness.world.counters.not_demoted[NotDemoted.WINDOW] == 1
    assert not harness.on_device(prompt, KEPT)
    harness.drain()
    harness.settle()
    assert harness.in_ram(prompt, KEPT) is None
    harness.assert_cold()
    harness.assert_leak_free()


def test_nothing_goes_ahead_while_a_sequence_moves_its_windows() -> None:
    harness, prompt = going_down()
    ahead = harness.tiers.ahead
    assert ahead is not None
    harness.submit(words(400, 7), max_tokens=60, cls=Class.AGENT, reuse=False)
    harness.drain()
    harness.assert_cold()
    assert harness.in_ram(prompt, KEPT) is not None
    harness.assert_leak_free()


def test_what_fits_into_a_window_waits_until_its_place_is_wanted() -> None:
    harness = Tiered(num_host_slots=1, window_pages=40)
    prompt = words(300, 1)
    harness.ask(prompt, marks=Marks(opener=300))
    harness.submit(words(70, 5), max_tokens=40, reuse=False)
    harness.drain()
    assert harness.arena.used_bytes == 0
    harness.ask(words(300, 2), marks=Marks(opener=300))
    assert harness.in_ram(prompt, 256) is not None


def test_a_state_that_comes_down_again_is_used_as_lately_as_it_was() -> None:
    harness = Tiered(num_host_slots=1, num_cells=20)
    first, second = words(300, 1), words(300, 2)
    for prompt in (first, second, first, second):
        harness.now_ms += 10.0
        harness.ask(prompt, marks=Marks(opener=300))
    held = harness.in_ram(first, 256)
    assert held is not None
    assert held.hits == 1
    assert held.used_ms > 20.0
    assert harness.world.counters.demoted_present >= 1


def test_a_state_larger_than_the_arena_displaces_nothing() -> None:
    harness = Tiered(num_host_slots=1, num_cells=16)
    small = words(200, 1)
    harness.ask(small, marks=Marks(opener=200))
    harness.ask(words(1200, 2), marks=Marks(opener=1200))
    harness.ask(words(80, 3), marks=Marks(opener=80))
    assert harness.in_ram(small, 192) is not None
    assert harness.world.counters.not_demoted[NotDemoted.NO_ROOM] == 1
    assert harness.ask(small, marks=Marks(opener=200)).cached_tokens == 192


def test_live_work_is_not_dropped_for_anything_retained() -> None:
    harness = Tiered(num_lanes=1, num_host_slots=1, num_cells=12, num_pages=200)
    agent = harness.submit(words(300, 1), max_tokens=90, cls=Class.AGENT, reuse=False)
    harness.until_stepped(agent, 5)
    for who in range(5):
        prompt = words(300, 10 + who)
        harness.submit(prompt, marks=Marks(opener=300), max_tokens=3)
    harness.until_phase(Phase.EVICTED, agent)
    harness.drain()
    harness.assert_cold()
    assert harness.world.counters.recomputed == 0
    assert harness.finishes[agent].evictions == 1


def test_cells_that_a_round_reads_are_given_to_nobody_else_before_it_has_run() -> None:
    harness = Tiered(num_host_slots=1, num_cells=14, num_lanes=2, num_pages=200, window_pages=8)
    known, other = words(300, 1), words(300, 2)
    for prompt in (known, other):
        harness.ask(prompt, marks=Marks(opener=300))
    restoring = harness.submit(known, marks=Marks(opener=300), max_tokens=20)
    harness.plan()
    harness.flush()
    assert harness.arena.used_bytes > 0, "a round under way reads them"
    harness.drain()
    harness.assert_cold(restoring)
    harness.settle()
    harness.assert_leak_free()
