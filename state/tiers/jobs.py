"""What an I/O thread does for the disk tier: values in, values out, and no error but for bugs.

An order says what to do and is made by the shelf; an outcome says what became of it and goes back
there. Whatever the disk does, a job ends and leaves no file that is neither whole nor told of.
"""

import enum
import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from state.chain import Chain
from state.tiers.disk import Disk, Space
from state.tiers.files import Parts, StateWriter, open_state
from state.tiers.format import PARTIAL_SUFFIX, Layout, Record, whole_blocks

FREE_FLOOR_BYTES = 10 << 30
FREE_FLOOR_PERCENT = 5

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


class Trouble(enum.StrEnum):
    """Why a job did not do what it should."""

    FULL = "full"
    READ_ONLY = "read_only"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Charged:
    """A file and the bytes that it takes, in whole blocks."""

    path: Path
    num_bytes: int


@dataclass(frozen=True, slots=True)
class WriteOrder:
    """A state that is to be written, and the files that must go first.

    Args:
        id: of the state.
        directory: where its file goes.
        record: what the file says.
        leaving: what makes way for it.
    """

    id: int
    directory: Path
    record: Record
    leaving: tuple[Charged, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an order to write.

    Args:
        id: of the state.
        landed: whether its file is whole and in place.
        removed: which of the leaving files are gone.
        left_bytes: what a file that is no use takes, where it could not be removed.
        trouble: why it has not landed; None where it has, or was cancelled.
        message: the trouble in words.
    """

    id: int
    landed: bool
    removed: tuple[Path, ...]
    left_bytes: int = 0
    trouble: Trouble | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Cleared:
    """What became of files that were to be removed."""

    removed: tuple[Path, ...]
    kept: tuple[Path, ...]
    trouble: Trouble | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """A file that is to be read, and what it must hold."""

    path: Path
    layout: Layout
    chain: Chain


class StateWrite:
    """One order, carried out window by window. After the first trouble the rest does nothing.

    Args:
        disk: the system calls.
        order: what to write.
    """

    def __init__(self, disk: Disk, order: WriteOrder) -> None:
        self._disk = disk
        self._order = order
        self._writer: StateWriter | None = None
        self._removed: list[Path] = []
        self._left_bytes = 0
        self._error: OSError | None = None
        self._try(self._begin)

    def write(self, parts: Parts) -> None:
        """Write the next cells; their bytes may be changed once it has returned."""
        self._try(lambda: self._open_writer().write(parts))

    def commit(self) -> Outcome:
        """All cells are written: put the file in place."""
        self._try(lambda: self._open_writer().commit())
        return self._outcome(landed=self._error is None)

    def cancel(self) -> Outcome:
        """The state is not wanted any more."""
        if self._error is None:
            self._clean_up()
        return self._outcome(landed=False)

    def _begin(self) -> None:
        order, disk = self._order, self._disk
        disk.make_directory(order.directory)
        gained = sum(one.num_bytes for one in order.leaving)
        wanted = whole_blocks(order.record.file_bytes) - gained
        space = disk.space(order.directory)
        if space.free - wanted < free_floor(space):
            raise OSError(
                errno.ENOSPC,
                f"{space.free} bytes are free, {wanted} more are wanted and {free_floor(space)} "
                f"are left to others",
            )
        for one in order.leaving:
            disk.remove(one.path)
            self._removed.append(one.path)
        self._writer = StateWriter(disk, order.directory, order.record)

    def _open_writer(self) -> StateWriter:
        assert self._writer is not None, f"the file of state {self._order.id} is not open"
        return self._writer

    def _try(self, step: Callable[[], None]) -> None:
        if self._error is not None:
            return
        try:
            step()
        except OSError as error:
            self._error = error
            self._clean_up()

    def _clean_up(self) -> None:
        if self._writer is None:
            return
        try:
            self._writer.abandon()
        except OSError:
            self._left_bytes = whole_blocks(self._order.record.file_bytes)

    def _outcome(self, *, landed: bool) -> Outcome:
        return Outcome(
            id=self._order.id,
            landed=landed,
            removed=tuple(self._removed),
            left_bytes=self._left_bytes,
            trouble=None if self._error is None else trouble_of(self._error),
            message="" if self._error is None else _words(self._error),
        )


def store(disk: Disk, order: WriteOrder, parts: Parts) -> Outcome:
    """Write a whole state.

    Args:
        disk: the system calls.
        order: what to write.
        parts: all its cells, the image's first.
    """
    writing = StateWrite(disk, order)
    writing.write(parts)
    return writing.commit()


def fetch(disk: Disk, order: ReadOrder, into: Parts) -> Record:
    """Read a whole state into its cells, having checked everything.

    Raises:
        StateCorrupt: nothing of it may be used.
    """
    with open_state(disk, order.path, order.layout, order.chain) as opened:
        opened.read(into)
        return opened.record


def clear(disk: Disk, paths: Iterable[Path]) -> Cleared:
    """Remove files, as far as it goes."""
    removed, kept = [], []
    first: OSError | None = None
    for path in paths:
        try:
            # What a writer could not remove may still have the name of an unfinished file.
            disk.remove(path.with_name(path.name + PARTIAL_SUFFIX))
            disk.remove(path)
            removed.append(path)
        except OSError as error:
            first = first or error
            kept.append(path)
    if first is None:
        return Cleared(tuple(removed), ())
    return Cleared(tuple(removed), tuple(kept), trouble_of(first), _words(first))


def free_floor(space: Space) -> int:
    """Bytes of a file system that are left to others."""
    return min(FREE_FLOOR_BYTES, space.total * FREE_FLOOR_PERCENT // 100)


def trouble_of(error: OSError) -> Trouble:
    """What an error of the system means for whoever wants to write."""
    if error.errno in _FULL:
        return Trouble.FULL
    return Trouble.READ_ONLY if error.errno in _FORBIDDEN else Trouble.FAILED


def _words(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
