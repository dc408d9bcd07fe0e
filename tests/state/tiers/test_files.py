"""A file is whole or it is nothing, and no changed bit of it is ever used."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from state.retained import Kind
from state.tiers.disk import Disk
from state.tiers.files import StateWriter, cut, open_state, runs, verify_state
from state.tiers.format import BLOCK_BYTES, Damage, Layout, StateCorrupt
from state.tiers.scan import directory_of
from tests.state.tiers.disk_cases import (
    FINGERPRINT,
    LIVE,
    OTHER,
    RETAINED,
    SMALL,
    WHOLE,
    Case,
    blank,
    case_of,
    read,
    write,
)
from tests.state.tiers.faulty_disk import Fault, FaultyDisk, scratch
from tests.state.tiers.plain_tier import NEARLY_ONE, plain

LONG = plain(1, [1 + number % 3 for number in range(40)])


def damage_of(disk: Disk, path: Path, case: Case) -> Damage:
    """What a reader finds wrong with a file."""
    with pytest.raises(StateCorrupt) as caught:
        read(disk, path, case)
    return caught.value.damage


def test_what_was_written_is_read_from_whatever_cells_to_whatever_cells() -> None:
    random = Random(0)
    for layout in (SMALL, WHOLE):
        for one in (RETAINED, LIVE, LONG):
            case = case_of(one, layout)
            num_cells = len(case.rows)
            arena = blank(2 * num_cells, layout)
            cells = random.sample(range(2 * num_cells), num_cells)
            arena[cells] = case.rows
            with scratch() as root:
                path = write(Disk(), root, case, runs(arena, cells))
                assert path.stat().st_size == case.record.file_bytes
                assert (read(Disk(), path, case) == case.rows).all()
                assert verify_state(Disk(), path) == case.record
                arena[:] = 0
                places = random.sample(range(2 * num_cells), num_cells)
                with open_state(Disk(), path) as opened:
                    for number in reversed(range(case.record.num_windows)):
                        start = number * case.record.window_cells
                        into = places[start : start + case.record.window_cells]
                        opened.read_window(number, runs(arena, into))
                assert (arena[places] == case.rows).all()


def test_a_file_does_not_depend_on_the_pieces_in_which_it_was_written() -> None:
    random = Random(1)
    case = case_of(LONG)
    with scratch() as root:
        whole = write(Disk(), root, case).read_bytes()
        for _ in range(20):
            raw = memoryview(case.rows.reshape(-1).data)
            writer = StateWriter(Disk(), directory_of(root, FINGERPRINT), case.record)
            while raw:
                taken = random.randint(1, 700)
                writer.write([raw[: taken // 2], raw[taken // 2 : taken]])
                raw = raw[taken:]
            writer.commit()
            assert (directory_of(root, FINGERPRINT) / case.record.name).read_bytes() == whole


def test_a_bit_flipped_anywhere_is_seen() -> None:
    """In every byte of the cells, and here and there in the blocks before them.

    That every bit of these counts is shown beside the format.
    """
    random = Random(2)
    case = case_of(RETAINED)
    found = set()
    with scratch() as root:
        path = write(Disk(), root, case)
        raw = path.read_bytes()
        assert len(raw) == 2 * BLOCK_BYTES + case.rows.size
        with path.open("r+b", buffering=0) as file:
            for at in [*range(0, 2 * BLOCK_BYTES, 41), *range(2 * BLOCK_BYTES, len(raw))]:
                byte = raw[at]
                os.pwrite(file.fileno(), bytes([byte ^ 1 << random.randrange(8)]), at)
                found.add(damage_of(Disk(), path, case))
                os.pwrite(file.fileno(), bytes([byte]), at)
        assert (read(Disk(), path, case) == case.rows).all()
    assert found - {Damage.VERSION} == {Damage.HEADER, Damage.TOKENS, Damage.WINDOW}


def test_a_file_of_any_other_length_is_not_used() -> None:
    case = case_of(RETAINED)
    with scratch() as root:
        path = write(Disk(), root, case)
        raw = path.read_bytes()
        path.write_bytes(raw + b"\0")
        assert damage_of(Disk(), path, case) is Damage.LENGTH
        for length in [*range(len(raw) - 1, 0, -61), 0]:
            os.truncate(path, length)
            short = length < BLOCK_BYTES
            assert damage_of(Disk(), path, case) is (Damage.SHORT if short else Damage.LENGTH)


def test_zeroes_in_place_of_what_was_never_written_are_seen() -> None:
    case = case_of(RETAINED)
    with scratch() as root:
        path = write(Disk(), root, case)
        raw = path.read_bytes()
        for start in range(0, len(raw), 96):
            hole = bytes(min(96, len(raw) - start))
            if raw[start : start + 96] != hole:
                path.write_bytes(raw[:start] + hole + raw[start + 96 :])
                damage_of(Disk(), path, case)


def test_windows_in_each_others_place_are_seen() -> None:
    case = case_of(LONG)
    with scratch() as root:
        path = write(Disk(), root, case)
        raw = path.read_bytes()
        (one, size), (other, _) = case.record.window(0), case.record.window(1)
        swapped = raw[:one] + raw[other : other + size] + raw[one : one + size]
        path.write_bytes(swapped + raw[other + size :])
        assert damage_of(Disk(), path, case) is Damage.WINDOW


def test_a_good_file_in_the_place_of_another_is_not_used() -> None:
    one, other = case_of(plain(1, [1, 2])), case_of(plain(2, [NEARLY_ONE, 2]))
    with scratch() as root:
        path, wanted = write(Disk(), root, one), write(Disk(), root, other)
        assert damage_of(Disk(), path, other) is Damage.TOKENS
        narrow = Case(replace(one.record, layout=replace(SMALL, image_cells=1)), one.rows)
        assert damage_of(Disk(), path, narrow) is Damage.LAYOUT
        path.rename(wanted)
        assert damage_of(Disk(), wanted, other) is Damage.NAME
        elsewhere = directory_of(root, OTHER)
        elsewhere.mkdir()
        moved = elsewhere / one.record.name
        wanted.rename(moved)
        assert damage_of(Disk(), moved, one) is Damage.FINGERPRINT
        salted = case_of(plain(1, [1, 2], salt=b"tenant"))
        assert damage_of(Disk(), write(Disk(), root, one), salted) is Damage.TOKENS


def test_what_is_not_there_or_cannot_be_read_is_told_apart() -> None:
    case = case_of(RETAINED)
    with scratch() as root:
        path = write(Disk(), root, case)
        for name in ("open_old", "read", "size"):
            faulty = FaultyDisk(always={name: errno.EIO})
            assert damage_of(faulty, path, case) is Damage.UNREADABLE
            assert not faulty.paths, "the file stays open"
        target = path.rename(path.with_name("elsewhere"))
        path.symlink_to(target)
        assert damage_of(Disk(), path, case) is Damage.UNREADABLE
        path.unlink()
        assert damage_of(Disk(), path, case) is Damage.GONE


def test_every_call_of_a_read_may_fail_and_only_what_is_checked_is_used() -> None:
    """A file that does not close has been read all the same."""
    for layout in (SMALL, WHOLE):
        case = case_of(LONG, layout)
        with scratch() as root:
            path = write(Disk(), root, case)
            counting = FaultyDisk()
            read(counting, path, case)
            for number, (name, _) in enumerate(counting.calls):
                faulty = FaultyDisk(faults={number: Fault(errno.EIO)})
                if name in ("close", "forget"):
                    assert (read(faulty, path, case) == case.rows).all()
                else:
                    assert damage_of(faulty, path, case) is Damage.UNREADABLE
                assert not faulty.paths


def test_short_transfers_are_repeated() -> None:
    """At any call, of any length; direct I/O gives way where the rest is no whole block."""
    for layout in (SMALL, WHOLE):
        case = case_of(RETAINED, layout)
        with scratch() as root:
            counting = FaultyDisk()
            path = write(counting, root, case)
            read(counting, path, case)
            for number in range(len(counting.calls)):
                for short in (100, 4096):
                    path.unlink()
                    faulty = FaultyDisk(faults={number: Fault(short=short)})
                    write(faulty, root, case)
                    assert (read(faulty, path, case) == case.rows).all()
                    assert not faulty.paths


def test_the_header_comes_last_and_the_name_after_it() -> None:
    """Everything before the header is on the medium before the header is written."""
    for layout in (SMALL, WHOLE):
        case = case_of(LONG, layout)
        with scratch() as root:
            disk = FaultyDisk()
            path = write(disk, root, case)
            named = disk.named("write", "sync_data", "sync", "rename", "sync_directory")
            assert named.pop(0) == ("sync_directory", root), "its folder is new"
            names = [name for name, _ in named]
            header = max(at for at, name in enumerate(names) if name == "write")
            assert named[header][1][1:] == (0, case.record.header_bytes)
            assert names[header - 1 :] == [
                *("sync_data", "write", "sync", "rename", "sync_directory")
            ]
            assert named[-2][1] == (path.with_name(path.name + ".partial"), path)
            covered = sum(about[2] for name, about in named[: header - 1])
            assert covered == case.record.file_bytes - case.record.header_bytes


def test_direct_io_is_used_where_it_can_be() -> None:
    for layout, direct in ((SMALL, False), (WHOLE, True)):
        with scratch() as root:
            disk = FaultyDisk()
            write(disk, root, case_of(RETAINED, layout))
            assert disk.named("open_new")[0][1][1] is direct


def test_a_file_system_without_direct_io_is_used_through_its_cache() -> None:
    class NoDirect(FaultyDisk):
        def open_new(self, path: Path, *, direct: bool) -> int:
            self._refuse(direct)
            return super().open_new(path, direct=direct)

        def open_old(self, path: Path, *, direct: bool) -> int:
            self._refuse(direct)
            return super().open_old(path, direct=direct)

        def _refuse(self, direct: bool) -> None:
            if direct:
                raise OSError(errno.EINVAL, "no direct I/O here")

    case = case_of(RETAINED, WHOLE)
    with scratch() as root:
        disk = NoDirect()
        assert (read(disk, write(disk, root, case), case) == case.rows).all()
        odd = np.zeros(case.rows.size + 1, np.uint8)[1:].reshape(case.rows.shape)
        odd[:] = case.rows
        path = write(Disk(), root, case, runs(odd, range(len(odd))))
        assert (read(Disk(), path, case) == case.rows).all()


def test_only_the_owner_can_read() -> None:
    before = os.umask(0)
    try:
        with scratch() as root:
            path = write(Disk(), root / "new", case_of(RETAINED))
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.parent.stat().st_mode & 0o777 == 0o700
            assert path.parent.parent.stat().st_mode & 0o777 == 0o700
            path.parent.chmod(0o755)
            write(Disk(), root / "new", case_of(LONG))
            assert path.parent.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_a_long_header_and_many_tokens_are_read_as_well_as_short_ones() -> None:
    """One read finds both of most states; of a long one each is read apart."""
    for letters, window_cells, num_reads in (([1] * 100, 2, 1), ([1] * 300, 1, 2)):
        case = case_of(plain(1, letters), window_cells=window_cells)
        with scratch() as root:
            path = write(Disk(), root, case)
            disk = FaultyDisk()
            with open_state(disk, path) as opened:
                assert opened.record == case.record
            assert len(disk.named("read")) == num_reads


def test_a_link_is_not_written_through() -> None:
    case = case_of(RETAINED)
    with scratch() as root:
        victim = root / "precious"
        victim.write_text("as it was")
        directory = directory_of(root, FINGERPRINT)
        directory.mkdir()
        (directory / f"{case.record.name}.partial").symlink_to(victim)
        with pytest.raises(OSError, match="symbolic"):
            write(Disk(), root, case)
        assert victim.read_text() == "as it was"


def test_parts_are_cut_without_loss() -> None:
    random = Random(3)
    for _ in range(200):
        raw = memoryview(random.randbytes(random.randint(1, 300)))
        bounds = sorted(random.choices(range(len(raw) + 1), k=random.randint(0, 6)))
        parts = [
            raw[start:stop] for start, stop in zip([0, *bounds], [*bounds, len(raw)], strict=True)
        ]
        size, first = random.randint(1, 90), random.randint(1, 90)
        pieces = [b"".join(piece) for piece in cut(parts, size, first)]
        assert b"".join(pieces) == raw
        lengths = [len(piece) for piece in pieces]
        assert lengths[:-1] == [first, *[size] * (len(lengths) - 2)][: len(lengths) - 1]


def test_neighbouring_cells_are_one_part() -> None:
    rows = np.arange(60, dtype=np.uint8).reshape(10, 6)
    parts = runs(rows, [3, 4, 5, 9, 1, 0, 6, 7])
    assert [len(part) for part in parts] == [18, 6, 6, 6, 12]
    assert b"".join(parts) == rows[[3, 4, 5, 9, 1, 0, 6, 7]].tobytes()
    assert runs(rows, []) == []


def test_kinds_do_not_change_the_name() -> None:
    """The same content demoted again finds its file, whatever it is kept for now."""
    one = case_of(plain(1, [1, 2], kind=Kind.PREFIX)).record
    assert case_of(plain(9, [1, 2], kind=Kind.CHECKPOINT)).record.name == one.name
    assert one.layout == Layout(FINGERPRINT, SMALL.cell_bytes, SMALL.image_cells)
