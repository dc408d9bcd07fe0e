"""Faults of the tier on disk: its files, its jobs, its scan and its ledger."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from state.chain import Chain
from state.tiers import files, jobs, shelf
from state.tiers.condition import Writer
from state.tiers.disk import Space
from state.tiers.files import OpenState, Parts, StateWriter
from state.tiers.format import Header, Layout, Record, checksum, pack_header, pack_tokens
from state.tiers.index import ranks_below
from state.tiers.jobs import StateWrite
from state.tiers.scan import Foreign, _Sweep
from state.tiers.shelf import Shelf
from state.tiers.stored import Stored
from tests.planting import mutant

Plant = AbstractContextManager[Any]


def _committed(*steps: str) -> Plant:
    """The end of a file, in another order or with something left out."""

    def commit(self: StateWriter) -> None:
        record = self._record
        tokens = files._in_blocks(pack_tokens(record))
        header = files._in_blocks(pack_header(record, checksum([tokens]), self._sums))
        path = self._directory / record.name
        does: dict[str, Callable[[], None]] = {
            "tokens": lambda: self._file.write([tokens], record.header_bytes),
            "sync data": self._file.sync_data,
            "header": lambda: self._file.write([header], 0),
            "sync": self._file.sync,
            "rename": lambda: self._disk.rename(self._partial, path),
            "sync directory": lambda: self._disk.sync_directory(self._directory),
        }
        for step in steps:
            does[step]()
        self._file.close()

    return patch.object(StateWriter, "commit", commit)


@mutant
def header_written_first() -> Plant:
    """A file has its header before the rest of it is on the medium."""
    return _committed("header", "tokens", "sync data", "sync", "rename", "sync directory")


@mutant
def no_sync_before_the_header() -> Plant:
    """The header may reach the medium before what it covers."""
    return _committed("tokens", "header", "sync", "rename", "sync directory")


@mutant
def named_before_the_header() -> Plant:
    """A file has its name before it is whole."""
    return _committed("tokens", "sync data", "rename", "header", "sync", "sync directory")


@mutant
def name_not_synced() -> Plant:
    """A file that has landed may be without its name after a loss of power."""
    return _committed("tokens", "sync data", "header", "sync", "rename")


@mutant
def window_not_checked() -> Plant:
    """Cells are used as they come from the disk."""

    def read_window(self: OpenState, number: int, into: Parts) -> None:
        self._file.read(into, self.record.window(number)[0])

    return patch.object(OpenState, "read_window", read_window)


@mutant
def padding_of_tokens_not_covered() -> Plant:
    """What fills the last block of the tokens is not looked at."""
    real = Header.record

    def record(self: Header, tokens: bytes) -> Record:
        return real(self, tokens[: 4 * self.length].ljust(len(tokens), b"\0"))

    return patch.object(Header, "record", record)


def _expected(*left_out: str) -> Plant:
    real = files._expect

    def expect(path: Path, record: Record, layout: Layout | None, chain: Chain | None) -> None:
        if "name" in left_out:
            path = path.with_name(record.name)
        if "directory" in left_out:
            path = path.parent.with_name(str(record.layout.fingerprint)) / path.name
        real(path, record, layout, None if "tokens" in left_out else chain)

    return patch.object(files, "_expect", expect)


@mutant
def tokens_of_a_file_not_compared() -> Plant:
    """A good file is used for whoever asks for its name."""
    return _expected("tokens")


@mutant
def renamed_file_is_taken() -> Plant:
    """A good file is taken for the state that it is called after."""
    return _expected("name")


@mutant
def foreign_file_is_taken() -> Plant:
    """A file of another model is used if somebody moves it here."""
    return _expected("directory")


@mutant
def short_write_taken_for_whole() -> Plant:
    """What a system call did not take is not written again."""

    def write(self: files._File, parts: Parts, offset: int) -> None:
        self._disk.write(self.fd, parts, offset)

    return patch.object(files._File, "write", write)


@mutant
def failed_file_stays() -> Plant:
    """What a failed write has left is not removed."""
    return patch.object(StateWriter, "abandon", lambda self: self._file.close())


@mutant
def left_under_its_unfinished_name() -> Plant:
    """What a failed write could not remove is looked for under the name that it never got."""
    return patch.object(jobs, "PARTIAL_SUFFIX", ".nothing")


@mutant
def makes_way_before_there_is_room() -> Plant:
    """Files are removed for one that is then not written, as the disk is full."""
    real = StateWrite._begin

    def begin(self: StateWrite) -> None:
        for one in self._order.leaving:
            self._disk.remove(one.path)
            self._removed.append(one.path)
        self._order = replace(self._order, leaving=())
        real(self)

    return patch.object(StateWrite, "_begin", begin)


@mutant
def no_free_floor() -> Plant:
    """The disk is filled to the last byte."""

    def free_floor(space: Space) -> int:
        return 0

    return patch.object(jobs, "free_floor", free_floor)


@mutant
def strays_stay() -> Plant:
    """What a crash has left lies there for ever."""
    real = _Sweep._remove

    def remove(self: _Sweep, one: Any) -> None:
        if not one.path.name.endswith(".partial"):
            real(self, one)

    return patch.object(_Sweep, "_remove", remove)


@mutant
def ceiling_without_foreign_bytes() -> Plant:
    """The files of other fingerprints do not count against the ceiling."""
    real = Shelf.plan

    def plan(self: Shelf, stored: Stored, now_ms: float, ttl_ms: float) -> Any:
        wider = self.ceiling_bytes + self.foreign_bytes
        return real(replace(self, ceiling_bytes=wider), stored, now_ms, ttl_ms)

    return patch.object(Shelf, "plan", plan)


@mutant
def live_file_given_up() -> Plant:
    """A live sequence makes way like a retained state."""

    def candidates(
        self: Shelf, stored: Stored, now_ms: float, ttl_ms: float
    ) -> Iterator[tuple[Foreign | Stored, int]]:
        for one in self.foreign:
            yield one, one.num_bytes
        for victim in self.index.victims(now_ms, ttl_ms):
            if ranks_below(victim, stored, now_ms, ttl_ms):
                yield victim, self.charged[self.path_of(victim)]

    return patch.object(Shelf, "_candidates", candidates)


@mutant
def all_of_the_walk_makes_way() -> Plant:
    """Whoever turns out not to be needed goes as well."""

    def never_enough(chosen: Any) -> Any:
        return [(one, 1 << 60) for one, _ in chosen][::-1]

    return patch.object(shelf, "reversed", never_enough, create=True)


@mutant
def bytes_back_before_they_are_free() -> Plant:
    """A file that is to be removed is not charged any more."""
    real = Shelf.drop

    def drop(self: Shelf, id: int) -> Shelf:
        stored = self._landed(id)
        after = real(self, id)
        return replace(after, used_bytes=after.used_bytes - self.file_bytes(stored))

    return patch.object(Shelf, "drop", drop)


@mutant
def file_written_over_another() -> Plant:
    """A state gets a file under a name that another one has."""
    real = Shelf.plan

    def plan(self: Shelf, stored: Stored, now_ms: float, ttl_ms: float) -> Any:
        path = self.path_of(stored)
        others = {other: size for other, size in self.charged.items() if other != path}
        return real(replace(self, charged=others), stored, now_ms, ttl_ms)

    return patch.object(Shelf, "plan", plan)


@mutant
def full_disk_tried_again_and_again() -> Plant:
    """A write that failed for want of room does not stop the next one."""
    return patch.object(Writer, "after", lambda self, trouble, message, now_ms: self)


@mutant
def written_after_an_engine_error() -> Plant:
    """What was being written when the engine failed is kept and found."""
    real = Shelf.disable

    def disable(self: Shelf, why: str, now_ms: float) -> Shelf:
        return replace(real(self, why, now_ms), pending=self.pending)

    return patch.object(Shelf, "disable", disable)


@mutant
def file_found_before_it_is_there() -> Plant:
    """A state is in the index from the moment when its write was ordered."""
    real = Shelf.place

    def place(self: Shelf, stored: Stored, *more: Any) -> Any:
        placed, order = real(self, stored, *more)
        return replace(placed, index=placed.index.insert(stored)), order

    return patch.object(Shelf, "place", place)
