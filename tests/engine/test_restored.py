"""What a request is told that was restored from a lower tier."""

from ignisd.engine.tiers import TierLimits, Tiers
from ignisd.engine.types import Tier
from state.retention import Marks
from state.reuse import MissReason
from state.tiers.arena import Arena
from tests.engine.below import Tiered
from tests.engine.harness import Harness, words
from tests.fake_device import RAISE_MS

CELL_BYTES = 4096
NUM_CELLS = 6
"""Four pages, an image, and one to spare: room for one short state."""


def test_a_restored_request_is_told_why_it_is_not_longer() -> None:
    limits = TierLimits(image_bytes=CELL_BYTES, window_bytes=40 * CELL_BYTES, ram_floor_tokens=64)
    tiers = Tiers(limits, Arena.empty(NUM_CELLS, 1, CELL_BYTES))
    harness = Harness(num_host_slots=1, tiers=tiers)
    short = words(300, 1)
    long = [*short, *words(300, 2)]
    for prompt in (short, words(300, 3), long, words(300, 4)):
        harness.ask(prompt, marks=Marks(opener=len(prompt)))
    told = harness.ask([*long, 1], marks=Marks(opener=601)).reuse
    assert (told.tier, told.cached_tokens) == (Tier.KV_RAM, 256)
    # While it was read for the first time, the short state had come back to the only slot.
    assert told.shortfall is MissReason.NO_SLOT
    told = harness.ask([*short, 1], marks=Marks(opener=301)).reuse
    assert (told.cached_tokens, told.shortfall) == (256, None)


def test_a_restore_of_one_round_is_told_what_it_took() -> None:
    """It begins and ends in one plan, so the clock between these stands still."""
    for window_pages, least_ms in ((40, 2 * RAISE_MS), (1, 1.0)):
        harness = Tiered(num_host_slots=1, window_pages=window_pages)
        prompt = words(300, 1)
        harness.ask(prompt, marks=Marks(opener=300))
        harness.ask(words(300, 2), marks=Marks(opener=300))
        harness.settle()
        reuse = harness.ask(prompt, marks=Marks(opener=300)).reuse
        assert reuse.tier is Tier.KV_RAM
        assert least_ms <= reuse.restore_ms < 10.0
        assert (window_pages > 1) is (reuse.restore_ms == 2 * RAISE_MS)
