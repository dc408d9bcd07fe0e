"""The block of memory that the arena's cells are, given and refused."""

import ctypes
import errno
import mmap
import resource
from pathlib import Path

import numpy as np
import pytest

from state.tiers import memory
from state.tiers.memory import ArenaRefused, HostArena

NUM_CELLS, CELL_BYTES = 5, 3_000


def refused(address: int, num_bytes: int) -> int:
    return errno.ENOMEM


def test_the_cells_are_zeros_that_can_be_written() -> None:
    arena = HostArena.reserve(NUM_CELLS, CELL_BYTES)
    rows = arena.rows
    assert rows.shape == (NUM_CELLS, CELL_BYTES)
    assert rows.dtype == np.uint8
    assert rows.flags.c_contiguous
    assert not rows.any()
    assert rows.ctypes.data % mmap.PAGESIZE == 0
    rows[...] = np.arange(NUM_CELLS, dtype=np.uint8)[:, None]
    assert (rows[:, -1] == range(NUM_CELLS)).all()
    assert arena.locked == (arena.why == "")


def test_all_of_it_is_locked() -> None:
    asked = []

    def lock(address: int, num_bytes: int) -> int:
        asked.append((address, num_bytes))
        return 0

    arena = HostArena.reserve(NUM_CELLS, CELL_BYTES, lock)
    assert arena.locked
    assert asked == [(arena.rows.ctypes.data, NUM_CELLS * CELL_BYTES)]


def test_where_locking_is_refused_it_says_so_and_serves() -> None:
    arena = HostArena.reserve(NUM_CELLS, CELL_BYTES, refused)
    assert not arena.locked
    for part in ("locking 15000 bytes was refused", "ENOMEM", "LimitMEMLOCK"):
        assert part in arena.why
    arena.rows[...] = 7
    assert arena.rows.all()


@pytest.mark.parametrize("lock", [memory.lock_pages, refused])
def test_the_system_has_backed_all_of_it(lock: memory.Lock) -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    num_bytes = 64 << 20
    before = resident_bytes()
    arena = HostArena.reserve(num_bytes >> 12, 1 << 12, lock)
    assert resident_bytes() - before > num_bytes * 3 // 4
    arena.close()
    assert resident_bytes() - before < num_bytes // 4


def test_the_limit_is_raised_as_far_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[tuple[int, int]] = []
    limit = resource.RLIMIT_MEMLOCK
    monkeypatch.setattr(resource, "getrlimit", lambda which: {limit: (4096, 65536)}[which])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: raised.append(pair))
    arena = HostArena.reserve(
        NUM_CELLS, CELL_BYTES, lambda address, num_bytes: 0 if raised else errno.ENOMEM
    )
    assert arena.locked
    assert raised == [(65536, 65536)]
    assert "65536 bytes" in HostArena.reserve(NUM_CELLS, CELL_BYTES, refused).why


def test_the_kernel_is_asked_with_what_it_understands() -> None:
    """An address that nothing is mapped at is refused, and the reason is the kernel's."""
    assert memory.lock_pages(0, mmap.PAGESIZE) in (errno.ENOMEM, errno.EPERM)
    block = ctypes.create_string_buffer(64)
    assert memory.lock_pages(ctypes.addressof(block), 64) in (0, errno.EPERM, errno.ENOMEM)


def test_too_much_is_refused_by_name() -> None:
    for num_cells in (1 << 40, 1 << 60):
        with pytest.raises(ArenaRefused, match="lower --reuse-kv-host-pool-bytes") as caught:
            HostArena.reserve(num_cells, 4096)
        assert caught.value.wanted_bytes == num_cells * 4096


def test_memory_goes_back_once_nothing_views_it() -> None:
    arena = HostArena.reserve(NUM_CELLS, CELL_BYTES)
    view = arena.rows[2]
    with pytest.raises(BufferError):
        arena.close()
    del view
    arena.close()
    assert arena.rows.shape == (0, CELL_BYTES)


def test_an_arena_of_nothing_is_refused() -> None:
    for shape in ((0, 1), (1, 0)):
        with pytest.raises(AssertionError, match=r"arena of 0|cells of 0"):
            HostArena.reserve(*shape)
