"""The memory plan: every byte is named, the pool takes the rest, what does not fit is refused."""

import dataclasses
import re

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
from ignisd.errors import ConfigError
from ignisd.kinds import PoolSize
from ignisd.settings import Settings
from state.spec import PAGE_TOKENS, KvFormat, StateSpec

GIB = 1 << 30
SPEC = StateSpec(
    num_full=2,
    kv_heads=2,
    head_dim=32,
    num_linear=6,
    value_heads=4,
    key_dim=32,
    value_dim=32,
    conv_channels=256,
    conv_width=4,
    kv_format=KvFormat.BF16,
)
SIZES = Sizes(num_lanes=4, chunk_tokens=256, num_host_slots=8, num_device_slots=2, max_context=1000)
LEAST_PAGES = 16 + 10 + 1  # ceil(1000 / 64), a page per slot, the null page


def plan(
    sizes: Sizes = SIZES,
    device_bytes: int = GIB,
    headroom_bytes: int = 0,
    host_bytes: int = 4 * GIB,
    shared: bool = True,
    pool: PoolSize | None = None,
) -> MemoryPlan:
    return plan_memory(
        SPEC,
        sizes,
        Budget(device_bytes, headroom_bytes, host_bytes, shared),
        weights_bytes=4_000_000,
        workspace_bytes=3_000_000,
        sampling_bytes=200_000,
        num_captures=5,
        pool=pool,
    )


def refusal(**kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(**kwargs)
    return caught.value.message


def fixed_bytes() -> int:
    return 7_200_000 + (4 + 5 + 2) * SPEC.image_bytes


def test_lines_add_up_and_leave_the_headroom_alone():
    made = plan(headroom_bytes=GIB // 8)
    by_name = {line.name: line.num_bytes for line in made.lines}
    assert by_name == {
        "weights": 4_000_000,
        "workspace": 3_000_000,
        "sampling": 200_000,
        "lanes": 4 * SPEC.image_bytes,
        "captures": 5 * SPEC.image_bytes,
        "device slots": 2 * SPEC.image_bytes,
        "host slots": 8 * SPEC.image_bytes,
        "KV pool": made.num_pages * SPEC.page_bytes,
    }
    device = made.total_bytes(Where.DEVICE)
    assert device == sum(by_name.values()) - by_name["host slots"]
    assert device + made.free_bytes + GIB // 8 == GIB
    assert made.total_bytes(Where.HOST) == by_name["host slots"]


def test_a_small_model_takes_no_more_pool_than_its_lanes_and_states_can_fill():
    made = plan()
    assert made.num_pages == (4 + 10) * 16 + 1
    assert made.pool_tokens == (4 + 10) * 16 * PAGE_TOKENS
    assert made.free_bytes > GIB // 2


def test_the_smallest_pool_is_one_full_context_and_a_page_per_slot():
    exact = fixed_bytes() + LEAST_PAGES * SPEC.page_bytes
    made = plan(device_bytes=exact)
    assert (made.num_pages, made.free_bytes) == (LEAST_PAGES, 0)
    message = refusal(device_bytes=exact - 1)
    for part in (
        "1000 tokens",
        "10 slots",
        "27 pages",
        "--vram-budget-bytes",
        "--model-max-context",
    ):
        assert part in message
    assert "weights" in message


def test_the_pool_is_what_was_asked_for():
    by_tokens = plan(pool=PoolSize(num_tokens=65 * 40))
    assert by_tokens.num_pages == 41 + 1
    assert by_tokens.pool_tokens == 41 * PAGE_TOKENS
    by_bytes = plan(pool=PoolSize(num_bytes=300 * SPEC.page_bytes + 7))
    assert by_bytes.num_pages == 300
    least = PoolSize(num_tokens=(LEAST_PAGES - 1) * PAGE_TOKENS)
    assert plan(pool=least).num_pages == LEAST_PAGES


def test_a_pool_that_is_too_small_or_too_large_is_refused_naming_the_flag():
    small = PoolSize(num_tokens=(LEAST_PAGES - 2) * PAGE_TOKENS)
    message = refusal(pool=small)
    assert "--vram-kv-pool-bytes gives the KV pool 26 pages" in message
    assert "27 pages" in message
    message = refusal(pool=PoolSize(num_bytes=GIB))
    assert "--vram-kv-pool-bytes asks for 1024.0 MiB" in message
    assert "--vram-budget-bytes" in message


def test_a_budget_that_the_weights_exhaust_is_refused():
    assert "would have 0.0 MiB" in refusal(device_bytes=1000)


def test_the_host_plan_respects_what_this_process_may_use():
    host_slots = 8 * SPEC.image_bytes
    apart = plan(shared=False, host_bytes=host_slots)
    assert apart.total_bytes(Where.HOST) == host_slots
    assert "--reuse-retained-host" in refusal(shared=False, host_bytes=host_slots - 1)
    together = plan().total_bytes(Where.DEVICE) + host_slots
    assert plan(shared=True, host_bytes=together).host_limit_bytes == together
    assert "--reuse-retained-host" in refusal(shared=True, host_bytes=together - 1)


@given(
    budget=st.integers(1, 1 << 34),
    headroom=st.integers(0, 1 << 30),
    lanes=st.integers(1, 32),
    host=st.integers(0, 64),
    device=st.integers(0, 64),
    context=st.integers(PAGE_TOKENS, 100_000),
)
def test_a_plan_either_fits_and_suffices_or_is_refused(
    budget: int, headroom: int, lanes: int, host: int, device: int, context: int
):
    assume(headroom < budget)
    sizes = Sizes(lanes, 256, host, device, context)
    least = -(-context // PAGE_TOKENS) + host + device + 1
    need = 7_200_000 + (lanes + 5 + device) * SPEC.image_bytes + least * SPEC.page_bytes
    fits = need <= budget - headroom
    try:
        made = plan(sizes, budget, headroom, host_bytes=1 << 40)
    except ConfigError:
        assert not fits
        return
    assert fits
    assert made.num_pages >= least
    assert made.free_bytes >= 0
    slack = made.free_bytes < SPEC.page_bytes
    assert slack or made.num_pages == (lanes + host + device) * -(-context // PAGE_TOKENS) + 1


def test_the_table_has_a_row_per_line_with_bytes_and_totals():
    made = plan()
    rows = made.table().splitlines()
    assert len(rows) == len(made.lines) + 2
    for line, row in zip(made.lines, rows, strict=False):
        assert row.startswith(line.where.value)
        assert line.name in row
        assert f"{line.num_bytes / 2**20:.1f} MiB" in row
    assert "of 1024.0 MiB" in rows[-2]
    assert len({re.search(r"MiB", row).end() for row in rows}) == 1  # type: ignore[union-attr]


def test_auto_depends_on_the_backend():
    on_cpu = settle(Settings(), "cpu", 65_536, 1 << 30)
    assert on_cpu == Sizes(4, 256, 8, 0, 65_536)
    assert settle(Settings(), "gpu", 65_536, 1 << 30) == Sizes(8, 1024, 16, 0, 65_536)


def test_small_images_get_more_slots_than_two_a_lane():
    """As many as 256 MiB hold, sixteen a lane at most; not beside a pool sized by hand."""
    sizes = [settle(Settings(), "cpu", 1024, n << 20).num_host_slots for n in (1, 8, 30, 40, 500)]
    assert sizes == [64, 32, 8, 8, 8]
    by_hand = Settings(vram_kv_pool_bytes=PoolSize(num_tokens=2048))
    assert settle(by_hand, "cpu", 1024, 1 << 20).num_host_slots == 8


def test_what_was_asked_for_is_kept():
    asked = Settings(
        spec_decode_lanes=3,
        model_prefill_chunk=64,
        reuse_retained_host=1,
        reuse_retained_device=2,
        model_max_context=640,
    )
    assert settle(asked, "cpu", 65_536, 1 << 20) == Sizes(3, 64, 1, 2, 640)
    off = dataclasses.replace(asked, reuse_prompt=False)
    assert settle(off, "cpu", 65_536, 1 << 20).num_slots == 0


def test_a_context_longer_than_the_model_allows_is_refused():
    with pytest.raises(ConfigError, match="--model-max-context 200 is more than the 128 tokens"):
        settle(Settings(model_max_context=200), "cpu", 128, 1 << 20)


def test_the_budget_is_a_quarter_of_the_memory_on_a_cpu_and_all_of_it_elsewhere():
    assert budget_for(Settings(), "cpu", 16 * GIB) == Budget(4 * GIB, 0, 16 * GIB, True)
    on_gpu = budget_for(Settings(), "gpu", 16 * GIB, 80 * GIB)
    assert on_gpu == Budget(80 * GIB, 4 * GIB, 16 * GIB, False)
    asked = Settings(vram_budget_bytes=GIB, vram_headroom_bytes=7)
    assert budget_for(asked, "cpu", 16 * GIB) == Budget(GIB, 7, 16 * GIB, True)


def test_a_budget_beyond_the_memory_is_refused():
    with pytest.raises(ConfigError, match=r"--vram-budget-bytes 2G is more than the 1024\.0 MiB"):
        budget_for(Settings(vram_budget_bytes=2 * GIB), "cpu", GIB)
