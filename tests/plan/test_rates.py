"""What follows from a machine's rates: floors and windows, on a clock that the test turns."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignisd.engine import probe
from ignisd.engine.programs import empty_device
from ignisd.engine.rates import (
    Rates,
    Stopwatch,
    Timed,
    fitted_pages,
    floor_tokens,
    measure,
    one_after_the_other,
)
from ignisd.engine.runner import DeviceRunner
from ignisd.engine.tiers import NEVER_TOKENS
from ignisd.engine.types import Round
from state.spec import PAGE_TOKENS
from state.tiers.memory import HostArena
from tests.engine.trees import model

MIB = 1 << 20
CELL_BYTES = 1000


def test_the_floor_is_twice_what_breaks_even() -> None:
    """1,000 tokens a second are read, 2,000 come up in one, and each restore takes 1.27 s."""
    assert floor_tokens(1000, 1270, 100, 200_000) == 80 * PAGE_TOKENS  # 2 x 2540 tokens
    assert floor_tokens(1000, 1270, 100, 1e18) == 40 * PAGE_TOKENS  # 2 x 1270
    assert floor_tokens(1000, 635, 100, 1e18) == 20 * PAGE_TOKENS


def test_the_floor_is_whole_pages_and_one_at_least() -> None:
    assert floor_tokens(1000, 0, 100, 1e9) == PAGE_TOKENS
    assert floor_tokens(1000, 31.9, 0, 1e9) == PAGE_TOKENS
    assert floor_tokens(1000, 32.5, 0, 1e9) == 2 * PAGE_TOKENS


def test_a_tier_that_is_slower_than_reading_is_never_worth_it() -> None:
    assert floor_tokens(1000, 1, 100, 100_000) == NEVER_TOKENS
    assert floor_tokens(1000, 1, 100, 50_000) == NEVER_TOKENS
    assert floor_tokens(1000, 1, 100, 0) == NEVER_TOKENS
    assert floor_tokens(1000, 1e12, 100, 1e9) == NEVER_TOKENS


@given(
    prefill=st.floats(1, 1e6),
    fixed_ms=st.floats(0, 1e5),
    token_bytes=st.integers(1, 1 << 22),
    bytes_s=st.floats(1e3, 1e12),
)
def test_from_the_floor_on_a_restore_saves_as_much_as_it_takes(
    prefill: float, fixed_ms: float, token_bytes: int, bytes_s: float
) -> None:
    floor = floor_tokens(prefill, fixed_ms, token_bytes, bytes_s)
    assert floor % PAGE_TOKENS == 0
    assert PAGE_TOKENS <= floor <= NEVER_TOKENS
    read_s, copied_s = floor / prefill, floor * token_bytes / bytes_s
    if floor < NEVER_TOKENS:
        assert read_s - copied_s >= 2 * fixed_ms / 1000 * (1 - 1e-6)
        if floor > PAGE_TOKENS:
            less = (floor - PAGE_TOKENS) / floor * (read_s - copied_s)
            assert less <= 2 * fixed_ms / 1000 * (1 + 1e-6)


def test_what_passes_through_two_copies_takes_the_time_of_both() -> None:
    assert one_after_the_other(200.0, 300.0) == pytest.approx(120.0)
    assert one_after_the_other(7.0) == pytest.approx(7.0)


def test_a_window_takes_no_longer_than_it_may() -> None:
    tried: list[int] = []

    def copy_ms(pages: int) -> float:
        tried.append(pages)
        return 0.5 + 0.25 * pages

    assert fitted_pages(1, 1000, 3.0, copy_ms) == 10
    assert tried[0] == 1000
    assert len(tried) <= 4
    assert fitted_pages(1, 8, 3.0, copy_ms) == 8
    assert fitted_pages(1, 1000, 0.1, copy_ms) == 1
    assert fitted_pages(1, 1000, 0.0, copy_ms) == 1
    assert fitted_pages(7, 1000, 0.1, copy_ms) == 7
    assert fitted_pages(7, 7, 0.1, copy_ms) == 7


@given(
    least=st.integers(1, 50),
    more=st.integers(0, 5000),
    most_ms=st.floats(0, 50),
    fixed=st.floats(0, 5),
    page_ms=st.floats(0, 2),
)
def test_a_window_is_the_least_one_or_fits(
    least: int, more: int, most_ms: float, fixed: float, page_ms: float
) -> None:
    def copy_ms(pages: int) -> float:
        return fixed + page_ms * pages

    pages = fitted_pages(least, least + more, most_ms, copy_ms)
    assert least <= pages <= least + more
    assert pages == least or copy_ms(pages) <= most_ms


def test_the_best_time_counts() -> None:
    times = iter([0.0, 9.0, 10.0, 13.0, 20.0, 25.0])
    watch = Stopwatch(lambda: next(times))
    for tokens in (64, 64, 128):
        watch.time(Timed.PREFILL, tokens, lambda: None)
    assert watch.best_ms == {(Timed.PREFILL, 64): 3.0, (Timed.PREFILL, 128): 5.0}
    assert watch.largest(Timed.PREFILL) == (128, 5.0)


class Slow:
    """A runner that does nothing, on a clock that moves as a machine of known rates would.

    A round costs 1 ms, a page 0.5 ms up and 0.25 ms down, an image 2 ms up, and a step of all
    lanes what it is told; in a row, what a round costs beside its step hides behind the step
    before it, unless something moves.
    """

    def __init__(self, num_pages: int, num_cells: int, decode_ms: float = 70.0) -> None:
        self.now_ms = 0.0
        self.decode_ms = decode_ms
        self.device: Any = self
        self.cells: Any = self
        self.pool = jnp.zeros((num_pages, 1))
        self.bank = self.sampler = ()
        self.rows = np.zeros((num_cells, CELL_BYTES), np.uint8)
        self.rounds: list[Round] = []

    def run(self, work: Round) -> object:
        before = self.rounds[-1].decode if self.rounds else ()
        moves = [*work.lowers, *work.raises]
        hidden = before and work.decode and not moves
        self.rounds.append(work)
        self.now_ms += 0.0 if hidden else 1.0
        self.now_ms += 2.0 * sum(1 for one in work.starts if one.image_cells)
        self.now_ms += 0.25 * sum(len(one.pages) for one in work.lowers)
        self.now_ms += 0.5 * sum(len(one.pages) for one in work.raises)
        self.now_ms += self.decode_ms if work.decode else 0.0
        return object()

    def fetch(self, handle: object) -> None:
        assert handle is not None


def rates_of(slow: Slow, window_pages: int, *, fits_decode: bool, image_cells: int = 2) -> Rates:
    watch = Stopwatch(lambda: slow.now_ms)
    watch.best_ms = {
        (Timed.PREFILL, 64): 100.0,
        (Timed.PREFILL, 250): 50.0,
        (Timed.DECODE, 1): 1.0,
        (Timed.DECODE, 4): slow.decode_ms + 1.0,
    }
    return measure(
        slow,  # type: ignore[arg-type]
        watch,
        window_pages=window_pages,
        image_cells=image_cells,
        fits_decode=fits_decode,
    )


def test_the_rates_are_those_of_the_machine() -> None:
    found = rates_of(Slow(101, 200), 100, fits_decode=False)
    assert found.prefill_tokens_s == pytest.approx(5000)
    assert found.decode_ms == 71.0
    assert found.lower_bytes_s == pytest.approx(100 * CELL_BYTES / 0.026)
    assert found.raise_bytes_s == pytest.approx(100 * CELL_BYTES / 0.051)
    assert found.start_ms == pytest.approx(3.0)
    assert found.window_pages == 100


def test_a_window_that_fits_decoding_makes_a_step_a_tenth_longer_either_way() -> None:
    """Up is the slower way: 1 + 0.5 n milliseconds for n pages."""
    for decode_ms, pages in ((69.0, 12), (39.0, 6), (10_000.0, 100)):
        slow = Slow(101, 200, decode_ms)
        assert rates_of(slow, 100, fits_decode=True).window_pages == pages, decode_ms


def test_a_short_step_is_timed_in_a_row_as_it_runs() -> None:
    """In rows of two, n pages make a step of 17.5 ms longer by (1 + n) / 2 ms."""
    slow = Slow(101, 200, 17.0)
    found = rates_of(slow, 100, fits_decode=True, image_cells=1)
    assert found.window_pages == 2
    assert found.decode_ms == pytest.approx(17.5)
    moved = [work for work in slow.rounds if work.decode and (work.raises or work.lowers)]
    assert {bool(work.raises) for work in moved} == {True, False}


def test_a_window_holds_an_image_at_least() -> None:
    """A round carries an image whatever the window, so less would spare nobody."""
    for decode_ms in (5.0, 60.0):
        slow = Slow(101, 200, decode_ms)
        assert rates_of(slow, 100, fits_decode=True, image_cells=30).window_pages == 30
    assert rates_of(Slow(8, 200, 5.0), 100, fits_decode=True, image_cells=30).window_pages == 7


def test_only_pages_and_cells_that_are_there_are_moved() -> None:
    for num_pages, num_cells in ((8, 100), (100, 7)):
        slow = Slow(num_pages, num_cells, 1e6)
        found = rates_of(slow, 50, fits_decode=True)
        assert found.window_pages == 7
        for work in slow.rounds:
            moved: list[tuple[tuple[int, ...], tuple[int, ...]]]
            moved = [(one.pages, one.cells) for one in work.lowers]
            moved += [(one.pages, one.cells) for one in work.raises]
            for pages, cells in moved:
                assert 0 not in pages
                assert max(pages, default=0) < num_pages
                assert max(cells, default=0) < num_cells


def test_the_probe_times_chunks_and_steps_and_the_real_runner_moves() -> None:
    served = model("ember")
    device = empty_device(served.spec, served.shape)
    spec = served.spec.model.state_spec(served.spec.kv_format)
    image_cells = -(-spec.image_bytes // spec.page_bytes)
    ticks = iter(range(1, 1_000_000))
    watch = Stopwatch(lambda: float(next(ticks)))
    given_args = (served.params, served.shape, served.programs, device)
    assert probe.probe(*given_args, watch) == []
    widest = max(served.shape.widths)
    assert watch.largest(Timed.PREFILL)[0] == widest - 10
    assert watch.largest(Timed.DECODE)[0] == served.shape.num_lanes
    arena = HostArena.reserve(20, spec.page_bytes)
    runner = DeviceRunner(*given_args, 4, rows=arena.rows)
    found = measure(runner, watch, window_pages=64, image_cells=image_cells, fits_decode=False)
    assert found.window_pages == 64
    assert found.raise_bytes_s == pytest.approx(1000 * 20 * spec.page_bytes)  # a tick each
    runner.cells = None
    arena.close()
