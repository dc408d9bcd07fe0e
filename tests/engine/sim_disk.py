"""The files of a simulated run: real ones in memory, on a disk that fails now and then."""

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ignisd.engine.files import Command, FileThreads
from ignisd.engine.moves import Order, ReadFile
from state.tiers.disk import Disk, Space
from tests.fake_device import FakeDevice

IN_MEMORY = Path("/dev/shm")
ROOMY = Space(free=1 << 50, total=1 << 51)
ERRORS = (errno.EIO, errno.ENOSPC, errno.EIO, errno.ENOENT, errno.EROFS)


class FlakyDisk(Disk):
    """Each call may fail, a transfer may stop short, and a bit may be another than was written."""

    def __init__(self, rng: random.Random, fails: float) -> None:
        self.rng = rng
        self.fails = fails

    def _may_fail(self) -> None:
        if self.rng.random() < self.fails:
            number = self.rng.choice(ERRORS)
            raise OSError(number, os.strerror(number))

    def make_directory(self, path: Path) -> None:
        """Make a directory."""
        self._may_fail()
        super().make_directory(path)

    def open_new(self, path: Path, *, direct: bool) -> int:
        """Open for writing."""
        self._may_fail()
        return super().open_new(path, direct=False)

    def open_old(self, path: Path, *, direct: bool) -> int:
        """Open for reading."""
        self._may_fail()
        return super().open_old(path, direct=False)

    def write(self, fd: int, parts: Sequence[memoryview], offset: int) -> int:
        """Write, or a part of it, or not quite that."""
        self._may_fail()
        if self.rng.random() < self.fails:
            spoilt = bytearray(parts[0])
            spoilt[self.rng.randrange(len(spoilt))] ^= 1 << self.rng.randrange(8)
            return super().write(fd, [memoryview(spoilt)], offset)
        short = self.rng.random() < self.fails
        return super().write(fd, parts[:1] if short else parts, offset)

    def read(self, fd: int, parts: Sequence[memoryview], offset: int) -> int:
        """Read."""
        self._may_fail()
        return super().read(fd, parts, offset)

    def rename(self, old: Path, new: Path) -> None:
        """Rename."""
        self._may_fail()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        """Remove."""
        self._may_fail()
        super().remove(path)

    def space(self, path: Path) -> Space:
        """Tell the space."""
        return ROOMY


class SimulatedFiles:
    """Executes orders some turns after they were given, each thread's in its order."""

    def __init__(self, rng: random.Random, device: FakeDevice, fails: float) -> None:
        self.rng = rng
        where = IN_MEMORY if IN_MEMORY.is_dir() else None
        self.folder = TemporaryDirectory(dir=where)
        self.root = Path(self.folder.name) / "kv"
        self.disk = FlakyDisk(rng, fails)
        self.threads = FileThreads(self.disk, device.cell_rows)
        self.waiting: list[list[Order]] = [[], []]

    def give(self, orders: Sequence[Order]) -> None:
        """Take orders."""
        for order in orders:
            self.waiting[isinstance(order, ReadFile)].append(order)

    def turn(self) -> list[Command]:
        """Carry out what happens to be due."""
        done = []
        for queue in self.waiting:
            while queue and self.rng.random() < 0.5:
                done.append(self.threads.execute(queue.pop(0)))
        return done

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return any(self.waiting)

    def close(self) -> None:
        """Remove the files."""
        self.folder.cleanup()
