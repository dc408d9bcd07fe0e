"""What a disk tier holds when a process begins: good files, other models' files, and rubbish."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from state.spec import Fingerprint
from state.tiers.disk import Disk, Listed
from state.tiers.files import open_state, verify_state
from state.tiers.format import (
    LIVE_PREFIX,
    PARTIAL_SUFFIX,
    SUFFIX,
    Damage,
    Layout,
    Record,
    StateCorrupt,
    whole_blocks,
)
from state.tiers.jobs import Charged, Trouble, trouble_of

LOCK_NAME = "lock"

_STAMP = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Foreign:
    """A file that this process cannot use, because its bytes depend on something else.

    Args:
        path: where it is.
        num_bytes: what it takes, in whole blocks.
        changed_ms: wall clock when it was written.
    """

    path: Path
    num_bytes: int
    changed_ms: float


@dataclass(frozen=True, slots=True)
class Scan:
    """What was found.

    Args:
        records: the good files of this fingerprint.
        foreign: the files of others.
        damaged: the files that were bad, with what was wrong, by path.
        num_strays: unfinished files, and those of live sequences of a process that is gone.
        left: what should have been removed and could not be.
        trouble: why that was, or why a directory could not be made.
    """

    records: tuple[Record, ...]
    foreign: tuple[Foreign, ...]
    damaged: dict[Path, Damage] = field(repr=False)
    num_strays: int
    left: tuple[Charged, ...]
    trouble: Trouble | None


def directory_of(root: Path, fingerprint: Fingerprint) -> Path:
    """Where the files of a fingerprint lie."""
    return root / str(fingerprint)


def is_stamp(name: str) -> bool:
    """Whether a directory's name could be a fingerprint."""
    return _STAMP.fullmatch(name) is not None


def hold(disk: Disk, root: Path) -> int | None:
    """Take a disk tier for this process; None while another one has it.

    Two processes would count each other's files against their ceilings and remove what the other
    one is writing.

    Raises:
        OSError: the directory cannot be made or written.
    """
    disk.make_directory(root)
    return disk.lock(root / LOCK_NAME)


def scan(disk: Disk, root: Path, layout: Layout, *, deep: bool = False) -> Scan:
    """Look through a disk tier, and remove what nobody can use.

    Names that are no part of a disk tier are left alone. Cells are checked when a file is read;
    here only headers and tokens are, so that a start does not read everything.

    Args:
        disk: the system calls.
        root: of the tier, held by this process.
        layout: of the files that can be used.
        deep: check the cells as well.

    Raises:
        OSError: the directories cannot be made or listed.
    """
    own = directory_of(root, layout.fingerprint)
    sweep = _Sweep(disk)
    sweep.make(own)
    for directory in sorted(one.path for one in disk.entries(root) if not one.is_file):
        if is_stamp(directory.name):
            for one in sorted(disk.entries(directory), key=lambda listed: listed.path):
                if one.is_file:
                    sweep.look_at(one, layout if directory == own else None, deep)
            if directory != own and not any(disk.entries(directory)):
                sweep.leave(directory)
    return Scan(
        records=tuple(sweep.records),
        foreign=tuple(sorted(sweep.foreign, key=lambda one: (one.changed_ms, one.path))),
        damaged=sweep.damaged,
        num_strays=sweep.num_strays,
        left=tuple(sweep.left),
        trouble=sweep.trouble,
    )


class _Sweep:
    """Sorts files as they are listed."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.records: list[Record] = []
        self.foreign: list[Foreign] = []
        self.damaged: dict[Path, Damage] = {}
        self.num_strays = 0
        self.left: list[Charged] = []
        self.trouble: Trouble | None = None

    def make(self, own: Path) -> None:
        """The directory of what can be used. Where there is no room for it now, there may be when
        the first file is written."""
        try:
            self._disk.make_directory(own)
            self._disk.restrict(own)
        except OSError as error:
            self.trouble = trouble_of(error)
            if self.trouble is not Trouble.FULL:
                raise

    def look_at(self, one: Listed, layout: Layout | None, deep: bool) -> None:
        """Keep a file, or remove it."""
        name = one.path.name
        if name.endswith(PARTIAL_SUFFIX) or (
            name.startswith(LIVE_PREFIX) and name.endswith(SUFFIX)
        ):
            self.num_strays += 1
            self._remove(one)
        elif not name.endswith(SUFFIX):
            return
        elif layout is None:
            self.foreign.append(Foreign(one.path, whole_blocks(one.num_bytes), one.changed_ms))
        else:
            self._open(one, layout, deep)

    def leave(self, directory: Path) -> None:
        """Remove the empty directory of a fingerprint that is no more."""
        try:
            self._disk.remove_directory(directory)
        except OSError as error:
            self.trouble = self.trouble or trouble_of(error)

    def _open(self, one: Listed, layout: Layout, deep: bool) -> None:
        try:
            with open_state(self._disk, one.path, layout) as opened:
                record = opened.record
            if deep:
                verify_state(self._disk, one.path)
        except StateCorrupt as corrupt:
            self.damaged[one.path] = corrupt.damage
            self._remove(one)
        else:
            self.records.append(record)

    def _remove(self, one: Listed) -> None:
        try:
            self._disk.remove(one.path)
        except OSError as error:
            self.left.append(Charged(one.path, whole_blocks(one.num_bytes)))
            self.trouble = self.trouble or trouble_of(error)
