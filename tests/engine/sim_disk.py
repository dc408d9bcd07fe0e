"""The files of a simulated run: real ones in memory, on a disk that fails now and then."""

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ignisd.engine.files import Command, FileThreads
from ignisd.engine.moves import Order, ReadFile
from ignisd.engine.tiers import TierLimits, Tiers
from state.spec import Fingerprint
from state.tiers.arena import Arena
from state.tiers.disk import Disk, Space
from state.tiers.format import Layout
from state.tiers.shelf import Shelf
from tests.fake_device import CELL_BYTES, FakeDevice

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

    def shelf(self, fingerprint: Fingerprint, image_cells: int) -> Shelf:
        """An empty shelf of some size over these files."""
        ceiling_bytes = self.rng.choice((20_000, 60_000, 10_000_000))
        return Shelf.empty(self.root, Layout(fingerprint, CELL_BYTES, image_cells), ceiling_bytes)

    def close(self) -> None:
        """Remove the files."""
        self.folder.cleanup()


def random_tiers(rng: random.Random) -> Tiers | None:
    """An arena of some size, with some bounds; now and then none."""
    if rng.random() < 0.25:
        return None
    limits = TierLimits(
        image_bytes=rng.choice((1, 3)) * CELL_BYTES,
        window_bytes=rng.choice((1, 2, 5, 40)) * CELL_BYTES,
        ram_floor_tokens=rng.choice((1, 64, 192)),
        disk_floor_tokens=rng.choice((1, 64, 128)),
        low_cells=rng.choice((0, 2, 10, 60)),
    )
    num_cells = rng.choice((3, 8, 20, 60))
    return Tiers(limits, Arena.empty(num_cells, rng.choice((1, 2)), CELL_BYTES))


def random_files(
    rng: random.Random, device: FakeDevice, tiers: Tiers | None
) -> SimulatedFiles | None:
    """A disk for an arena, of some temper; now and then none."""
    if tiers is None or rng.random() < 0.3:
        return None
    return SimulatedFiles(rng, device, rng.choice((0.0, 0.0, 0.02, 0.3)))
