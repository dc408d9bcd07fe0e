"""What HTTP counts by itself: refusals, and times as clients see them."""

from collections import Counter

from ignisd.engine.histogram import Histogram
from ignisd.errors import IgnisError
from ignisd.http.reply import Outcome

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_GAP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class HttpCounters:
    """Totals since the start; it belongs to the event loop."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.ttft_s = Histogram(_SECONDS)
        self.inter_token_s = Histogram(_GAP_SECONDS)
        self.duration_s = Histogram(_SECONDS)

    def count_error(self, error: IgnisError) -> None:
        """An error was answered, or ended a stream."""
        self.errors[error.code] += 1

    def count_refusal(self, error: IgnisError) -> None:
        """A request was answered with an error before the engine took it."""
        self.count_error(error)
        self.refused[error.code] += 1

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
