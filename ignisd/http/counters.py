"""What HTTP counts by itself: refusals, and times as clients see them."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from ignisd.errors import IgnisError
from ignisd.http.reply import Outcome

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_GAP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Histogram:
    """Counts observations up to each of some ascending bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Upper bound as text, and how many observations lie at or below it."""
        total = 0
        labels = [*(str(bound) for bound in self._bounds), "+Inf"]
        for label, count in zip(labels, self._counts, strict=True):
            total += count
            yield label, total


class HttpCounters:
    """Totals since the start; it belongs to the event loop."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.ttft_s = Histogram(_SECONDS)
        self.inter_token_s = Histogram(_GAP_SECONDS)
        self.duration_s = Histogram(_SECONDS)

    def count_error(self, error: IgnisError) -> None:
        """An error was answered, or ended a stream."""
        self.errors[error.code] += 1

    def observe(self, outcome: Outcome) -> None:
        """An answer was completed."""
        self.answers[outcome.finish_reason] += 1
        timings = outcome.timings
        if timings.ttft_ms is not None:
            self.ttft_s.observe(timings.ttft_ms / 1000)
        if outcome.usage.completion_tokens > 1:
            gaps = outcome.usage.completion_tokens - 1
            self.inter_token_s.observe(timings.decode_ms / 1000 / gaps)
        if timings.finished_ms is not None:
            self.duration_s.observe((timings.finished_ms - timings.arrival_ms) / 1000)
