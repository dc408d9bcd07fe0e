"""Lanes that decode while a window moves, against lanes that decode alone."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from ignisd.bench.moves import LANE_TOKENS, MOST_SLOWER, Move, Places
from ignisd.bench.plain import took_s
from ignisd.engine.moves import Lower, Raise
from ignisd.engine.types import DecodeLane, Round
from state.spec import PAGE_TOKENS

_ROW_S = 0.3
_MOST_IN_ROW = 64
_ROWS = 3


class Lanes(Protocol):
    """Lanes whose steps are timed."""

    @property
    def places(self) -> Places:
        """Where things lie."""
        ...

    @property
    def window_pages(self) -> int:
        """Pages that a round moves beside a decode step."""
        ...

    @property
    def window_bytes(self) -> int:
        """Their bytes."""
        ...

    @property
    def window_is_least(self) -> bool:
        """Whether a smaller window is never chosen."""
        ...

    def read_lanes(self) -> None:
        """Every lane reads a prompt of its own, and has its first token."""
        ...

    def run(self, rounds: Sequence[Round]) -> None:
        """Execute rounds and wait until the device is at rest."""
        ...


class Rows:
    """Lanes that decode, one step after the other, alone and beside a window that moves."""

    def __init__(self, bench: Lanes) -> None:
        self._bench = bench
        alone = Move("decode, steps in a row", 0)
        moved = bench.window_bytes
        # No window is chosen smaller than an image, however short the steps of a small model are.
        least = None if bench.window_is_least else 1 - MOST_SLOWER
        self._ways = {
            "alone": alone,
            "down": Move("decode beside a window down", moved, alone.name, least),
            "up": Move("decode beside a window up", moved, alone.name, least),
        }
        self._steps = 0
        self._window = 0
        self._position = 0

    @property
    def moves(self) -> list[Move]:
        """What was measured: rows of steps."""
        return list(self._ways.values())

    def measure(self, repetitions: int) -> None:
        """A row of each kind, over and over, from the same lengths of context on."""
        bench = self._bench
        bench.read_lanes()
        self._position = LANE_TOKENS
        if not self._steps:
            self._row("alone", 2)
            step_s = took_s(partial(self._row, "alone", 4)) / 4
            left = len(bench.places.lanes[0]) * PAGE_TOKENS - LANE_TOKENS - 6
            fitting = left // (_ROWS * len(self._ways))
            self._steps = max(min(int(_ROW_S / step_s), fitting, _MOST_IN_ROW), 1)
        for _ in range(_ROWS):
            for way, move in self._ways.items():
                move.spent_s.append(took_s(partial(self._row, way, self._steps)))
        for way in ("down", "up"):
            self._ways[way].base_s = list(self._ways["alone"].spent_s)

    def _row(self, way: str, steps: int) -> None:
        self._bench.run([self._step(way) for _ in range(steps)])

    def _step(self, way: str) -> Round:
        places, pages = self._bench.places, self._bench.window_pages
        first = self._window * pages % (len(places.pages) - pages + 1)
        self._window += way != "alone"
        taken, cells = places.pages[first : first + pages], places.cells[first : first + pages]
        decode = tuple(
            DecodeLane(lane, lane, self._position, table) for lane, table in enumerate(places.lanes)
        )
        self._position += 1
        return Round(
            0,
            lowers=(Lower(0, taken, cells),) if way == "down" else (),
            raises=(Raise(0, cells, taken),) if way == "up" else (),
            decode=decode,
        )
