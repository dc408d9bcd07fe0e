"""What lies below the device, in numbers: `auto` fits always, what was asked for or a refusal."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ignisd.engine.capacity import (
    Budget,
    MemoryPlan,
    Sizes,
    Where,
    budget_for,
    plan_memory,
    settle,
)
from ignisd.engine.tier_plan import TierSizes, plan_tiers
from ignisd.errors import ConfigError
from ignisd.settings import Settings
from state.spec import KvFormat, StateSpec

MIB, GIB = 1 << 20, 1 << 30
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
PAGE = SPEC.page_bytes
IMAGE_CELLS = -(-SPEC.image_bytes // PAGE)
HUGE = Sizes(4, 256, 8, 0, 1 << 20)
"""Contexts so long that no arena is bounded by them."""


def tiers(
    settings: Settings | None = None,
    platform: str = "cpu",
    sizes: Sizes = HUGE,
    budget: Budget | None = None,
    spec: StateSpec = SPEC,
) -> TierSizes:
    shared = platform == "cpu"
    budget = budget or Budget(64 * GIB // 4, 0, 64 * GIB, shared)
    return plan_tiers(settings or Settings(), platform, sizes, budget, spec)


def refusal(settings: Settings, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        tiers(settings, **kwargs)
    return caught.value.message


def test_the_sizes_of_the_model_decide_the_cells() -> None:
    found = tiers(Settings(reuse_kv_host_pool_bytes=100 * PAGE + 7))
    assert (found.num_cells, found.cell_bytes) == (100, PAGE)
    assert (found.image_cells, found.image_bytes) == (IMAGE_CELLS, SPEC.image_bytes)
    assert (found.arena_bytes, found.disk_bytes) == (100 * PAGE, 0)


def test_auto_is_two_gib_and_less_where_the_memory_is_small() -> None:
    for platform, host_bytes, wanted in (
        ("cpu", 64 * GIB, 2 * GIB),
        ("cpu", 16 * GIB, 2 * GIB),
        ("cpu", 8 * GIB, GIB),
        ("gpu", 64 * GIB, 2 * GIB),
        ("gpu", 8 * GIB, 2 * GIB),
        ("gpu", 3 * GIB, 3 * GIB // 2),
    ):
        budget = budget_for(
            Settings(), platform, host_bytes, 80 * GIB if platform == "gpu" else None
        )
        found = tiers(platform=platform, budget=budget)
        assert found.num_cells == wanted // PAGE, (platform, host_bytes)


def test_auto_leaves_the_rest_of_the_plan_its_memory() -> None:
    """What was asked for comes first: a large pool and many slots leave less, or nothing."""
    host_bytes, slots_bytes = 8 * GIB, 8 * SPEC.image_bytes
    for left_bytes in (GIB // 2, 2 * PAGE):
        budget = Budget(host_bytes - slots_bytes - left_bytes, 0, host_bytes, True)
        kept = left_bytes // PAGE if left_bytes > (IMAGE_CELLS + 1) * PAGE else 0
        assert tiers(budget=budget).num_cells == kept
    windows_bytes = 4 * 32 * MIB
    apart = Budget(80 * GIB, 0, slots_bytes + windows_bytes + 50 * PAGE, False)
    assert tiers(platform="gpu", budget=apart).num_cells == 50


def test_auto_takes_no_more_than_four_full_contexts_a_lane_on_a_cpu() -> None:
    sizes = Sizes(2, 256, 8, 0, 8_000)
    assert tiers(sizes=sizes).num_cells == 4 * 2 * (IMAGE_CELLS + 125)
    assert tiers(sizes=sizes, platform="gpu").num_cells == 2 * GIB // PAGE
    short = Sizes(1, 256, 8, 0, 64)
    assert tiers(sizes=short).arena_bytes == 256 * MIB


def test_auto_is_nothing_where_not_even_one_state_would_fit() -> None:
    least = (IMAGE_CELLS + 1) * PAGE
    no_slots = replace(HUGE, num_host_slots=0)
    for host_bytes, cells in ((8 * least, IMAGE_CELLS + 1), (8 * least - 8, 0)):
        budget = Budget(host_bytes // 4, 0, host_bytes, True)
        assert tiers(sizes=no_slots, budget=budget).num_cells == cells


def test_an_arena_that_holds_no_state_is_refused_with_numbers_and_flag() -> None:
    least = (IMAGE_CELLS + 1) * PAGE
    assert tiers(Settings(reuse_kv_host_pool_bytes=least)).num_cells == IMAGE_CELLS + 1
    message = refusal(Settings(reuse_kv_host_pool_bytes=least - 1))
    for part in (
        f"--reuse-kv-host-pool-bytes gives kv_ram {IMAGE_CELLS} cells of {PAGE} bytes",
        f"smallest state takes {IMAGE_CELLS + 1}",
        f"{least / MIB:.1f} MiB",
        "set it to 0",
    ):
        assert part in message
    assert tiers(Settings(reuse_kv_host_pool_bytes=0)).num_cells == 0


def test_the_window_is_whole_pages_and_one_at_least() -> None:
    auto = tiers()
    assert (auto.window_pages, auto.window_measured) == (32 * MIB // PAGE, True)
    assert auto.window_bytes == auto.window_pages * PAGE
    asked = tiers(Settings(reuse_window_bytes=3 * PAGE + 1))
    assert (asked.window_pages, asked.window_measured) == (3, False)
    assert tiers(Settings(reuse_window_bytes=0)).window_pages == 1
    on_gpu = tiers(platform="gpu")
    assert (on_gpu.window_pages, on_gpu.window_measured) == (32 * MIB // PAGE, False)


def test_a_window_that_nobody_asked_for_fits_beside_an_image() -> None:
    for num_cells, pages in ((IMAGE_CELLS + 5, 5), (IMAGE_CELLS + 1, 1), (1000, 32 * MIB // PAGE)):
        asked = Settings(reuse_kv_host_pool_bytes=num_cells * PAGE, kv_disk_bytes=GIB)
        for platform in ("cpu", "gpu"):
            assert tiers(asked, platform).window_pages == pages
    asked = Settings(reuse_kv_host_pool_bytes=(IMAGE_CELLS + 1) * PAGE, reuse_window_bytes=GIB)
    assert tiers(asked).window_pages == 1024


def test_files_need_an_arena_that_holds_an_image_and_a_window() -> None:
    """Refused naming both numbers and the three flags."""
    window = 5
    least = (IMAGE_CELLS + window) * PAGE
    asked = Settings(
        kv_disk_bytes=4 * GIB,
        reuse_window_bytes=window * PAGE,
        reuse_kv_host_pool_bytes=least,
    )
    assert tiers(asked).disk_bytes == 4 * GIB
    for arena_bytes, cells in ((least - 1, IMAGE_CELLS + window - 1), (0, 0)):
        message = refusal(replace(asked, reuse_kv_host_pool_bytes=arena_bytes))
        for part in (
            "--kv-disk-bytes 4G needs a kv_ram that holds an image and a window",
            f"{IMAGE_CELLS} and {window} cells are {least / MIB:.1f} MiB, and it has {cells} ",
            "--reuse-kv-host-pool-bytes",
            "--reuse-window-bytes",
        ):
            assert part in message


def test_a_disk_that_holds_no_state_is_refused() -> None:
    least = (IMAGE_CELLS + 1) * PAGE
    assert tiers(Settings(kv_disk_bytes=least)).disk_bytes == least
    message = refusal(Settings(kv_disk_bytes=least - 1))
    assert "holds no state" in message
    assert f"takes {least / MIB:.1f} MiB" in message


def memory(found: TierSizes, platform: str, sizes: Sizes, budget: Budget) -> MemoryPlan:
    return plan_memory(
        SPEC,
        sizes,
        budget,
        weights_bytes=MIB,
        workspace_bytes=MIB,
        sampling_bytes=1,
        num_captures=2,
        below=found.lines(platform),
    )


def test_every_byte_below_is_in_the_plan() -> None:
    sizes = Sizes(2, 256, 4, 0, 1000)
    for platform, shared in (("cpu", True), ("gpu", False)):
        found = tiers(Settings(reuse_kv_host_pool_bytes=64 * PAGE), platform, sizes)
        made = memory(found, platform, sizes, Budget(4 * GIB, 0, 8 * GIB, shared))
        windows = 0 if shared else 4 * found.window_bytes
        assert made.line_bytes("kv_ram") == 64 * PAGE
        assert made.line_bytes("host slots") == 4 * SPEC.image_bytes
        host = 64 * PAGE + 4 * SPEC.image_bytes + windows
        assert made.total_bytes(Where.HOST) == host
        crossing = [(one.where, one.num_bytes) for one in made.lines if one.name == "windows"]
        both = [(Where.DEVICE, windows), (Where.HOST, windows)]
        assert crossing == ([] if shared else both)
        assert f"64 cells of {PAGE} bytes, {IMAGE_CELLS} an image" in made.table()


def test_host_memory_that_does_not_suffice_is_refused_naming_every_flag() -> None:
    sizes = Sizes(2, 256, 4, 0, 1000)
    for platform, shared in (("cpu", True), ("gpu", False)):
        found = tiers(Settings(reuse_kv_host_pool_bytes=64 * PAGE), platform, sizes)
        whole = memory(found, platform, sizes, Budget(4 * GIB, 0, 8 * GIB, shared))
        need = whole.total_bytes(Where.HOST) + whole.total_bytes(Where.DEVICE) * shared
        memory(found, platform, sizes, Budget(4 * GIB, 0, need, shared))
        with pytest.raises(ConfigError) as caught:
            memory(found, platform, sizes, Budget(4 * GIB, 0, need - 1, shared))
        message = caught.value.message
        for part in (
            f"holds {need / MIB:.1f} MiB of main memory",
            f"--reuse-retained-host (now {4 * SPEC.image_bytes / MIB:.1f} MiB)",
            f"--reuse-kv-host-pool-bytes (now {64 * PAGE / MIB:.1f} MiB)",
        ):
            assert part in message
        assert ("--vram-budget-bytes (now" in message) is shared


@given(
    host_bytes=st.integers(64 * MIB, 1 << 38),
    device_bytes=st.integers(1 << 30, 1 << 37),
    shared=st.booleans(),
    asked=st.none() | st.integers(1 << 24, 1 << 36),
    slots=st.integers(0, 64),
)
def test_auto_never_makes_a_plan_that_is_refused(
    host_bytes: int, device_bytes: int, shared: bool, asked: int | None, slots: int
) -> None:
    """Whatever fits without kv_ram fits with the one that `auto` chooses."""
    platform = "cpu" if shared else "gpu"
    settings = Settings(vram_budget_bytes=asked, reuse_retained_host=slots, model_max_context=4096)
    sizes = settle(settings, platform, 4096, SPEC.image_bytes)
    assume(asked is None or asked <= (host_bytes if shared else device_bytes))
    budget = budget_for(settings, platform, host_bytes, None if shared else device_bytes)
    without = replace(settings, reuse_kv_host_pool_bytes=0)
    try:
        bare = memory(plan_tiers(without, platform, sizes, budget, SPEC), platform, sizes, budget)
    except ConfigError:
        assume(False)
    found = plan_tiers(settings, platform, sizes, budget, SPEC)
    crossing = found.lines(platform)[1:]
    assume(bare.free_bytes >= sum(one.num_bytes for one in crossing if one.where is Where.DEVICE))
    try:
        made = memory(found, platform, sizes, budget)
    except ConfigError as refused:
        pytest.fail(refused.message)
    assert made.line_bytes("kv_ram") == found.arena_bytes <= 2 * GIB
