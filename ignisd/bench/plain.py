"""Plain copies of as many bytes, which moves between tiers are held against."""

import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from state.tiers.memory import map_block

CALL_BYTES = 8 << 20
"""Of one system call; larger ones were no faster."""

Bytes = npt.NDArray[np.uint8]


def took_s(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def block(num_bytes: int) -> Bytes:
    """Memory of the same kind as the arena's, all of it written once."""
    _, made = map_block(num_bytes)
    made[:] = 1
    return made


class PlainFile:
    """A file of bytes written and read around the cache, where its file system has such a way.

    Args:
        path: which nobody else uses; what was there is overwritten.
        num_bytes: of the file, rounded up to whole blocks.
    """

    def __init__(self, path: Path, num_bytes: int) -> None:
        self._path = path
        self._bytes = block(-(-num_bytes // 4096) * 4096)
        self.direct = True
        self.read_back = block(self._bytes.size)

    def write(self) -> None:
        """Write all of it to the medium, as a new file."""
        self._path.unlink(missing_ok=True)
        self._through(os.O_WRONLY | os.O_CREAT, os.pwritev, self._bytes, sync=True)

    def read(self) -> None:
        """Read all of it from the medium."""
        self._through(os.O_RDONLY, os.preadv, self.read_back, sync=False)

    def close(self) -> None:
        """Remove it."""
        self._path.unlink(missing_ok=True)

    def _through(
        self,
        flags: int,
        call: Callable[[int, Sequence[memoryview], int], int],
        room: Bytes,
        *,
        sync: bool,
    ) -> None:
        raw, fd = room.data, self._open(flags)
        try:
            at = 0
            while at < len(raw):
                at += call(fd, [raw[at : at + CALL_BYTES]], at)
            if sync:
                os.fsync(fd)
            if not self.direct:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

    def _open(self, flags: int) -> int:
        if self.direct:
            try:
                return os.open(self._path, flags | os.O_DIRECT, 0o600)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.direct = False
        return os.open(self._path, flags, 0o600)
