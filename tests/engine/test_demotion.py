"""Which of the states that give way in one round go down, where the window cannot carry all."""

from ignisd.engine.stats import NotDemoted
from ignisd.engine.types import Tier
from state.retention import Marks
from tests.engine.below import Tiered, check_bytes
from tests.engine.harness import words

TURNS = (300, 500, 700)


def talked(window_pages: int) -> Tiered:
    """A conversation of three turns, of which the pool holds little more, with the last retained.

    The checkpoint before it is superseded, and would be discarded first below as well.
    """
    harness = Tiered(num_pages=27, max_context=1536, window_pages=window_pages, step_tokens=64)
    for turn in TURNS:
        harness.ask(words(turn, 1), marks=Marks(opener=turn), max_tokens=1)
    return harness


def test_the_newest_of_a_conversation_goes_down_before_the_superseded() -> None:
    harness = talked(window_pages=12)
    held = sorted(harness.world.index, key=lambda one: one.length)
    assert [one.superseded for one in held] == [True, True, False]
    harness.ask(words(1500, 2), max_tokens=1, reuse=False)
    harness.settle()
    assert harness.world.counters.not_demoted[NotDemoted.WINDOW] > 0, "the window carried all"
    finish = harness.ask(words(TURNS[-1], 1), marks=Marks(opener=TURNS[-1]))
    assert (finish.cached_tokens, finish.reuse.tier) == (640, Tier.KV_RAM)
    check_bytes(harness)
    harness.assert_leak_free()


def test_what_the_window_still_carries_goes_down_too() -> None:
    harness = talked(window_pages=40)
    harness.ask(words(1500, 2), max_tokens=1, reuse=False)
    harness.settle()
    assert len(list(harness.arena.index)) == len(TURNS)
    check_bytes(harness)
    harness.assert_leak_free()
