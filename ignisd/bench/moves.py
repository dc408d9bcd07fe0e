"""A move between tiers as it is measured, and where things lie meanwhile."""

from dataclasses import dataclass, field

import numpy as np

LEAST_SHARE = 0.7
"""Of the rate of a plain copy, that moves of pages reach."""
MOST_SLOWER = 0.1
"""Of their rate, that decoding lanes lose while a window moves."""
LANE_TOKENS = 512
"""That each lane has read before it decodes."""
ROW_TOKENS = 1024
"""That each lane decodes at most before it starts over."""


@dataclass(slots=True)
class Move:
    """One kind of move, and what it is held against.

    Args:
        name: what moves from where to where.
        num_bytes: that it moves.
        against: what `base_s` is; empty where there is nothing to compare with.
        least: share of the other's rate that is claimed; None where nothing is.
        spent_s, base_s: each time that it was measured.
    """

    name: str
    num_bytes: int
    against: str = ""
    least: float | None = None
    spent_s: list[float] = field(default_factory=list)
    base_s: list[float] = field(default_factory=list)

    @property
    def share(self) -> float | None:
        """Of the other's rate: the better of what medians and records say, as a machine that is
        busy with other things can only slow either down."""
        if not self.base_s:
            return None
        middle = float(np.median(self.base_s) / np.median(self.spent_s))
        return max(middle, min(self.base_s) / min(self.spent_s))

    @property
    def holds(self) -> bool:
        """Whether it does what is claimed of it."""
        return self.least is None or (self.share is not None and self.share >= self.least)


@dataclass(frozen=True, slots=True)
class Places:
    """Where things lie while they are measured.

    Args:
        lanes: the pages of each lane that decodes.
        pages: those of the state that moves, in no order.
        cells, other_cells: for it, each in no order.
        image_cells, other_image_cells: for its image.
    """

    lanes: tuple[tuple[int, ...], ...]
    pages: tuple[int, ...]
    cells: tuple[int, ...]
    other_cells: tuple[int, ...]
    image_cells: tuple[int, ...]
    other_image_cells: tuple[int, ...]
