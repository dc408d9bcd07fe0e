"""Remarks about a request: in a header of its answer, and once each in the log."""

import logging
import re
from collections.abc import Iterable

from ignisd import log
from ignisd.chat.types import Note, NoteKind

HEADER = "x-ignis-warning"

_log = logging.getLogger("ignisd.http")
_HARMLESS = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_MAX_TOLD = 8
_MEANING = {
    NoteKind.TOOL_SKIPPED: "only tools of type function are served; others are passed over",
    NoteKind.VOLATILE_HEADER: "a first system line that changes with every request was dropped "
    "(--server-strip-volatile-headers)",
    NoteKind.MESSAGE_MOVED: "messages moved to the head cost their conversation its reuse "
    "(--server-developer-message-policy)",
}


def warning_header(notes: Iterable[Note]) -> dict[str, str]:
    """The header that tells the remarks; none when there are none."""
    # A dict keeps the order and drops repetitions.
    told = list(dict.fromkeys(_spelled(note) for note in notes))[:_MAX_TOLD]
    return {HEADER: ", ".join(told)} if told else {}


class NoteLog:
    """Logs each kind of remark once in the life of a server."""

    def __init__(self) -> None:
        self._told: set[NoteKind] = set()

    def write(self, notes: Iterable[Note]) -> None:
        """Log what is new."""
        for note in notes:
            if note.kind not in self._told:
                self._told.add(note.kind)
                log.write(
                    _log,
                    logging.WARNING,
                    note.kind.value,
                    detail=_harmless(note.detail),
                    meaning=_MEANING[note.kind],
                )


def _spelled(note: Note) -> str:
    detail = _harmless(note.detail)
    return note.kind.value if detail is None else f"{note.kind.value}={detail}"


def _harmless(detail: str) -> str | None:
    """The detail, which a client may have chosen, where it can do no harm in a line."""
    if not detail:
        return None
    return detail if _HARMLESS.fullmatch(detail) else "other"
