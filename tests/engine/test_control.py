"""What an operator does to retained state: pins stay put in every tier, a flush leaves nothing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ignisd.engine import control
from ignisd.engine.stats import PinEnd
from ignisd.engine.types import Phase, Tier
from state.retained import Kind, Rank, Retained
from state.retention import Marks
from state.spec import Class
from state.tiers.stored import Standing, Stored, standing_of
from tests.engine.below import Tiered
from tests.engine.harness import Harness, words


def leave(harness: Harness, seed: int, tokens: int = 200) -> list[int]:
    """A prompt of so many tokens whose end is retained; what came before is older."""
    prompt = words(tokens, seed)
    harness.now_ms += 1.0
    harness.ask(prompt, marks=Marks(opener=tokens))
    return prompt


def state_of(harness: Harness, prompt: Sequence[int]) -> Retained:
    """What the device retains of a prompt."""
    (held,) = (
        one for one in harness.world.index if one.chain.tokens.tolist() == prompt[: one.length]
    )
    return held


def pin(harness: Harness, state_id: int) -> None:
    """Pin a state, which must be granted."""
    changed, refused = control.pin(harness.world, state_id, True)
    assert refused is None
    assert changed is not harness.world
    harness.world = changed


def unpin(harness: Harness, state_id: int) -> None:
    harness.world, refused = control.pin(harness.world, state_id, False)
    assert refused is None


def test_a_pinned_state_keeps_its_slot_whoever_wants_one() -> None:
    harness = Harness(num_host_slots=4)
    prompt = words(200, 1)
    harness.ask(prompt, marks=Marks(opener=200), cls=Class.AGENT)
    held = state_of(harness, prompt)
    pin(harness, held.id)
    for seed in range(2, 12):
        leave(harness, seed)
    assert harness.ask(prompt, marks=Marks(opener=200)).cached_tokens == 192
    kept = harness.world.index.get(held.id)
    assert kept is not None
    order = list(harness.world.index.victims(harness.now_ms, harness.limits.ttl_ms))
    assert order[-1] == (Rank.PINNED, kept)
    unpin(harness, held.id)
    for seed in range(12, 17):
        leave(harness, seed)
    assert held.id not in harness.world.index


def test_half_of_the_slots_can_be_pinned_and_half_of_the_pages() -> None:
    harness = Harness(num_host_slots=5, num_pages=33)
    ids = [state_of(harness, leave(harness, seed)).id for seed in range(4)]
    pin(harness, ids[0])
    pin(harness, ids[1])
    pin(harness, ids[1])
    changed, refused = control.pin(harness.world, ids[2], True)
    assert refused == control.TooManyPins(Tier.DEVICE, "slots", 3, 2)
    assert changed is harness.world
    unpin(harness, ids[0])
    pin(harness, ids[2])
    wide = Harness(num_host_slots=8, num_pages=33)
    long = state_of(wide, leave(wide, 9, 64 * 18))
    _, refused = control.pin(wide.world, long.id, True)
    assert refused == control.TooManyPins(Tier.DEVICE, "pages", 17, 16)


@pytest.mark.parametrize("state_id", [-1, 0, 999])
def test_what_is_not_there_cannot_be_pinned(state_id: int) -> None:
    harness = Harness()
    leave(harness, 1)
    assert control.located(harness.world, state_id) is None
    assert control.pin(harness.world, state_id, True) == (harness.world, None)


def test_a_pinned_state_has_a_copy_below_and_stays_on_the_device() -> None:
    harness = Tiered(window_pages=1, num_cells=60)
    prompt = leave(harness, 1, 64 * 9)
    held = state_of(harness, prompt)
    pin(harness, held.id)
    harness.settle()
    below = harness.in_ram(prompt, held.length)
    assert below is not None
    assert below.pinned
    assert held.id in harness.world.index
    assert max(len(work.lowers) for work in harness.device.rounds) == 1
    unpin(harness, held.id)
    assert not harness.world.index.pinned
    assert not harness.arena.index.num_pinned
    harness.assert_leak_free()


def test_live_work_takes_the_pages_of_a_pinned_state_which_goes_on_below() -> None:
    harness = Tiered(num_pages=34, num_cells=60, window_pages=2, num_host_slots=6, step_tokens=64)
    prompt = leave(harness, 1, 64 * 9)
    held = state_of(harness, prompt)
    pin(harness, held.id)
    harness.settle()
    for seed in range(2, 5):
        leave(harness, seed)
    assert held.id in harness.world.index, "what is not pinned goes first"
    request_id = harness.submit(words(64 * 31, 8), max_tokens=3)
    harness.turn()
    assert request_id in harness.started or harness.world.sequences[request_id].lane is not None
    assert held.id not in harness.world.index
    harness.drain()
    below = harness.in_ram(prompt, held.length)
    assert below is not None
    assert below.pinned
    assert not any(harness.world.counters.pins_ended.values())
    assert harness.ask([*prompt, 1, 2], marks=Marks(opener=64 * 9)).reuse.tier is Tier.KV_RAM
    harness.assert_leak_free()


def test_without_room_below_a_pinned_state_makes_way_rather_than_block() -> None:
    harness = Harness(num_pages=34, step_tokens=64)
    held = state_of(harness, leave(harness, 1))
    pin(harness, held.id)
    harness.ask(words(64 * 31, 8), max_tokens=3)
    assert harness.world.counters.pins_ended == {PinEnd.NO_ROOM: 1, PinEnd.LIMIT: 0}
    assert held.id not in harness.world.index


def demoted(harness: Tiered, seed: int, tokens: int = 200) -> tuple[list[int], Stored]:
    """A prompt whose end lies in the arena alone."""
    prompt = leave(harness, seed, tokens)
    for filler in range(harness.world.slots.num_slots):
        leave(harness, 1000 + 10 * seed + filler)
    harness.settle()
    stored = harness.in_ram(prompt, tokens // 64 * 64)
    assert stored is not None
    return prompt, stored


def test_in_the_arena_a_pinned_state_outlives_what_comes_down() -> None:
    harness = Tiered(num_cells=20, num_host_slots=1)
    _, stored = demoted(harness, 1)
    pin(harness, stored.id)
    for seed in range(20, 40):
        leave(harness, seed)
    kept = harness.arena.index.get(stored.id)
    assert kept is not None
    assert harness.arena.num_free < 10
    ttl_ms = harness.limits.ttl_ms
    assert standing_of(kept, harness.now_ms + 2 * ttl_ms, ttl_ms) is Standing.PINNED
    unpin(harness, stored.id)
    for seed in range(40, 50):
        leave(harness, seed)
    assert stored.id not in harness.arena.index
    harness.assert_leak_free()


def test_half_of_the_arena_can_be_pinned_common_pages_once() -> None:
    harness = Tiered(num_cells=36, num_host_slots=4)
    base = words(64 * 6, 1)
    for tail in (2, 3):
        harness.now_ms += 1.0
        prompt = [*base, *words(64 * 2, tail)]
        harness.ask([*prompt, 1], marks=Marks(opener=64 * 8))
    for seed in range(7, 12):
        leave(harness, seed)
    harness.settle()
    twins = [one for one in harness.arena.index if one.length == 64 * 8]
    assert len(twins) == 2
    pin(harness, twins[0].id)
    pin(harness, twins[1].id)
    # Two images of two cells, six common pages and twice two more.
    assert harness.arena.num_pinned_cells() == 14
    other = next(one for one in harness.arena.index if one.length == 192)
    cell_bytes = harness.arena.cell_bytes
    changed, refused = control.pin(harness.world, other.id, True)
    assert refused == control.TooManyPins(Tier.KV_RAM, "bytes", 19 * cell_bytes, 18 * cell_bytes)
    assert changed is harness.world


def test_what_comes_down_beyond_the_half_is_pinned_no_more() -> None:
    harness = Tiered(num_cells=14, num_host_slots=4, num_pages=34, step_tokens=64)
    ids = []
    for seed in (1, 2):
        ids.append(state_of(harness, leave(harness, seed, 64 * 5)).id)
        pin(harness, ids[-1])
    harness.settle()
    assert harness.arena.index.num_pinned == 1
    harness.ask(words(64 * 31, 8), max_tokens=3)
    harness.settle()
    assert harness.world.counters.pins_ended[PinEnd.LIMIT] == 1
    assert harness.arena.index.num_pinned == 1
    assert harness.arena.num_pinned_cells() <= 7


def filed(harness: Tiered, seed: int) -> tuple[list[int], Stored]:
    """A prompt whose end lies in a file alone."""
    prompt, stored = demoted(harness, seed)
    for filler in range(20):
        if harness.on_disk(prompt, 192) is not None and stored.id not in harness.arena.index:
            break
        leave(harness, 5000 + 100 * seed + filler)
        harness.settle()
    kept = harness.on_disk(prompt, 192)
    assert kept is not None
    return prompt, kept


def test_on_the_disk_a_pinned_state_outlives_what_is_written() -> None:
    harness = Tiered(num_cells=20, low_cells=14, num_host_slots=1, disk_bytes=6 * 16384)
    prompt, stored = filed(harness, 1)
    pin(harness, stored.id)
    for seed in range(20, 50):
        leave(harness, seed)
        harness.settle()
    assert harness.on_disk(prompt, 192) is not None
    assert harness.world.counters.files_written > 10
    assert harness.ask([*prompt, 1], marks=Marks(opener=200)).reuse.tier is Tier.KV_DISK
    assert harness.shelf.index.get(stored.id) is not None
    harness.assert_leak_free()


def test_a_pinned_state_of_the_arena_is_not_written_out_before_the_end() -> None:
    harness = Tiered(num_cells=24, low_cells=20, num_host_slots=1, disk_bytes=1 << 20)
    harness.slow_files = True
    prompt = leave(harness, 1)
    leave(harness, 2)
    harness.until(lambda: bool(harness.orders))
    (stored,) = harness.arena.index
    pin(harness, stored.id)
    harness.slow_files = False
    harness.settle()
    assert harness.in_ram(prompt, 192) is not None, "a file that was begun does not move it"
    harness.write_out()
    kept = harness.on_disk(prompt, 192)
    assert kept is not None
    again = Tiered(disk_bytes=1 << 20, root=harness.root)
    found = again.on_disk(prompt, 192)
    assert found is not None
    assert not found.pinned, "a pin ends with the process"


def spread(harness: Tiered) -> None:
    """Something retained in every tier."""
    filed(harness, 1)
    demoted(harness, 2)
    assert len(harness.world.index)
    assert any(not one.is_live for one in harness.arena.index)
    assert len(harness.shelf.index)


@pytest.mark.parametrize("tier", [None, *Tier])
def test_a_flush_empties_the_tier_that_is_named_or_all(tier: Tier | None) -> None:
    harness = Tiered(num_cells=20, low_cells=8, num_host_slots=2, disk_bytes=1 << 20)
    spread(harness)
    before = harness.world
    assert before.tiers is not None
    counts = {
        Tier.DEVICE: len(before.index),
        Tier.KV_RAM: before.tiers.arena.index.tally.num_retained,
        Tier.KV_DISK: harness.shelf.index.tally.num_retained,
    }
    harness.world = control.flushed(before, tier)
    harness.settle()
    left = {
        Tier.DEVICE: len(harness.world.index),
        Tier.KV_RAM: harness.arena.index.tally.num_retained,
        Tier.KV_DISK: harness.shelf.index.tally.num_retained,
    }
    for one in Tier:
        assert left[one] == (0 if tier in (None, one) else counts[one]), one
    going = counts.values() if tier is None else (counts[tier],)
    assert harness.world.counters.flushed == sum(going)
    if tier in (None, Tier.KV_DISK):
        assert not harness.files()
        assert not len(Tiered(disk_bytes=1 << 20, root=harness.root).shelf.index)


def test_a_flush_of_files_keeps_none_that_is_being_written() -> None:
    harness = Tiered(num_cells=20, low_cells=20, num_host_slots=1, disk_bytes=1 << 20)
    harness.slow_files = True
    prompt = leave(harness, 1)
    leave(harness, 2)
    harness.until(lambda: bool(harness.orders))
    harness.world = control.flushed(harness.world, Tier.KV_DISK)
    assert harness.shelf.pending
    harness.file()
    harness.obey()
    assert harness.in_ram(prompt, 192) is not None
    assert harness.on_disk(prompt, 192) is None
    harness.assert_leak_free()


def test_a_flush_takes_pins_too() -> None:
    harness = Tiered()
    held = state_of(harness, leave(harness, 1))
    pin(harness, held.id)
    harness.settle()
    harness.flush()
    assert not harness.world.index.pinned
    harness.assert_leak_free()


def test_what_the_tiers_gave_up_is_counted_by_tier_kind_and_use() -> None:
    harness = Tiered(num_cells=20, num_host_slots=1)
    for seed in range(12):
        leave(harness, seed)
    harness.settle()
    counters = harness.world.counters
    gone = {key: times for key, times in counters.discarded.items() if times}
    assert {(tier, kind) for tier, kind, _ in gone} == {(Tier.KV_RAM, Kind.CHECKPOINT)}
    held = len(harness.world.index) + len(harness.arena.index)
    assert sum(gone.values()) == sum(counters.captured.values()) - held


def test_what_a_flush_gave_up_is_found_by_nobody_while_something_still_reads_it() -> None:
    harness = Tiered(num_cells=60, num_host_slots=1, num_lanes=2, single_flight_tokens=4096)
    prompt, stored = demoted(harness, 1, 64 * 8 + 10)
    slow = replace(harness.tiers.limits, window_bytes=3 * harness.arena.cell_bytes)
    harness.change_tiers(limits=slow)
    first = harness.submit([*prompt, 1])
    harness.until_phase(Phase.RESTORING, first)
    harness.flush()
    assert stored.id in harness.tiers.orphans
    assert stored.id in harness.arena.index
    assert control.located(harness.world, stored.id) is None
    second = harness.submit([*prompt, 2])
    harness.drain()
    assert harness.finishes[first].reuse.tier is Tier.KV_RAM
    assert harness.finishes[second].reuse.tier is not Tier.KV_RAM
    harness.assert_cold()
    harness.assert_leak_free()
