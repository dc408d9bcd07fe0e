"""Whether states are written to disk: what becomes of that after a job in trouble."""

import enum
from dataclasses import dataclass, replace

from state.tiers.jobs import Trouble

RETRY_MS = 10_000.0
"""After this time one write is tried again, to see whether the disk has room or works."""

MOST_FAILURES = 3
"""Writes in a row that may fail for no known reason until writing pauses."""


class Condition(enum.StrEnum):
    """Whether states are written. They are read in any condition."""

    WRITING = "writing"
    PAUSED = "paused"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Writer:
    """How writing goes.

    Args:
        condition: whether anything is written now.
        since_ms: when that began, or was last confirmed.
        failures: writes in a row that failed and were not refused for want of room.
        why: what stopped it, in words.
    """

    condition: Condition = Condition.WRITING
    since_ms: float = 0.0
    failures: int = 0
    why: str = ""

    def after(self, trouble: Trouble, message: str, now_ms: float) -> "Writer":
        """How it goes on after a job in trouble."""
        if self.condition is Condition.DISABLED:
            return self
        if trouble is Trouble.READ_ONLY:
            return Writer(Condition.DISABLED, now_ms, 0, message)
        failures = self.failures + (trouble is Trouble.FAILED)
        if trouble is Trouble.FULL or failures >= MOST_FAILURES:
            return Writer(Condition.PAUSED, now_ms, failures, message)
        return replace(self, failures=failures)

    def after_success(self, now_ms: float) -> "Writer":
        """How it goes on after a job that wrote its file."""
        if self.condition is Condition.DISABLED:
            return self
        return Writer(since_ms=now_ms if self.condition is Condition.PAUSED else self.since_ms)
