"""The bytes of the arena: one block of host memory, reserved whole and kept from being swapped."""

import ctypes
import errno
import mmap
import os
import resource
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt

HUGE_BYTES = 2 << 20
"""A huge page; memory begins on one, or the system could not use them."""

Lock = Callable[[int, int], int]
"""Locks so many bytes at an address; 0, or the number of the error."""


class ArenaRefused(Exception):
    """The system has no such block of memory to give.

    Attributes:
        wanted_bytes: size of the block.
    """

    def __init__(self, wanted_bytes: int, reason: str) -> None:
        super().__init__(
            f"{wanted_bytes} bytes of host memory for kv_ram were refused: {reason}; "
            f"lower --reuse-kv-host-pool-bytes"
        )
        self.wanted_bytes = wanted_bytes


def lock_pages(address: int, num_bytes: int) -> int:
    """Have the kernel back a range with memory and keep it there."""
    libc = ctypes.CDLL(None, use_errno=True)
    refused = libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes))
    return ctypes.get_errno() if refused else 0


def map_block(num_bytes: int) -> tuple[mmap.mmap, npt.NDArray[np.uint8]]:
    """Memory of its own, in huge pages where the system gives these.

    A disk reads into huge pages more than twice as fast: what it is handed are few large pieces.

    Returns:
        the mapping, and so many bytes of it, not one of which was touched.

    Raises:
        OSError, OverflowError: the system does not give so much.
    """
    spare = HUGE_BYTES if num_bytes >= HUGE_BYTES else 0
    block = mmap.mmap(-1, num_bytes + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without huge pages serves too
        block.madvise(mmap.MADV_HUGEPAGE)
    flat = np.frombuffer(block, np.uint8)
    first = -int(flat.ctypes.data) % HUGE_BYTES if spare else 0
    return block, flat[first : first + num_bytes]


class HostArena:
    """A block of memory cut into cells.

    Attributes:
        rows: [num_cells, cell_bytes] uint8: the cells, which begin on a page of the machine.
        locked: whether the system keeps all of it in memory.
        why: why it is not locked; empty where it is.
    """

    def __init__(self, block: mmap.mmap, rows: npt.NDArray[np.uint8], why: str) -> None:
        self._block = block
        self.rows = rows
        self.why = why

    @staticmethod
    def reserve(num_cells: int, cell_bytes: int, lock: Lock = lock_pages) -> "HostArena":
        """A block of zeros, all of which the system has backed with memory.

        Where locking is refused the block serves unlocked, and says why.

        Args:
            num_cells: cells, at least 1.
            cell_bytes: bytes of a cell, at least 1.
            lock: another one is for tests of what happens when locking is refused.

        Raises:
            ArenaRefused: the system does not give so much memory.
        """
        assert num_cells > 0, f"an arena of {num_cells} cells"
        assert cell_bytes > 0, f"cells of {cell_bytes} bytes"
        num_bytes = num_cells * cell_bytes
        try:
            block, flat = map_block(num_bytes)
        except (OSError, OverflowError) as error:
            raise ArenaRefused(num_bytes, str(error)) from error
        refused = _lock(lock, int(flat.ctypes.data), num_bytes)
        if refused:
            flat[:: mmap.PAGESIZE] = 0
        return HostArena(block, flat.reshape(num_cells, cell_bytes), refused)

    @property
    def locked(self) -> bool:
        """Whether the system keeps all of it in memory."""
        return not self.why

    def close(self) -> None:
        """Give the memory back; `rows` is empty from then on.

        Raises:
            BufferError: something else still views the rows, and would read what is not there.
        """
        self.rows = np.empty((0, self.rows.shape[1]), np.uint8)
        self._block.close()


def _lock(lock: Lock, address: int, num_bytes: int) -> str:
    """Lock a range; empty, or why it was refused."""
    refused = lock(address, num_bytes)
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if refused and soft != hard:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
        refused = lock(address, num_bytes)
    if not refused:
        return ""
    limit = "none" if hard == resource.RLIM_INFINITY else f"{hard} bytes"
    return (
        f"locking {num_bytes} bytes was refused ({errno.errorcode.get(refused, refused)}: "
        f"{os.strerror(refused)}); the limit on locked memory is {limit}, and LimitMEMLOCK of the "
        f"unit or ulimit -l raises it"
    )
