"""What this machine does in a second, measured at load, and what follows for the tiers.

A restore pays once it saves more time than it takes. The floor of a tier is twice that, because a
rate measured on an idle machine flatters it. The window on a machine whose device memory is the
host's is what is copied in a tenth of a decode step, so that decoding loses no more than that.
"""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import jax
import numpy as np

from ignisd.engine.moves import Lower, Raise
from ignisd.engine.runner import DeviceRunner
from ignisd.engine.types import LaneStart, Round, SamplingParams
from state.spec import PAGE_TOKENS

NEVER_TOKENS = 1 << 30
"""The floor of a tier that takes longer to restore a token than the model takes to read it."""

_FLOOR_MARGIN = 2.0
_DECODE_PART = 0.1
_REPEATS = 3
_MOST_TRIES = 6


class Timed(enum.StrEnum):
    """What is timed."""

    PREFILL = "prefill"
    DECODE = "decode"
    LOWER = "lower"
    RAISE = "raise"
    START = "start"


def _no_time() -> float:
    return 0.0


@dataclass(slots=True)
class Stopwatch:
    """The shortest that things took, in milliseconds.

    Args:
        clock: milliseconds that never run backwards; without one nothing takes any time.
    """

    clock: Callable[[], float] = _no_time
    best_ms: dict[tuple[Timed, int], float] = field(default_factory=dict)

    def time(self, what: Timed, size: int, run: Callable[[], object]) -> None:
        """Run something of a size, and keep how long it took if that is a record."""
        began_ms = self.clock()
        run()
        took_ms = self.clock() - began_ms
        self.best_ms[what, size] = min(took_ms, self.best_ms.get((what, size), math.inf))

    def largest(self, what: Timed) -> tuple[int, float]:
        """The largest size that was timed, and its time."""
        size = max(size for kind, size in self.best_ms if kind is what)
        return size, self.best_ms[what, size]


@dataclass(frozen=True, slots=True)
class Rates:
    """What was measured.

    Args:
        prefill_tokens_s: tokens read in a second, in full chunks at the start of a prompt.
        decode_ms: a decode step of all lanes.
        lower_bytes_s, raise_bytes_s: pages down to kv_ram and up from there.
        start_ms: what a restore from kv_ram takes beside its pages.
        window_pages: what a round may move.
    """

    prefill_tokens_s: float
    decode_ms: float
    lower_bytes_s: float
    raise_bytes_s: float
    start_ms: float
    window_pages: int


def floor_tokens(prefill_tokens_s: float, fixed_ms: float, token_bytes: int, bytes_s: float) -> int:
    """The fewest tokens that are worth restoring, whole pages: twice those that break even.

    Args:
        prefill_tokens_s: tokens that the model reads in a second.
        fixed_ms: what a restore takes, however short.
        token_bytes: bytes of a token's keys and values.
        bytes_s: bytes that come up in a second.
    """
    saved_s = _per(prefill_tokens_s) - token_bytes * _per(bytes_s)
    if saved_s <= 0:
        return NEVER_TOKENS
    pages = math.ceil(min(_FLOOR_MARGIN * fixed_ms / 1000 / saved_s, NEVER_TOKENS) / PAGE_TOKENS)
    return max(pages, 1) * PAGE_TOKENS


def one_after_the_other(*bytes_s: float) -> float:
    """The rate of what passes through several copies in turn."""
    return _per(sum(map(_per, bytes_s)))


def fitted_pages(most_pages: int, most_ms: float, copy_ms: Callable[[int], float]) -> int:
    """The pages that are copied in so much time, one at least.

    Args:
        most_pages: never more.
        most_ms: the time.
        copy_ms: measures how long so many pages take.
    """
    pages = most_pages
    for _ in range(_MOST_TRIES):
        took_ms = copy_ms(pages)
        if took_ms <= most_ms or pages == 1:
            return pages
        pages = max(min(int(pages * most_ms / took_ms), pages - 1), 1)
    return 1


def measure(
    runner: DeviceRunner,
    watch: Stopwatch,
    *,
    window_pages: int,
    image_cells: int,
    fits_decode: bool,
) -> Rates:
    """Times what moves between pool and arena, which must hold nothing yet.

    Args:
        runner: with an arena.
        watch: has timed chunks and decode steps; see `probe`.
        window_pages: what a round may move at most.
        image_cells: cells of an image.
        fits_decode: choose as many pages as are copied in a tenth of a decode step.
    """
    assert runner.cells is not None, "there is no arena to measure"
    num_cells, cell_bytes = runner.cells.rows.shape
    num_pages = jax.tree.leaves(runner.device.pool)[0].shape[0]
    most_pages = min(window_pages, num_pages - 1, num_cells)
    trial = _Moves(runner, watch)

    def copy_ms(pages: int) -> float:
        # Up first: reading memory that was never written costs nothing.
        return max(trial.lift(pages), trial.lower(pages))

    tokens, chunk_ms = watch.largest(Timed.PREFILL)
    _, decode_ms = watch.largest(Timed.DECODE)
    copy_ms(most_pages)
    if fits_decode:
        window_pages = fitted_pages(most_pages, _DECODE_PART * decode_ms, copy_ms)
    # The largest copies say most of a whole state: a small one finds its pages in the caches.
    bytes_copied = 1000 * most_pages * int(cell_bytes)
    return Rates(
        prefill_tokens_s=1000 * tokens * _per(chunk_ms),
        decode_ms=decode_ms,
        lower_bytes_s=bytes_copied * _per(watch.best_ms[Timed.LOWER, most_pages]),
        raise_bytes_s=bytes_copied * _per(watch.best_ms[Timed.RAISE, most_pages]),
        start_ms=trial.start(image_cells),
        window_pages=window_pages,
    )


class _Moves:
    """Moves pages and an image down and up, through rounds as the scheduler makes them."""

    def __init__(self, runner: DeviceRunner, watch: Stopwatch) -> None:
        self._runner = runner
        self._watch = watch

    def lower(self, pages: int) -> float:
        """So many pages go down; the shortest time in milliseconds."""
        move = Lower(0, tuple(range(1, pages + 1)), tuple(range(pages)))
        return self._best(Timed.LOWER, pages, Round(0, lowers=(move,)))

    def lift(self, pages: int) -> float:
        """So many pages come up."""
        move = Raise(0, tuple(range(pages)), tuple(range(1, pages + 1)))
        return self._best(Timed.RAISE, pages, Round(0, raises=(move,)))

    def start(self, image_cells: int) -> float:
        """A sequence goes on from an image in the arena; it is put there first."""
        cells = tuple(range(image_cells))
        self._run(Round(0, lowers=(Lower(0, (), (), lane=0, image_cells=cells),)))
        begin = LaneStart(
            lane=0,
            slot=None,
            position=0,
            sampling=SamplingParams(),
            prompt=np.zeros(0, np.int32),
            image_cells=cells,
        )
        return self._best(Timed.START, image_cells, Round(0, starts=(begin,)))

    def _best(self, what: Timed, size: int, work: Round) -> float:
        for _ in range(_REPEATS):
            self._watch.time(what, size, partial(self._run, work))
        return self._watch.best_ms[what, size]

    def _run(self, work: Round) -> None:
        self._runner.fetch(self._runner.run(work))
        device = self._runner.device
        jax.block_until_ready((device.pool, device.bank, device.sampler))


def _per(value: float) -> float:
    """One divided by it; nothing takes no time at all."""
    return 1.0 / max(value, 1e-9)
