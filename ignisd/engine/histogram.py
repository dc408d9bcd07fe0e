"""How long things took: counts of observations up to each of some bounds."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Self

LOOKUP_SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
ROUND_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """Counts observations up to each of some ascending bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count one value, or several that are equal."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def copy(self) -> Self:
        """The same counts, which go their own way from here."""
        other = type(self)(self._bounds)
        other._counts = list(self._counts)
        other.sum = self.sum
        return other

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Upper bound as text, and how many observations lie at or below it."""
        total = 0
        labels = [*(str(bound) for bound in self._bounds), "+Inf"]
        for label, count in zip(labels, self._counts, strict=True):
            total += count
            yield label, total
