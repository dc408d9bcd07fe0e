"""Prints what the disk tier costs, next to plain copies: python -m tests.state.measure_disk [DIR].

Writing and reading whole states is compared with direct I/O of as many bytes, 8 MiB a call, in the
same folder and the same run, one after the other, so that a device that is slower for a while is
slower for both. DIR (default: the system's folder for temporary files) must be on a real disk.
"""

import os
import statistics
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from mmap import MADV_HUGEPAGE, mmap
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from xxhash import xxh3_128_digest

from state.chain import chain_of
from state.retained import Kind
from state.spec import Class, Fingerprint
from state.tiers.adopt import adopt
from state.tiers.disk import Disk
from state.tiers.files import runs
from state.tiers.format import WINDOW_BYTES, Layout, Record, record_of
from state.tiers.jobs import Outcome, ReadOrder, WriteOrder, fetch, store
from state.tiers.scan import directory_of, scan
from state.tiers.shelf import Shelf
from state.tiers.stored import Stored

FINGERPRINT = Fingerprint.of(measure="disk")
STATE_BYTES = 128 << 20
TIMES = 9
NUM_FILES = 300
NUM_STATES = 10_000
CELLS = (
    (1_048_576, "large pages"),
    (294_912, "small pages"),
    (16_384, "a toy's pages"),
)

Rows = npt.NDArray[np.uint8]


def took(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def block(num_cells: int, cell_bytes: int) -> Rows:
    """Memory as the arena has it: page-aligned, touched, in large pages where there are any."""
    room = mmap(-1, num_cells * cell_bytes)
    room.madvise(MADV_HUGEPAGE)
    rows = np.frombuffer(room, np.uint8).reshape(num_cells, cell_bytes)
    rows[:] = np.random.default_rng(0).integers(0, 256, rows.shape, np.uint8)
    return rows


def measure_checksums() -> None:
    """Gigabytes a second of what could cover a window."""
    raw = memoryview(block(1, WINDOW_BYTES).reshape(-1).data)
    kinds: dict[str, Callable[[], object]] = {
        "xxh3_128": lambda: xxh3_128_digest(raw),
        "blake3, one thread": lambda: blake3(raw).digest(),
        "blake3, two threads": lambda: blake3(raw, max_threads=2).digest(),
        "crc32 of zlib": lambda: zlib.crc32(raw),
    }
    for name, call in kinds.items():
        best = min(took(call) for _ in range(30))
        print(f"checksum of a window, {name:20s} {WINDOW_BYTES / best / 1e9:6.1f} GB/s")


def plain_write(path: Path, rows: Rows) -> None:
    """As many bytes, with nothing but direct I/O and one sync."""
    raw = rows.reshape(-1).data
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    for start in range(0, rows.size, WINDOW_BYTES):
        os.pwritev(fd, [raw[start : start + WINDOW_BYTES]], start)
    os.fsync(fd)
    os.close(fd)


def plain_read(path: Path, rows: Rows) -> None:
    """The same the other way."""
    raw = rows.reshape(-1).data
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    for start in range(0, rows.size, WINDOW_BYTES):
        os.preadv(fd, [raw[start : start + WINDOW_BYTES]], start)
    os.close(fd)


def fresh(path: Path) -> None:
    """Nothing of the name is left, on the medium either."""
    path.unlink(missing_ok=True)
    Disk().sync_directory(path.parent)


def record(layout: Layout, num_pages: int) -> Record:
    """Of a state of so many pages."""
    chain = chain_of(np.arange(64 * num_pages))
    kind, length = Kind.CHECKPOINT, chain.num_tokens
    stored = Stored(1, chain, length, num_pages, kind, Class.AGENT, None, 0, 0.0)
    return record_of(stored, layout, 0.0)


def told_speed(spent_s: float) -> str:
    """How fast a state went through."""
    return f"{STATE_BYTES / spent_s / 1e9:5.2f} GB/s"


def measure_copies(folder: Path, cell_bytes: int, what: str) -> None:
    """States of neighbouring and of scattered cells, written and read."""
    layout = Layout(FINGERPRINT, cell_bytes, image_cells=8)
    num_cells = STATE_BYTES // cell_bytes
    told = record(layout, num_cells - layout.image_cells)
    source, target = block(num_cells, cell_bytes), block(num_cells, cell_bytes)
    directory = directory_of(folder, FINGERPRINT)
    Disk().make_directory(directory)
    path, plain = directory / told.name, directory / "plain"
    order = WriteOrder(1, directory, told, ())
    fetching = ReadOrder(path, layout, told.chain)
    scattered = np.random.default_rng(1).permutation(num_cells).tolist()
    spent: dict[str, list[float]] = {}
    for _ in range(TIMES):
        fresh(plain)
        spent.setdefault("plain write", []).append(took(lambda: plain_write(plain, source)))
        spent.setdefault("plain read", []).append(took(lambda: plain_read(plain, target)))
        for name, cells in (("neighbours", list(range(num_cells))), ("scattered", scattered)):
            parts, into = runs(source, cells), runs(target, cells)
            fresh(path)
            write_s = took(lambda parts=parts: store(Disk(), order, parts))  # type: ignore[misc]
            read_s = took(lambda into=into: fetch(Disk(), fetching, into))  # type: ignore[misc]
            assert np.array_equal(source, target), "other bytes came back"
            target[:] = 0
            spent.setdefault(f"{name} write", []).append(write_s)
            spent.setdefault(f"{name} read", []).append(read_s)
    for does in ("write", "read"):
        for name in ("neighbours", "scattered"):
            both = [spent[f"plain {does}"], spent[f"{name} {does}"]]
            (base, mine), (base_best, mine_best) = map(statistics.median, both), map(min, both)
            print(
                f"{what:13s} {cell_bytes >> 10:4d}K {does:5s} {name:10s} {told_speed(mine)}, plain "
                f"{told_speed(base)}: {base / mine:4.0%}; best {told_speed(mine_best)}, plain "
                f"{told_speed(base_best)}: {base_best / mine_best:4.0%}"
            )
    for left in (path, plain):
        left.unlink()


def measure_start(folder: Path) -> None:
    """A directory of states of 2K tokens, scanned and adopted, and a shelf that is large."""
    layout = Layout(FINGERPRINT, cell_bytes=16_384, image_cells=4)
    rows = block(36, layout.cell_bytes)
    states = [state(number) for number in range(NUM_FILES)]
    for one in states:
        told = record_of(one, layout, 0.0)
        directory = directory_of(folder, FINGERPRINT)
        store(Disk(), WriteOrder(one.id, directory, told, ()), [rows.reshape(-1).data])
    spent = took(lambda: scan(Disk(), folder, layout))
    print(f"scan of {NUM_FILES} files of 2K tokens: {1e3 * spent:.0f} ms")
    found = scan(Disk(), folder, layout)
    empty = Shelf.empty(folder, layout, 1 << 40)
    spent = took(lambda: adopt(empty, found, 0, 0.0, 0.0, 1e9))
    print(f"adoption of them: {1e3 * spent:.0f} ms")


def state(number: int) -> Stored:
    """A retained state of 2K tokens unlike all others."""
    chain = chain_of(np.random.default_rng(number).integers(0, 150_000, 2048))
    return Stored(number, chain, 2048, 32, Kind.CHECKPOINT, Class.AGENT, None, 0, float(number))


def measure_ledger() -> None:
    """A shelf of many states."""
    layout = Layout(FINGERPRINT, cell_bytes=16_384, image_cells=4)
    shelf = Shelf.empty(Path("/kv"), layout, 1 << 40)
    for number in range(NUM_STATES):
        shelf = landed(shelf, state(number))
    full = replace(shelf, ceiling_bytes=shelf.used_bytes)
    new = state(NUM_STATES)
    calls: dict[str, Callable[[], object]] = {
        "plan where there is room": lambda: shelf.plan(new, 1e6, 1e9),
        "plan where one makes way": lambda: full.plan(new, 1e6, 1e9),
        "plan, place and settle": lambda: landed(full, new),
        "drop": lambda: shelf.drop(NUM_STATES // 2),
    }
    for name, call in calls.items():
        spent = [1e6 * took(call) for _ in range(200)]
        print(f"{NUM_STATES} states: {name:26s} median {statistics.median(spent):7.1f} us")


def landed(shelf: Shelf, new: Stored) -> Shelf:
    """One more state."""
    room = shelf.plan(new, 1e6, 1e9)
    assert room is not None
    shelf, order = shelf.place(new, room, 1e6, 1e6)
    done = Outcome(new.id, True, tuple(one.path for one in order.leaving))
    return shelf.settle(done, 1e6)


def main(arguments: list[str]) -> None:
    """Everything, in a folder that is removed again."""
    measure_checksums()
    with TemporaryDirectory(dir=arguments[0] if arguments else None) as name:
        folder = Path(name)
        for cell_bytes, what in CELLS:
            measure_copies(folder, cell_bytes, what)
        measure_start(folder)
    measure_ledger()


if __name__ == "__main__":
    main(sys.argv[1:])
