"""Log lines: `event key=value ...` or one JSON object a line, and the `done` line of a request.

A line carries numbers and identities, never the text of a prompt or of an answer. Line breaks in
a value are escaped, so that nothing a client sends can forge a line.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

from ignisd.engine.types import Finish, FinishReason, Notice

Value = str | int | float | bool | None

_PLAIN = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_JOURNAL_PRIORITY = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
_FIELDS = "fields"

_done = logging.getLogger("ignisd.done")
_engine = logging.getLogger("ignisd.engine")


def configure(
    level: str, line_format: str, *, journal: bool = False, stream: TextIO | None = None
) -> None:
    """Send every logger's lines to `stream` (default: standard error).

    Args:
        level: debug, info, warning or error.
        line_format: text or json.
        journal: the journal reads the stream: it wants a priority and brings its own time.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if line_format == "json" else TextFormatter(journal))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def write(logger: logging.Logger, level: int, event: str, **fields: Value) -> None:
    """Log `event` with named values; one that is None is left out."""
    if logger.isEnabledFor(level):
        logger.log(level, event, extra={_FIELDS: fields}, stacklevel=2)


def done(finish: Finish) -> None:
    """The one line that a request leaves behind."""
    failed = finish.reason is FinishReason.ERROR
    write(_done, logging.ERROR if failed else logging.INFO, "done", **done_fields(finish))


def warn(notice: Notice) -> None:
    """A line for what the operator should know of."""
    write(_engine, logging.WARNING, notice.event, **notice.facts)


def done_fields(finish: Finish) -> dict[str, Value]:
    """What the `done` line says, in its order.

    `tokens_per_s` and the gaps between tokens exist from the second token on.
    """
    reuse, timings = finish.reuse, finish.timings
    gaps = finish.generated_tokens - 1
    measured = gaps > 0 and timings.decode_ms > 0
    miss = reuse.miss
    return {
        "id": finish.name,
        "class": finish.cls.value,
        "lane": finish.lane,
        "prompt_tokens": finish.prompt_tokens,
        "generated_tokens": finish.generated_tokens,
        "cached_tokens": finish.cached_tokens,
        "matched_tokens": reuse.matched_tokens,
        "tier": reuse.tier.value if reuse.tier else "none",
        "slot": reuse.place.value if reuse.place else None,
        "kind": reuse.kind.value if reuse.kind else "none",
        "miss": miss.reason.value if miss else None,
        "shortfall": reuse.shortfall.value if reuse.shortfall else None,
        "diverged_at": miss.diverged_at if miss else reuse.diverged_at,
        "segment": reuse.segment,
        "volatile_at": reuse.volatile_at,
        "ttft_ms": _tenths(timings.ttft_ms),
        "tokens_per_s": _tenths(1000 * gaps / timings.decode_ms) if measured else None,
        "gap_mean_ms": _tenths(timings.decode_ms / gaps) if measured else None,
        "gap_max_ms": _tenths(timings.longest_gap_ms) if measured else None,
        "restore_ms": _tenths(reuse.restore_ms),
        "evictions": finish.evictions,
        "recomputed": finish.recomputed,
        "finish": finish.reason.value,
        "error": finish.message,
    }


class TextFormatter(logging.Formatter):
    """`time level logger event key=value ...`; values are quoted where they would run together."""

    def __init__(self, journal: bool = False) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        words = [record.levelname.lower(), record.name, _flat(record.getMessage())]
        words += [f"{name}={_quoted(value)}" for name, value in _fields(record).items()]
        line = " ".join(words)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        if self._journal:
            priority = f"<{_JOURNAL_PRIORITY.get(record.levelname, 6)}>"
            return "\n".join(priority + part for part in line.splitlines())
        return f"{_time(record)} {line}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with `time`, `level`, `logger`, `event` and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Value] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _fields(record: logging.LogRecord) -> Mapping[str, Value]:
    fields: Mapping[str, Value] = getattr(record, _FIELDS, {})
    return {name: value for name, value in fields.items() if value is not None}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _quoted(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(_flat(text))


def _flat(text: str) -> str:
    """`text` on one line: control characters are written as escapes."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _tenths(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
