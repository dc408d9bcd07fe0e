"""What a trace file says, a JSON object a line: no text, no token, and no digest of either.

A `head` line opens a session: version, model, sizes, policy, floors, rates. A `request` line stands
for a request that has ended: what decides its reuse, and what became of it. A `turns` line holds
turns of the engine in order, so that they can be played again exactly: when each round was planned
and committed, and who had come and gone before that.

Pages are named by digests under a key that was drawn at random and is not kept. Two requests of one
session share pages where their names agree, and no prompt can be tried against a file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ignisd.errors import ConfigError

FORMAT = 1


class Head(msgspec.Struct, tag_field="line", tag="head", kw_only=True):
    """The daemon that is recorded.

    `limits` are the fields of the scheduler's bounds, `tiers` those of the moves between tiers and
    of the arena, `rates` what a prefill token, a decode step and a byte from below take.
    """

    format: int
    version: str
    model: str
    limits: dict[str, Any]
    interval_tokens: int
    min_interrupted_tokens: int
    num_pages: int
    device_slots: int
    host_slots: int
    page_bytes: int
    image_bytes: int
    tiers: dict[str, Any] | None
    has_disk: bool
    rates: dict[str, float]


class Asked(msgspec.Struct, tag_field="line", tag="request", kw_only=True):
    """A request, and what became of it."""

    id: int
    cls: str
    arrival_ms: float
    pages: list[str]
    tail: str
    prompt_tokens: int
    max_tokens: int
    reuse: bool
    system_end: int | None
    turn_open: int | None
    opener: int | None
    generated: int
    reason: str
    cached: int
    matched: int
    kind: str | None
    tier: str | None
    miss: str | None
    ttft_ms: float | None


class Turn(msgspec.Struct, array_like=True):
    """One turn: when a round was planned, who had come and gone, and the commits after that."""

    planned_ms: float
    came: list[int]
    left: list[int]
    committed_ms: list[float]


class Turns(msgspec.Struct, tag_field="line", tag="turns"):
    """Turns in order."""

    turns: list[Turn]


Line = Head | Asked | Turns
_LINE = msgspec.json.Decoder(Line)


@dataclass(frozen=True, slots=True)
class Session:
    """What was recorded of one loaded model.

    `complete` says that every request that came is in the file, so that its turns can be followed.
    """

    head: Head
    requests: tuple[Asked, ...]
    turns: tuple[Turn, ...]

    @property
    def complete(self) -> bool:
        """Whether every request that came has ended in the file."""
        known = {one.id for one in self.requests}
        return all(id in known for turn in self.turns for id in turn.came)


def read_trace(path: Path) -> Session:
    """The last session of a file that has requests.

    Raises:
        ConfigError: it cannot be read, is no trace, or has no request.
    """
    sessions: list[tuple[Head, list[Asked], list[Turn]]] = []
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    break  # a line that a killed process left unfinished
                line = _decoded(path, number, raw)
                if isinstance(line, Head):
                    sessions.append((line, [], []))
                elif not sessions:
                    raise ConfigError(f"{path} is no trace: line {number} comes before a head.")
                elif isinstance(line, Asked):
                    sessions[-1][1].append(line)
                else:
                    sessions[-1][2].extend(line.turns)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    for head, asked, turns in reversed(sessions):
        if asked:
            ordered = sorted(asked, key=lambda one: (one.arrival_ms, one.id))
            return Session(head, tuple(ordered), tuple(turns))
    raise ConfigError(f"{path} holds no request that has ended.")


def _decoded(path: Path, number: int, raw: bytes) -> Line:
    try:
        line = _LINE.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no trace: line {number}: {error}.") from None
    if isinstance(line, Head) and line.format != FORMAT:
        raise ConfigError(f"{path} has format {line.format}; this version reads {FORMAT}.")
    return line
