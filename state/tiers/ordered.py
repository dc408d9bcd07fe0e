"""A sorted set that is a value: a change copies one run of it and shares the rest."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

Item = TypeVar("Item", bound=tuple[Any, ...])

MOST_IN_RUN = 256
"""With 10,000 items a change copies at most this many of them and some 80 references to runs."""


@dataclass(frozen=True, slots=True)
class OrderedSet(Generic[Item]):
    """Items in ascending order, none twice.

    Args:
        runs: the items one after the other, cut into runs of 1 to `MOST_IN_RUN`.
    """

    runs: tuple[tuple[Item, ...], ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def __iter__(self) -> Iterator[Item]:
        return chain.from_iterable(self.runs)

    def __reversed__(self) -> Iterator[Item]:
        return chain.from_iterable(map(reversed, reversed(self.runs)))

    def __contains__(self, item: Item) -> bool:
        at = self._run_for(item)
        if at == len(self.runs):
            return False
        run = self.runs[at]
        inside = bisect_left(run, item)
        return inside < len(run) and run[inside] == item

    def add(self, item: Item) -> "OrderedSet[Item]":
        """With one item more, which is not in it."""
        if not self.runs:
            return OrderedSet(((item,),))
        at = min(self._run_for(item), len(self.runs) - 1)
        run = self.runs[at]
        inside = bisect_left(run, item)
        assert run[inside : inside + 1] != (item,), "an ordered set holds the item already"
        grown = (*run[:inside], item, *run[inside:])
        if len(grown) <= MOST_IN_RUN:
            return OrderedSet((*self.runs[:at], grown, *self.runs[at + 1 :]))
        half = len(grown) // 2
        return OrderedSet((*self.runs[:at], grown[:half], grown[half:], *self.runs[at + 1 :]))

    def remove(self, item: Item) -> "OrderedSet[Item]":
        """Without an item that is in it. Small runs are joined to their neighbours."""
        at = self._run_for(item)
        run = self.runs[at] if at < len(self.runs) else ()
        inside = bisect_left(run, item)
        assert run[inside : inside + 1] == (item,), "an ordered set does not hold the item"
        left = (*run[:inside], *run[inside + 1 :])
        before, after = self.runs[:at], self.runs[at + 1 :]
        if after and len(left) + len(after[0]) <= MOST_IN_RUN // 2:
            left, after = (*left, *after[0]), after[1:]
        if before and len(before[-1]) + len(left) <= MOST_IN_RUN // 2:
            before, left = before[:-1], (*before[-1], *left)
        return OrderedSet((*before, *((left,) if left else ()), *after))

    def starting(self, reached: Callable[[Item], bool]) -> Iterator[Item]:
        """The items from the first one on for which `reached` holds, which holds from there on."""
        at = bisect_left(self.runs, True, key=lambda run: reached(run[-1]))
        if at == len(self.runs):
            return
        yield from self.runs[at][bisect_left(self.runs[at], True, key=reached) :]
        yield from chain.from_iterable(self.runs[at + 1 :])

    def around(self, item: Item) -> tuple[Item | None, Item | None]:
        """The greatest item below one that need not be in the set, and the least not below it."""
        at = self._run_for(item)
        here = self.runs[at] if at < len(self.runs) else ()
        inside = bisect_left(here, item)
        before = here[:inside] or (self.runs[at - 1] if at else ())
        return before[-1] if before else None, here[inside] if here else None

    def _run_for(self, item: Item) -> int:
        """Number of the first run that does not end before the item, or how many runs there are."""
        return bisect_left(self.runs, item, key=lambda run: run[-1])
