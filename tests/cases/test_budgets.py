"""Bytes that are reserved and never exceeded, and slots that are given to somebody."""

import random
from collections import Counter

import pytest

from ignisd.engine.capacity import Budget, Line, MemoryPlan, Sizes, Where, plan_memory
from ignisd.engine.stats import NotDemoted
from ignisd.engine.tier_plan import plan_tiers
from ignisd.engine.world import free_lane
from ignisd.errors import ConfigError
from ignisd.settings import Settings
from state.retention import Marks
from state.spec import KvFormat, StateSpec
from tests.cases.prompts import promised
from tests.cases.test_disk import KEPT, asked, filed, filing
from tests.engine.below import Tiered
from tests.engine.harness import Harness, words
from tests.planting import catches

SPEC = StateSpec(
    num_full=8,
    kv_heads=2,
    head_dim=256,
    num_linear=24,
    value_heads=16,
    key_dim=128,
    value_dim=128,
    conv_channels=6144,
    conv_width=4,
    kv_format=KvFormat.BF16,
)
GIB = 1 << 30


@catches("full-slots-keep-requests-out", "followers-never-wake")
def test_l46_whoever_could_run_begins_soon_whatever_is_retained() -> None:
    for num_host_slots in (4, 0):
        rng = random.Random(46)
        harness = Harness(
            num_lanes=3, num_pages=600, num_host_slots=num_host_slots, single_flight_tokens=128
        )
        harness.device.loses = lambda position: position % 7 == 0
        waits: dict[int, int] = {}
        for _ in range(120):
            if rng.random() < 0.5:
                prompt, most = words(rng.randint(60, 600), rng.randrange(6)), rng.randint(1, 9)
                harness.submit(prompt, marks=Marks(opener=len(prompt)), max_tokens=most)
            if rng.random() < 0.1 and harness.world.sequences:
                harness.cancel(rng.choice(list(harness.world.sequences)))
            harness.turn()
            is_free = free_lane(harness.world) is not None
            queue = harness.world.queue if is_free else ()
            waits = {key: waits.get(key, 0) + 1 for key in queue}
            assert max(waits.values(), default=0) < 30, "a lane is free, and it waits for nobody"
        harness.drain()
        harness.assert_leak_free()


@catches("an-oversize-state-evicts")
def test_l47_host_memory_holds_no_more_than_was_reserved_whatever_is_offered() -> None:
    harness = Tiered(num_host_slots=1, num_cells=40, num_pages=300)
    limit = 40 * harness.arena.cell_bytes
    offered = 0
    for who in range(20):
        prompt = words(300 + 50 * (who % 3), who)
        harness.submit(prompt, marks=Marks(opener=len(prompt)))
        while harness.world.sequences:
            harness.turn()
            assert harness.arena.used_bytes <= limit
            assert len(harness.device.cells) == 40
        offered += (promised(len(prompt)) // 64 + 2) * harness.arena.cell_bytes
    assert offered > 3 * limit
    kept = {one.id for one in harness.arena.index}
    assert len(kept) >= 4
    harness.ask(words(3000, 50), marks=Marks(opener=3000))
    harness.ask(words(70, 51), marks=Marks(opener=70))
    assert harness.world.counters.not_demoted[NotDemoted.NO_ROOM] >= 1
    assert len(kept & {one.id for one in harness.arena.index}) >= len(kept) - 1


@catches("a-second-copy-is-made-in-advance")
def test_l49_what_goes_down_moves_and_every_byte_is_in_one_ledger() -> None:
    harness = Tiered(num_host_slots=3, num_pages=300, window_pages=2, num_lanes=2, num_cells=300)
    for who in range(12):
        prompt = words(600 + 64 * (who % 3), who)
        harness.submit(prompt, marks=Marks(opener=len(prompt)), max_tokens=30)
        harness.drain()
        harness.settle()
        below = [one.chain.raw for one in harness.arena.index]
        above = [one.chain.raw for one in harness.world.index]
        assert not set(below) & set(above), "a state lies in one tier until it is restored"
        assert len(below) == len(set(below))
        arena = harness.arena
        cells = {cell for one in arena.index for cell in arena.located(one.id).cells}
        assert arena.used_bytes == len(cells) * arena.cell_bytes
        assert harness.world.slots.num_used == len(above) <= 3
    assert len(harness.arena.index) >= 8


@catches("flush-forgets-kv-ram", "cancel-that-leaks")
def test_l50_conversations_that_are_cleared_leave_no_state_behind() -> None:
    harness = filing(num_host_slots=4, num_cells=60, low_cells=20, num_pages=300)
    for who in range(25):
        talk = words(150, who)
        for turn in range(3):
            talk = [*talk, *words(70, 100 * who + turn)]
            key = harness.submit(talk, marks=Marks(100, len(talk), len(talk)), max_tokens=2)
            if (who + turn) % 5 == 0:
                harness.turn()
                harness.cancel(key)
            harness.drain()
    tiers = Counter(
        {"device": len(harness.world.index), "ram": len(harness.arena.index)}
        | {"disk": len(harness.shelf.index)}
    )
    assert min(tiers.values()) > 0
    harness.assert_leak_free()


@catches("an-oversize-state-evicts")
def test_l55_a_state_larger_than_a_tier_displaces_nothing_in_it() -> None:
    harness = filing(num_cells=30, low_cells=0, num_pages=300, disk_bytes=3 * (8192 + 4096))
    for who in range(4):
        asked(harness, who)
    before = {one.id for one in harness.arena.index}
    assert len(before) >= 3
    harness.ask(words(2500, 50), marks=Marks(opener=2500))
    harness.ask(words(70, 51), marks=Marks(opener=70))
    harness.settle()
    assert before <= {one.id for one in harness.arena.index}
    small = filing(disk_bytes=43_000)
    filed(small, 1, 2)
    small.ask(words(3500, 50), marks=Marks(opener=3500))
    asked(small, 60)
    small.settle()
    assert small.on_disk(words(300, 1), KEPT) is not None
    assert small.on_disk(words(300, 2), KEPT) is not None


@catches("arena-beside-the-plan", "arena-over-the-limit")
def test_l56_host_memory_is_planned_and_a_plan_that_does_not_fit_is_refused() -> None:
    sizes = Sizes(4, 256, 8, 0, 32_768)
    for host_bytes in (4 * GIB, 8 * GIB, 64 * GIB):
        budget = Budget(host_bytes // 4, 0, host_bytes, True)
        below = plan_tiers(Settings(), "cpu", sizes, budget, SPEC)
        plan = _planned(sizes, budget, below.lines("cpu"))
        assert plan.line_bytes("kv_ram") == below.arena_bytes
        held = plan.total_bytes(Where.HOST) + plan.total_bytes(Where.DEVICE)
        assert held <= host_bytes
        assert "kv_ram" in plan.table()
    left_bytes = GIB // 2
    budget = Budget(8 * GIB - 8 * SPEC.image_bytes - left_bytes, 0, 8 * GIB, True)
    below = plan_tiers(Settings(), "cpu", sizes, budget, SPEC)
    assert 0 < below.arena_bytes <= left_bytes
    asked_for = Settings(reuse_kv_host_pool_bytes=6 * GIB)
    budget = Budget(GIB, 0, 4 * GIB, True)
    below = plan_tiers(asked_for, "cpu", sizes, budget, SPEC)
    with pytest.raises(ConfigError, match="--reuse-kv-host-pool-bytes"):
        _planned(sizes, budget, below.lines("cpu"))


def _planned(sizes: Sizes, budget: Budget, below: tuple[Line, ...]) -> MemoryPlan:
    return plan_memory(
        SPEC,
        sizes,
        budget,
        weights_bytes=1 << 26,
        workspace_bytes=1 << 24,
        sampling_bytes=1 << 20,
        num_captures=3,
        below=below,
    )
