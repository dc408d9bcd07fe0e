"""Who holds each page of the pool.

A page is free exactly when nobody holds it. There is no list of free pages that could disagree:
the lowest free numbers are found anew at every take.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NULL_PAGE = 0
"""The page that takes the writes of padding. It is never handed out and holds nothing."""


class PagesExhausted(Exception):
    """More pages were asked for than are free.

    Attributes:
        wanted: pages asked for.
        free: pages that nobody holds.
    """

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(
            f"wanted {wanted} pages, {free} are free; raise --vram-budget-bytes for a larger pool"
        )
        self.wanted = wanted
        self.free = free


@dataclass(frozen=True, slots=True, eq=False)
class PageLedger:
    """Holders of every page, as a value: each change gives a new ledger.

    Args:
        counts: [num_pages] int32, read-only. Holders of each page; -1 for the null page, which
            can be neither free nor held.
    """

    counts: npt.NDArray[np.int32]

    @staticmethod
    def empty(num_pages: int) -> "PageLedger":
        """A pool of `num_pages` pages, the null page counted, with nothing held."""
        assert num_pages >= 1, f"a pool of {num_pages} pages has no room for the null page"
        counts = np.zeros(num_pages, np.int32)
        counts[NULL_PAGE] = -1
        return _frozen(counts)

    @property
    def num_pages(self) -> int:
        """Pages in the pool, the null page counted."""
        return int(self.counts.size)

    @property
    def num_free(self) -> int:
        """Pages that `take` could hand out."""
        return self.num_pages - int(np.count_nonzero(self.counts))

    @property
    def num_used(self) -> int:
        """Pages with at least one holder."""
        return self.num_pages - 1 - self.num_free

    def holders(self, page: int) -> int:
        """How many tables, retained states and moves list the page, which is not the null page."""
        self._check((page,))
        return int(self.counts[page])

    def take(self, count: int) -> "tuple[PageLedger, tuple[int, ...]]":
        """Hand out the `count` lowest free pages, each with one holder.

        Raises:
            PagesExhausted: fewer are free. Nothing was taken.
        """
        assert count >= 0, f"cannot take {count} pages"
        free = np.flatnonzero(self.counts == 0)
        if free.size < count:
            raise PagesExhausted(count, int(free.size))
        chosen = free[:count]
        counts = self.counts.copy()
        counts[chosen] = 1
        return _frozen(counts), tuple(chosen.tolist())

    def share(self, pages: Sequence[int]) -> "PageLedger":
        """One holder more for each page; all of them must be held already."""
        return self._changed(pages, 1)

    def drop(self, pages: Sequence[int]) -> "PageLedger":
        """One holder less for each page; a page that loses its last holder is free."""
        return self._changed(pages, -1)

    def num_sole(self, pages: Sequence[int]) -> int:
        """How many of the pages would be free after one drop of each."""
        self._check(pages)
        return int(np.count_nonzero(self.counts[np.asarray(pages, np.intp)] == 1))

    def _changed(self, pages: Sequence[int], step: int) -> "PageLedger":
        self._check(pages)
        chosen = np.asarray(pages, np.intp)
        held = self.counts[chosen]
        assert (held > 0).all(), (
            f"page {pages[int(np.argmin(held))]} has no holder and cannot change by {step}"
        )
        counts = self.counts.copy()
        counts[chosen] = held + step
        return _frozen(counts)

    def _check(self, pages: Sequence[int]) -> None:
        if not pages:
            return
        lowest, highest = min(pages), max(pages)
        assert lowest > NULL_PAGE, f"page {lowest} is the null page or none; the first is 1"
        assert highest < self.num_pages, f"page {highest} of a pool of {self.num_pages}"
        assert len(set(pages)) == len(pages), (
            f"{len(pages) - len(set(pages))} of {len(pages)} pages are listed twice"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PageLedger) and np.array_equal(self.counts, other.counts)

    def __hash__(self) -> int:
        return hash(self.counts.tobytes())

    def __repr__(self) -> str:
        return f"PageLedger({self.num_used} used, {self.num_free} free of {self.num_pages})"


def _frozen(counts: npt.NDArray[np.int32]) -> PageLedger:
    counts.flags.writeable = False
    return PageLedger(counts)
