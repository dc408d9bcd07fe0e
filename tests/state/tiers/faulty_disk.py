"""A disk whose calls can be made to fail, of which a process can die, and which can lose power."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from state.tiers.disk import Disk, Listed, Space

ROOMY = Space(free=1 << 50, total=1 << 51)


class Killed(BaseException):
    """The process is gone; nothing in it may go on."""


@dataclass
class Fault:
    """What happens at one call.

    Args:
        error: the number that the system answers with; None for none.
        short: only so many bytes of a transfer come through, of a block where it is None.
        kills: the process dies, after the short part of a transfer.
    """

    error: int | None = None
    short: int | None = None
    kills: bool = False


@dataclass
class Unsynced:
    """A write that may be lost with the power."""

    path: Path
    offset: int
    num_bytes: int
    before: int


@dataclass
class FaultyDisk(Disk):
    """The file system below a folder, with the faults that are asked for.

    Args:
        faults: what happens at which call, counted from 0.
        always: an error that every call of that name answers with.
        space: what the file system says of its space.
        calls: every call so far: its name and what it was about.
    """

    faults: dict[int, Fault] = field(default_factory=dict)
    always: dict[str, int] = field(default_factory=dict)
    space_told: Space = ROOMY
    calls: list[tuple[str, Any]] = field(default_factory=list)
    dead: bool = False
    paths: dict[int, Path] = field(default_factory=dict)
    unsynced: list[Unsynced] = field(default_factory=list)
    renamed: list[tuple[Path, Path]] = field(default_factory=list)

    def _step(self, name: str, about: Any) -> Fault | None:
        """Note a call; what is to happen to a transfer."""
        if self.dead:
            raise Killed
        number = len(self.calls)
        self.calls.append((name, about))
        if name in self.always:
            raise OSError(self.always[name], os.strerror(self.always[name]))
        fault = self.faults.get(number)
        if fault is None:
            return None
        if name in ("read", "write") and fault.short is not None:
            return fault
        if fault.kills:
            self.dead = True
            raise Killed
        if fault.error is not None:
            raise OSError(fault.error, os.strerror(fault.error))
        return None

    def _transfer(
        self,
        name: str,
        call: Callable[[int, Sequence[memoryview], int], int],
        fd: int,
        parts: Sequence[memoryview],
        offset: int,
    ) -> int:
        fault = self._step(name, (self.paths[fd], offset, sum(map(len, parts))))
        if fault is None:
            return call(fd, parts, offset)
        assert fault.short is not None
        moved = call(fd, [parts[0][: max(1, min(fault.short, len(parts[0])))]], offset)
        if fault.kills:
            self.dead = True
            raise Killed
        return moved

    def make_directory(self, path: Path) -> None:
        self._step("make_directory", path)
        super().make_directory(path)

    def restrict(self, path: Path) -> None:
        self._step("restrict", path)
        super().restrict(path)

    def entries(self, path: Path) -> Iterator[Listed]:
        self._step("entries", path)
        return super().entries(path)

    def open_new(self, path: Path, *, direct: bool) -> int:
        self._step("open_new", (path, direct))
        fd = super().open_new(path, direct=direct)
        self.paths[fd] = path
        return fd

    def open_old(self, path: Path, *, direct: bool) -> int:
        self._step("open_old", (path, direct))
        fd = super().open_old(path, direct=direct)
        self.paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        self._step("close", self.paths.pop(fd))

    def size(self, fd: int) -> int:
        self._step("size", self.paths[fd])
        return super().size(fd)

    def write(self, fd: int, parts: Sequence[memoryview], offset: int) -> int:
        before = os.fstat(fd).st_size

        def write(fd: int, parts: Sequence[memoryview], offset: int) -> int:
            moved = super(FaultyDisk, self).write(fd, parts, offset)
            self.unsynced.append(Unsynced(self.paths[fd], offset, moved, before))
            return moved

        return self._transfer("write", write, fd, parts, offset)

    def read(self, fd: int, parts: Sequence[memoryview], offset: int) -> int:
        return self._transfer("read", super().read, fd, parts, offset)

    def sync_data(self, fd: int) -> None:
        self._step("sync_data", self.paths[fd])
        super().sync_data(fd)
        self._synced(self.paths[fd])

    def sync(self, fd: int) -> None:
        self._step("sync", self.paths[fd])
        super().sync(fd)
        self._synced(self.paths[fd])

    def forget(self, fd: int) -> None:
        self._step("forget", self.paths[fd])
        super().forget(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._step("rename", (old, new))
        super().rename(old, new)
        self.renamed.append((old, new))
        for one in self.unsynced:
            one.path = new if one.path == old else one.path

    def sync_directory(self, path: Path) -> None:
        self._step("sync_directory", path)
        super().sync_directory(path)
        self.renamed = [one for one in self.renamed if one[1].parent != path]

    def remove(self, path: Path) -> None:
        self._step("remove", path)
        super().remove(path)

    def remove_directory(self, path: Path) -> None:
        self._step("remove_directory", path)
        super().remove_directory(path)

    def space(self, path: Path) -> Space:
        self._step("space", path)
        return self.space_told

    def _synced(self, path: Path) -> None:
        self.unsynced = [one for one in self.unsynced if one.path != path]

    def lose_power(self, random: Random) -> None:
        """Lose some of what was not synced; the rest happens to be on the medium."""
        kept: set[Path] = set()
        for one in reversed(self.unsynced):
            if random.random() < 0.5 or not one.path.exists():
                kept.add(one.path)
                continue
            with one.path.open("r+b") as file:
                file.seek(one.offset)
                file.write(bytes(one.num_bytes))
                if one.path not in kept:
                    file.truncate(one.before)
        for old, new in reversed(self.renamed):
            if random.random() < 0.5 and new.exists() and not old.exists():
                new.rename(old)
        self.unsynced, self.renamed, self.dead = [], [], False

    def named(self, *names: str) -> list[tuple[str, Any]]:
        """The calls of some names, in order."""
        return [one for one in self.calls if one[0] in names]


READABLE_ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOENT)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with TemporaryDirectory(prefix="ignisd-disk-") as folder:
        yield Path(folder)
