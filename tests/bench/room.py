"""A disk with little room or little speed, and somebody else who takes most of its room.

`python -m tests.bench.room FOLDER BYTES DELAY ignisd [FLAG VALUE]...` is a daemon whose disk tier
sees a file system of so many bytes in FOLDER, where its files must lie (0: as many as there are),
and whose changes to files take up to DELAY ms each. Another module than `ignisd` may plant a fault
first.
"""

import errno
import os
import random
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ignisd.engine import tiers
from state.tiers import shelf
from state.tiers.disk import Disk, Space
from state.tiers.format import BLOCK_BYTES

_OTHERS = "others"
_RETRY_MS = 300.0
"""Lives are short here: a write that was refused is tried again sooner."""
_STEP_S = 0.4
_MOST_FREE_BYTES = 6 << 20
_CHANGES = ("open_new", "write", "sync_data", "sync", "rename", "sync_directory", "remove")


class Room:
    """What a folder holds, against what it may.

    Args:
        folder: all files below it count, as long as they are.
        num_bytes: of its file system.
    """

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self._folder = folder
        self._num_bytes = num_bytes

    def free(self) -> int:
        """Bytes that are left."""
        used = 0
        for path in self._folder.rglob("*"):
            with suppress(FileNotFoundError):
                used += path.stat().st_size if path.is_file() else 0
        return max(self._num_bytes - used, 0)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Every disk has this room and no more."""
        write = Disk.write

        def write_in_room(disk: Disk, fd: int, parts: Sequence[memoryview], offset: int) -> int:
            wanted = sum(map(len, parts))
            grows = max(offset + wanted - os.fstat(fd).st_size, 0)
            short = max(grows - self.free(), 0)
            fits = (wanted - short) // BLOCK_BYTES * BLOCK_BYTES if short else wanted
            if fits <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(disk, fd, parts, offset) if not short else self._part(fd, parts, offset)

        def space(disk: Disk, path: Path) -> Space:
            return Space(self.free(), self._num_bytes)

        with patch.object(Disk, "write", write_in_room), patch.object(Disk, "space", space):
            yield

    @staticmethod
    def _part(fd: int, parts: Sequence[memoryview], offset: int) -> int:
        """As much as fits of what is written in one call is not much: a block."""
        return os.pwritev(fd, [parts[0][:BLOCK_BYTES]], offset)


class Others(threading.Thread):
    """Whoever else uses a disk: what he leaves free changes all the time, and is nothing at times.

    Args:
        disk: a folder of it.
        free: the bytes that are left on it.
    """

    def __init__(self, disk: Path, free: Callable[[], int]) -> None:
        super().__init__()
        self._path = disk / _OTHERS
        self._free = free
        self._ended = threading.Event()
        self._rng = random.Random(7)

    def __enter__(self) -> "Others":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Take and give back, until told to stop."""
        with self._path.open("wb") as file:
            while not self._ended.wait(self._rng.uniform(0.0, _STEP_S)):
                leaves = self._rng.choice((0, 1, 3, 3, 3)) * self._rng.randrange(_MOST_FREE_BYTES)
                has = os.fstat(file.fileno()).st_size
                wants = max(has + self._free() - leaves, 0)
                with suppress(OSError):  # somebody was faster
                    if wants > has:
                        os.posix_fallocate(file.fileno(), 0, wants)
                    else:
                        file.truncate(wants)


def free_of(folder: Path) -> int:
    """Bytes that are left on a file system."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@contextmanager
def mounted(image: Path, folder: Path, num_bytes: int) -> Iterator[None]:
    """A file system of its own in a folder; an image that is there already is kept."""
    if not image.exists():
        with image.open("wb") as file:
            file.truncate(num_bytes)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def slow(most_ms: float) -> Iterator[None]:
    """Every call that changes a file takes its time: where a process dies it is amid one."""
    rng = random.Random(7)

    def late(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*words: Any, **named: Any) -> Any:
            time.sleep(rng.uniform(0.0, most_ms) / 1000)
            return call(*words, **named)

        return called

    with ExitStack() as held:
        for name in _CHANGES if most_ms else ():
            held.enter_context(patch.object(Disk, name, late(getattr(Disk, name))))
        yield


def main(words: list[str]) -> None:
    """Run a module on such a disk."""
    folder, num_bytes, most_ms, module, *rest = words
    sys.argv = [module, *rest]
    with ExitStack() as held:
        if int(num_bytes):
            held.enter_context(Room(Path(folder), int(num_bytes)).planted())
        for module_of in (shelf, tiers):
            held.enter_context(patch.object(module_of, "RETRY_MS", _RETRY_MS))
        held.enter_context(slow(float(most_ms)))
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
