"""Ranges of the sampling fields; what lies outside is refused, never clamped."""

import math
from dataclasses import dataclass

from ignisd.chat.types import SamplingFields
from ignisd.errors import RequestError


@dataclass(frozen=True, slots=True)
class Range:
    """The values from `low` to `high`; `low` itself is outside when `open_low`."""

    low: float
    high: float
    open_low: bool = False

    def __contains__(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        return (self.low < value if self.open_low else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        above = "above" if self.open_low else "at least"
        return f"{above} {self.low:g} and at most {self.high:g}"


RANGES = {
    "temperature": Range(0.0, 2.0),
    "top_k": Range(-1, 2**31 - 1),
    "top_p": Range(0.0, 1.0, open_low=True),
    "min_p": Range(0.0, 1.0),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    "repetition_penalty": Range(0.0, 10.0, open_low=True),
    "seed": Range(-(2**63), 2**63 - 1),
}
"""By field name. A `top_k` of -1 or 0 is off."""

MAX_STOPS = 4
MAX_STOP_CHARS = 1024


def check_range(name: str, value: float | None, limit: Range) -> None:
    """Refuse a value outside its range, naming field, value and limit."""
    if value is not None and value not in limit:
        raise RequestError(f"{name} is {value}, but must be {limit}.", name)


def check_sampling(fields: SamplingFields) -> None:
    """Refuse the first sampling field that is out of range."""
    for name, limit in RANGES.items():
        check_range(name, getattr(fields, name), limit)


def check_stop(stop: str | list[str] | None) -> tuple[str, ...]:
    """The stop strings as a tuple: at most four, none of them empty or overlong."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop has {len(stops)} strings, but at most {MAX_STOPS}.", "stop")
    for index, text in enumerate(stops):
        if not 1 <= len(text) <= MAX_STOP_CHARS:
            raise RequestError(
                f"stop[{index}] has {len(text)} characters, but must have 1 to {MAX_STOP_CHARS}.",
                f"stop[{index}]" if not isinstance(stop, str) else "stop",
            )
    return stops
