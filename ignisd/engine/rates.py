"""What this machine does in a second, measured at load, and what follows for the tiers.

A restore pays once it saves more time than it takes. The floor of a tier is twice that, because a
rate measured on an idle machine flatters it. The window on a machine whose device memory is the
host's makes a decode step a tenth longer at most.
"""

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import numpy as np

from ignisd.engine.moves import Lower, Raise
from ignisd.engine.runner import DeviceRunner, no_time
from ignisd.engine.tiers import NEVER_TOKENS
from ignisd.engine.types import DecodeLane, LaneStart, Round, SamplingParams
from state.spec import PAGE_TOKENS

_FLOOR_MARGIN = 2.0
_DECODE_PART = 0.1
_REPEATS = 3
_ROW_REPEATS = 5
_MOST_TRIES = 6
_SHORT_STEP_MS = 20.0
"""A step as short as this overlaps with much of what the host does beside it, and a window that
moves ends that; so steps are timed with a window and without, a row of them at a time."""
_ROW_MS = 40.0
_MOST_IN_ROW = 16


class Timed(enum.StrEnum):
    """What is timed."""

    PREFILL = "prefill"
    DECODE = "decode"
    LOWER = "lower"
    RAISE = "raise"
    START = "start"
    STEPS = "steps"
    STEPS_LOWERING = "steps lowering"
    STEPS_RAISING = "steps raising"


@dataclass(slots=True)
class Stopwatch:
    """The shortest that things took, in milliseconds.

    Args:
        clock: milliseconds that never run backwards; without one nothing takes any time.
    """

    clock: Callable[[], float] = no_time
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


def fitted_pages(
    least_pages: int, most_pages: int, most_ms: float, copy_ms: Callable[[int], float]
) -> int:
    """The pages that are copied in so much time.

    Args:
        least_pages: never less, however long they take; at least 1.
        most_pages: never more.
        most_ms: the time.
        copy_ms: measures how long so many pages take.
    """
    pages, took_ms = most_pages, copy_ms(most_pages)
    page_ms = took_ms / pages
    for _ in range(_MOST_TRIES):
        if took_ms <= most_ms or pages <= least_pages:
            return pages
        # What does not shrink with the window leaves the less for its pages.
        fixed_ms = max(took_ms - page_ms * pages, 0.0)
        fewer = int((most_ms - fixed_ms) / page_ms) if page_ms > 0 else least_pages
        fewer = max(min(fewer, pages - 1), least_pages)
        fewer_ms = copy_ms(fewer)
        page_ms = max(took_ms - fewer_ms, 0.0) / (pages - fewer)
        pages, took_ms = fewer, fewer_ms
    return pages if took_ms <= most_ms else least_pages


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
        fits_decode: choose as many pages as make a decode step a tenth longer, but an image's
            worth at least.
    """
    assert runner.cells is not None, "there is no arena to measure"
    num_cells, cell_bytes = runner.cells.rows.shape
    num_pages = jax.tree.leaves(runner.device.pool)[0].shape[0]
    most_pages = min(window_pages, num_pages - 1, num_cells)
    tokens, chunk_ms = watch.largest(Timed.PREFILL)
    num_lanes, decode_ms = watch.largest(Timed.DECODE)
    trial = _Trial(runner, watch, min(num_pages - 1, num_cells), num_lanes)
    trial.copy_ms(most_pages)
    # A round may carry an image, whatever the window: one that holds less spares the lanes nothing.
    least_pages = min(image_cells, most_pages)
    if fits_decode and decode_ms > _SHORT_STEP_MS:
        window_pages = fitted_pages(
            least_pages, most_pages, _DECODE_PART * decode_ms, trial.copy_ms
        )
    elif fits_decode:
        steps = max(min(int(_ROW_MS * _per(decode_ms)), _MOST_IN_ROW), 1)
        trial.longer_ms(1, steps)
        most_ms = _DECODE_PART * watch.best_ms[Timed.STEPS, 0] / steps
        window_pages = fitted_pages(
            least_pages, most_pages, most_ms, partial(trial.longer_ms, steps=steps)
        )
        decode_ms = watch.best_ms[Timed.STEPS, 0] / steps
    # The largest copies say most of a whole state: a small one finds its pages in the caches.
    bytes_copied = 1000 * most_pages * int(cell_bytes)
    return Rates(
        prefill_tokens_s=1000 * tokens * _per(chunk_ms),
        decode_ms=decode_ms,
        lower_bytes_s=bytes_copied * _per(watch.best_ms[Timed.LOWER, most_pages]),
        raise_bytes_s=bytes_copied * _per(watch.best_ms[Timed.RAISE, most_pages]),
        start_ms=trial.start_ms(image_cells),
        window_pages=window_pages,
    )


class _Trial:
    """Moves pages and an image, and steps lanes, through rounds as the scheduler makes them.

    Args:
        runner: whose.
        watch: takes the times.
        room_pages: pages after the null page, and cells, that may be moved.
        num_lanes: that are stepped.
    """

    def __init__(
        self, runner: DeviceRunner, watch: Stopwatch, room_pages: int, num_lanes: int
    ) -> None:
        self._runner = runner
        self._watch = watch
        self._room_pages = room_pages
        self._num_lanes = num_lanes
        self._number = 0

    def copy_ms(self, pages: int) -> float:
        """The slower way for so many pages, on its own."""
        # Up first: reading memory that was never written costs nothing.
        return max(self._copied(Timed.RAISE, pages), self._copied(Timed.LOWER, pages))

    def longer_ms(self, pages: int, steps: int) -> float:
        """How much longer a step takes while so many pages move, the slower way.

        Each step of a row is handed over before the one before it is waited for. Rows with and
        without moves take turns, so that what else the machine does slows them alike.
        """
        ways = (Timed.STEPS_RAISING, Timed.STEPS_LOWERING)
        for _ in range(_ROW_REPEATS):
            for what, moved in ((Timed.STEPS, 0), *((way, pages) for way in ways)):
                self._clear()
                row = [self._round(what, moved) for _ in range(steps)]
                self._watch.time(what, moved, partial(run_rounds, self._runner, row))
        best_ms = self._watch.best_ms
        return (max(best_ms[way, pages] for way in ways) - best_ms[Timed.STEPS, 0]) / steps

    def start_ms(self, image_cells: int) -> float:
        """A sequence goes on from an image in the arena; it is put there first."""
        cells = tuple(range(image_cells))
        run_rounds(self._runner, [Round(0, lowers=(Lower(0, (), (), lane=0, image_cells=cells),))])
        begin = Round(0, starts=(replace(_cleared(0), image_cells=cells),))
        for _ in range(_REPEATS):
            self._watch.time(Timed.START, image_cells, partial(run_rounds, self._runner, [begin]))
        return self._watch.best_ms[Timed.START, image_cells]

    def _copied(self, what: Timed, pages: int) -> float:
        for _ in range(_REPEATS):
            copying = [self._round(what, pages)]
            self._watch.time(what, pages, partial(run_rounds, self._runner, copying))
        return self._watch.best_ms[what, pages]

    def _clear(self) -> None:
        starts = tuple(map(_cleared, range(self._num_lanes)))
        run_rounds(self._runner, [Round(0, starts=starts)])

    def _round(self, what: Timed, pages: int) -> Round:
        """The next round: it moves other pages than the one before, if there is room for that."""
        self._number += 1
        first = self._number * pages % (self._room_pages - pages + 1)
        cells = tuple(range(first, first + pages))
        numbers = tuple(cell + 1 for cell in cells)
        steps = what in (Timed.STEPS, Timed.STEPS_LOWERING, Timed.STEPS_RAISING)
        down = what in (Timed.LOWER, Timed.STEPS_LOWERING)
        up = what in (Timed.RAISE, Timed.STEPS_RAISING)
        return Round(
            self._number,
            lowers=(Lower(0, numbers, cells),) if down else (),
            raises=(Raise(0, cells, numbers),) if up else (),
            # What the lanes write goes to the page that takes padding.
            decode=tuple(DecodeLane(lane, lane, 0, ()) for lane in range(self._num_lanes))
            if steps
            else (),
        )


def run_rounds(runner: DeviceRunner, rounds: Sequence[Round]) -> None:
    """Execute rounds as the engine does, each handed over before the one before it is waited for;
    returns when the device is at rest."""
    under_way: object | None = None
    for work in rounds:
        handle = runner.run(work)
        if under_way is not None:
            runner.fetch(under_way)
        under_way = handle
    if under_way is not None:
        runner.fetch(under_way)
    device = runner.device
    jax.block_until_ready((device.pool, device.bank, device.sampler))


def _cleared(lane: int) -> LaneStart:
    """A lane that has read nothing."""
    return LaneStart(
        lane=lane,
        slot=None,
        position=0,
        sampling=SamplingParams(temperature=0.0),
        prompt=np.zeros(0, np.int32),
    )


def _per(value: float) -> float:
    """One divided by it; nothing takes no time at all."""
    return 1.0 / max(value, 1e-9)
