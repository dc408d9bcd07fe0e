"""`ignisd inspect DIR`: what a disk tier holds, every file of it read and checked.

Nothing is changed, and a daemon may be using the tier meanwhile: what it is writing is listed as
unfinished and is no fault.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ignisd.errors import ConfigError
from state.tiers.disk import Disk, Listed
from state.tiers.files import verify_state
from state.tiers.format import PARTIAL_SUFFIX, SUFFIX, Damage, StateCorrupt
from state.tiers.scan import is_stamp

LIVE = "live"
UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file of a tier.

    Args:
        name: its name.
        kind: of the retained state; `live` for a sequence that was evicted, `unfinished` for one
            that is being written or was left by a crash; None where the file does not tell.
        tokens: that the state stands for; None likewise.
        num_bytes: its length.
        idle_s: since the state was last used before it was written, or the file was changed.
        damage: what is wrong with it; None where every byte is good, or nothing is promised.
        message: the damage in words.
    """

    name: str
    kind: str | None
    tokens: int | None
    num_bytes: int
    idle_s: float
    damage: Damage | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """The files of one fingerprint, in the order of their names."""

    fingerprint: str
    files: tuple[FileReport, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all of them."""
        return sum(one.num_bytes for one in self.files)

    @property
    def num_bad(self) -> int:
        """How many are damaged."""
        return sum(one.damage is not None for one in self.files)


def inspect(directory: Path, now_wall_ms: float, disk: Disk | None = None) -> tuple[Group, ...]:
    """Read a tier, or the folder of one fingerprint in it.

    Args:
        directory: either.
        now_wall_ms: the wall clock, from which ages are told.
        disk: the system calls; None for the real ones.

    Raises:
        ConfigError: there is no such directory, or it cannot be read.
    """
    calls = disk or Disk()
    try:
        if is_stamp(directory.resolve().name):
            return (_group(calls, directory.resolve(), now_wall_ms),)
        folders = sorted(one.path for one in calls.entries(directory) if not one.is_file)
        return tuple(_group(calls, path, now_wall_ms) for path in folders if is_stamp(path.name))
    except OSError as error:
        raise ConfigError(
            f"ignisd inspect {directory}: {error.filename or directory}: {error.strerror}. Give "
            f"the directory of --kv-disk-path, or one of the folders in it."
        ) from error


def has_damage(groups: Sequence[Group]) -> bool:
    """Whether any file is bad."""
    return any(group.num_bad for group in groups)


def lines(groups: Sequence[Group]) -> Iterator[str]:
    """A table for people: a line a file, and totals."""
    for group in groups:
        yield f"fingerprint {group.fingerprint}"
        for one in group.files:
            tokens = "-" if one.tokens is None else f"{one.tokens:,}"
            said = "ok" if one.damage is None else f"BAD {one.damage}: {one.message}"
            said = "-" if one.kind == UNFINISHED else said
            yield (
                f"  {one.kind or '-':<11} {tokens:>9} tokens  {_size(one.num_bytes):>8}  "
                f"{_age(one.idle_s):>5}  {said}  {one.name}"
            )
        yield f"  {_totals([group])}"
    yield f"{len(groups)} fingerprint{'' if len(groups) == 1 else 's'}: {_totals(groups)}"


def as_json(groups: Sequence[Group]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "fingerprints": [
            {
                "fingerprint": group.fingerprint,
                "files": [_file(one) for one in group.files],
                "num_files": len(group.files),
                "bytes": group.num_bytes,
                "num_bad": group.num_bad,
            }
            for group in groups
        ],
        "num_files": sum(len(group.files) for group in groups),
        "bytes": sum(group.num_bytes for group in groups),
        "num_bad": sum(group.num_bad for group in groups),
    }


def _group(disk: Disk, directory: Path, now_wall_ms: float) -> Group:
    listed = sorted(disk.entries(directory), key=lambda one: one.path)
    ours = (SUFFIX, PARTIAL_SUFFIX)
    reports = [
        report
        for one in listed
        if one.is_file and one.path.name.endswith(ours)
        if (report := _report(disk, one, now_wall_ms)) is not None
    ]
    return Group(directory.name, tuple(reports))


def _report(disk: Disk, one: Listed, now_wall_ms: float) -> FileReport | None:
    """What a file is; None where it went while it was looked at."""
    name, changed_s = one.path.name, (now_wall_ms - one.changed_ms) / 1e3
    if name.endswith(PARTIAL_SUFFIX):
        return FileReport(name, UNFINISHED, None, one.num_bytes, changed_s)
    try:
        record = verify_state(disk, one.path)
    except StateCorrupt as corrupt:
        if corrupt.damage is Damage.GONE:
            return None
        return FileReport(name, None, None, one.num_bytes, changed_s, corrupt.damage, str(corrupt))
    idle_s = (now_wall_ms - record.used_wall_ms) / 1e3
    return FileReport(name, record.kind or LIVE, record.length, one.num_bytes, idle_s)


def _file(one: FileReport) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": one.name,
        "kind": one.kind,
        "tokens": one.tokens,
        "bytes": one.num_bytes,
        "idle_s": round(one.idle_s, 3),
        "verified": one.damage is None and one.kind != UNFINISHED,
    }
    if one.damage is not None:
        told |= {"damage": str(one.damage), "message": one.message}
    return told


def _totals(groups: Sequence[Group]) -> str:
    num_files = sum(len(group.files) for group in groups)
    num_bad = sum(group.num_bad for group in groups)
    size = _size(sum(group.num_bytes for group in groups))
    files = f"{num_files} file{'' if num_files == 1 else 's'}, {size}"
    return f"{files}, {num_bad} bad" if num_bad else f"{files}, all good"


def _size(num_bytes: int) -> str:
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f}{unit}"
    return f"{num_bytes}"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
