"""Ranges of the sampling fields; what lies outside is refused, never clamped."""

from dataclasses import dataclass

from ignisd.chat.types import SamplingFields
from ignisd.errors import RequestError, shown


@dataclass(frozen=True, slots=True)
class Range:
    """The values from `low` to `high`, both finite; `low` itself is outside when `open_low`."""

    low: float
    high: float
    open_low: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.open_low else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        above = "above" if self.open_low else "at least"
        return f"{above} {_exact(self.low)} and at most {_exact(self.high)}"


def _exact(bound: float) -> str:
    """A bound to its last digit; whole ones without a fraction."""
    return str(int(bound)) if bound == int(bound) else str(bound)


RANGES = {
    "temperature": Range(0.0, 2.0),
    "top_k": Range(-1, 2**31 - 1),
    "top_p": Range(0.0, 1.0, open_low=True),
    "min_p": Range(0.0, 1.0),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    "repetition_penalty": Range(0.0, 10.0, open_low=True),
    "seed": Range(-(2**63), 2**63 - 1),
    "n": Range(1, 8),
}
"""By field name. A `top_k` of -1 or 0 is off."""

MAX_STOPS = 4
MAX_STOP_CHARS = 1024


def check_range(name: str, value: float | None, limit: Range) -> None:
    """Refuse a value outside its range, naming field, value and limit."""
    if value is not None and value not in limit:
        raise RequestError(f"{name} is {shown(value)}, but must be {limit}.", name)


def check_sampling(fields: SamplingFields) -> None:
    """Refuse the first sampling field that is out of range."""
    for name in fields.__slots__:
        check_range(name, getattr(fields, name), RANGES[name])


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
