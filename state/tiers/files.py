"""Writes and reads the file of a state. Everything here blocks and belongs on an I/O thread.

Write: the file is `*.partial` until it is whole. Cells and tokens first; sync; then the header,
which makes it whole; sync; then its name; sync of the directory. Read: the header, the tokens and
every window are checked before a byte is used.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from mmap import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128

from state.chain import Chain
from state.tiers.disk import Disk
from state.tiers.format import (
    BLOCK_BYTES,
    PARTIAL_SUFFIX,
    Damage,
    Header,
    Layout,
    Record,
    StateCorrupt,
    checksum,
    header_bytes_of,
    pack_header,
    pack_tokens,
    unpack_header,
)

MOST_PARTS = 1024
"""Parts that one system call takes (IOV_MAX)."""

FIRST_BYTES = 64 << 10
"""Read at once when a file is opened: header and tokens of most states lie within."""

Parts = Sequence[memoryview]


def runs(rows: npt.NDArray[np.uint8], cells: Sequence[int]) -> list[memoryview]:
    """Some cells of an arena in order, neighbours as one part.

    Args:
        rows: [num_cells, cell_bytes], contiguous.
        cells: which rows.
    """
    numbers = np.asarray(cells, np.intp)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [
        rows[run[0] : run[-1] + 1].reshape(-1).data for run in np.split(numbers, breaks) if run.size
    ]


class StateWriter:
    """Writes one file, cell after cell, and gives it its name once it is whole.

    Args:
        disk: the system calls.
        directory: of the state's fingerprint.
        record: what the file says.

    Raises:
        OSError: here and in every method; then only `abandon` may follow.
    """

    def __init__(self, disk: Disk, directory: Path, record: Record) -> None:
        self._disk = disk
        self._record = record
        self._directory = directory
        self._partial = directory / (record.name + PARTIAL_SUFFIX)
        self._written = 0
        self._sums: list[bytes] = []
        self._sum = xxh3_128()
        disk.make_directory(directory)
        disk.restrict(directory)
        direct = record.layout.cell_bytes % BLOCK_BYTES == 0
        self._file = _open(disk, disk.open_new, self._partial, direct=direct)

    def write(self, parts: Parts) -> None:
        """Write the next cells; their bytes may be changed once it has returned."""
        record = self._record
        window_bytes = record.window_cells * record.layout.cell_bytes
        for piece in cut(parts, window_bytes, window_bytes - self._written % window_bytes):
            for part in piece:
                self._sum.update(part)
            self._file.write(piece, record.cells_offset + self._written)
            self._written += sum(map(len, piece))
            whole = self._written == record.file_bytes - record.cells_offset
            if whole or self._written % window_bytes == 0:
                self._sums.append(self._sum.digest())
                self._sum = xxh3_128()

    def commit(self) -> None:
        """All cells are written: make the file whole and name it."""
        record, disk = self._record, self._disk
        tokens = _in_blocks(pack_tokens(record))
        self._file.write([tokens], record.header_bytes)
        self._file.sync_data()
        header = _in_blocks(pack_header(record, checksum([tokens]), self._sums))
        self._file.write([header], 0)
        self._file.sync()
        self._file.close()
        disk.rename(self._partial, self._directory / record.name)
        disk.sync_directory(self._directory)

    def abandon(self) -> None:
        """Leave nothing behind, whatever was written and named so far."""
        self._file.give_up()
        self._disk.remove(self._partial)
        self._disk.remove(self._directory / self._record.name)


class OpenState:
    """A file whose header and tokens are good; its cells are checked as they are read.

    Use it as a context, or close it.

    Attributes:
        record: what the file says.
    """

    def __init__(self, file: "_File", header: Header, record: Record) -> None:
        self.record = record
        self._file = file
        self._header = header

    def read_window(self, number: int, into: Parts) -> None:
        """Fill parts with one window and check it.

        Raises:
            StateCorrupt: it cannot be read or is not what was written; `into` is then rubbish.
        """
        offset, num_bytes = self.record.window(number)
        room = sum(map(len, into))
        assert room == num_bytes, f"window {number} has {num_bytes} bytes, there is room for {room}"
        self._file.read(into, offset)
        if checksum(into) != self._header.window_sums[number]:
            raise StateCorrupt(
                Damage.WINDOW,
                f"the checksum of window {number} of {self.record.num_windows} differs",
            )

    def read(self, into: Parts) -> None:
        """Fill parts with all cells and check them.

        Raises:
            StateCorrupt: as `read_window`.
        """
        window_bytes = self.record.window_cells * self.record.layout.cell_bytes
        for number, piece in enumerate(cut(into, window_bytes)):
            self.read_window(number, piece)

    def close(self) -> None:
        """Close the file."""
        self._file.give_up()

    def __enter__(self) -> "OpenState":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_state(
    disk: Disk, path: Path, layout: Layout | None = None, chain: Chain | None = None
) -> OpenState:
    """Open a file, having checked its name, its header and its tokens.

    Args:
        disk: the system calls.
        path: the file, in the directory of its fingerprint.
        layout: how its bytes must lie, and what they must depend on; None for any.
        chain: which tokens it must hold; None for any.

    Raises:
        StateCorrupt: with what is wrong.
    """
    try:
        file = _open(disk, disk.open_old, path, direct=True)
    except OSError as error:
        raise _unreadable(error) from error
    try:
        header, record = _read_record(file)
        _expect(path, record, layout, chain)
    except BaseException:
        file.give_up()
        raise
    return OpenState(file, header, record)


def verify_state(disk: Disk, path: Path) -> Record:
    """Read a whole file and check every byte of it.

    Raises:
        StateCorrupt: with what is wrong.
    """
    with open_state(disk, path) as opened:
        record = opened.record
        room = memoryview(mmap(-1, record.window(0)[1]))
        for number in range(record.num_windows):
            opened.read_window(number, [room[: record.window(number)[1]]])
    return record


def cut(parts: Parts, piece_bytes: int, first_bytes: int | None = None) -> Iterator[Parts]:
    """Parts regrouped into pieces of a size, the first one of its own and the last one smaller."""
    wanted = piece_bytes if first_bytes is None else first_bytes
    piece: list[memoryview] = []
    for part in parts:
        rest = part
        while len(rest) >= wanted:
            piece.append(rest[:wanted])
            yield piece
            rest, piece, wanted = rest[wanted:], [], piece_bytes
        if rest:
            piece.append(rest)
            wanted -= len(rest)
    if piece:
        yield piece


class _File:
    """An open file that is written and read in full, directly where that is possible."""

    def __init__(self, disk: Disk, fd: int, direct: bool) -> None:
        self._disk = disk
        self._fd: int | None = fd
        self._direct = direct

    @property
    def fd(self) -> int:
        assert self._fd is not None, "the file is closed"
        return self._fd

    def size(self) -> int:
        """How long it is."""
        try:
            return self._disk.size(self.fd)
        except OSError as error:
            raise _unreadable(error) from error

    def write(self, parts: Parts, offset: int) -> None:
        """Write all of the parts."""
        if not self._all(self._disk.write, parts, offset):
            raise OSError(errno.EIO, f"nothing more is taken at byte {offset}")

    def read(self, into: Parts, offset: int) -> None:
        """Fill all of the parts."""
        try:
            if self._all(self._disk.read, into, offset):
                return
        except OSError as error:
            raise _unreadable(error) from error
        raise StateCorrupt(Damage.SHORT, f"it ends before {sum(map(len, into))} bytes at {offset}")

    def sync_data(self) -> None:
        """Wait until the bytes are on the medium."""
        self._disk.sync_data(self.fd)

    def sync(self) -> None:
        """Wait until everything about the file is on the medium."""
        self._disk.sync(self.fd)

    def close(self) -> None:
        """Close it, once; what the cache holds of it can go."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            if not self._direct:
                self._disk.forget(fd)
        finally:
            self._disk.close(fd)

    def give_up(self) -> None:
        """Close it, where it does not matter whether that works: what was read has been checked,
        and what was written is not wanted."""
        with suppress(OSError):
            self.close()

    def _all(self, call: Callable[[int, Parts, int], int], parts: Parts, offset: int) -> bool:
        """Repeat a call until all parts are through; whether they are.

        Addresses or lengths that direct I/O does not take are refused with EINVAL, and so is what
        a short transfer has left of a block: the rest goes through the cache.
        """
        left = [part for part in parts if len(part)]
        while left:
            try:
                moved = call(self.fd, left[:MOST_PARTS], offset)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._disk.go_through_cache(self.fd)
                self._direct = False
                continue
            if moved == 0:
                return False
            offset += moved
            left = _after(left, moved)
        return True


def _read_record(file: _File) -> tuple[Header, Record]:
    file_bytes = file.size()
    if file_bytes < BLOCK_BYTES:
        raise StateCorrupt(Damage.SHORT, f"{file_bytes} bytes hold no header of {BLOCK_BYTES}")
    first = memoryview(mmap(-1, min(FIRST_BYTES, file_bytes // BLOCK_BYTES * BLOCK_BYTES)))
    file.read([first], 0)

    def span(start: int, stop: int) -> bytes:
        if stop <= len(first):
            return bytes(first[start:stop])
        room = memoryview(mmap(-1, stop - start))
        file.read([room], start)
        return bytes(room)

    raw = span(0, header_bytes_of(span(0, BLOCK_BYTES), file_bytes))
    header = unpack_header(raw)
    if header.file_bytes != file_bytes:
        raise StateCorrupt(
            Damage.LENGTH, f"it has {file_bytes} bytes, its header says {header.file_bytes}"
        )
    tokens = span(len(raw), len(raw) + header.tokens_bytes)
    record = header.record(tokens)
    assert record.header_bytes == len(raw), f"{len(raw)} bytes of header for {record.name}"
    assert record.file_bytes == file_bytes, f"{file_bytes} bytes for {record.name}"
    return header, record


def _expect(path: Path, record: Record, layout: Layout | None, chain: Chain | None) -> None:
    stamp = str(record.layout.fingerprint)
    if path.parent.name != stamp:
        raise StateCorrupt(Damage.FINGERPRINT, f"it belongs into {stamp}")
    if path.name != record.name:
        raise StateCorrupt(Damage.NAME, f"it holds {record.name}")
    if layout is not None and layout != record.layout:
        raise StateCorrupt(Damage.LAYOUT, f"it holds {record.layout}, and {layout} is needed")
    if chain is not None and chain != record.chain:
        shared = chain.num_shared(record.chain)
        raise StateCorrupt(
            Damage.TOKENS, f"it shares {shared} of the {chain.num_tokens} tokens that are needed"
        )


def _open(disk: Disk, call: Callable[..., int], path: Path, *, direct: bool) -> _File:
    """Open a file; where the file system refuses direct I/O, through its cache."""
    try:
        return _File(disk, call(path, direct=direct), direct)
    except OSError as error:
        if error.errno != errno.EINVAL or not direct:
            raise
    return _File(disk, call(path, direct=False), False)


def _in_blocks(raw: bytes) -> memoryview:
    """Whole blocks copied to where direct I/O takes them from."""
    copied = mmap(-1, len(raw))
    copied[:] = raw
    return memoryview(copied)


def _after(parts: Parts, moved: int) -> list[memoryview]:
    """What is left of parts of which so many bytes are through."""
    left: list[memoryview] = []
    for part in parts:
        if moved < len(part):
            left.append(part[moved:])
        moved = max(0, moved - len(part))
    return left


def _unreadable(error: OSError) -> StateCorrupt:
    damage = Damage.GONE if error.errno == errno.ENOENT else Damage.UNREADABLE
    return StateCorrupt(damage, f"it cannot be read: {error.strerror}")
