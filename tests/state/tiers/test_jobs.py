"""Jobs of the disk tier: whatever the disk does and wherever the process dies, nothing is wrong."""

import errno
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from state.tiers.disk import Disk, Space
from state.tiers.files import open_state, verify_state
from state.tiers.format import Damage, StateCorrupt, whole_blocks
from state.tiers.jobs import (
    Charged,
    Outcome,
    ReadOrder,
    StateWrite,
    Trouble,
    WriteOrder,
    clear,
    fetch,
    free_floor,
    store,
)
from state.tiers.scan import Scan, directory_of, hold, scan
from tests.state.tiers.disk_cases import (
    FINGERPRINT,
    LIVE,
    OTHER,
    RETAINED,
    SMALL,
    Case,
    blank,
    case_of,
    read,
    write,
)
from tests.state.tiers.faulty_disk import Fault, FaultyDisk, Killed, scratch
from tests.state.tiers.plain_tier import plain

OLD = plain(5, [2, 2])
TROUBLES = {
    errno.EIO: Trouble.FAILED,
    errno.ENOENT: Trouble.FAILED,
    errno.ENOSPC: Trouble.FULL,
    errno.EDQUOT: Trouble.FULL,
    errno.EROFS: Trouble.READ_ONLY,
    errno.EACCES: Trouble.READ_ONLY,
}


def order_of(root: Path, case: Case, *leaving: Path) -> WriteOrder:
    """An order to write a case once some files are gone."""
    charged = tuple(Charged(path, whole_blocks(path.stat().st_size)) for path in leaving)
    return WriteOrder(7, directory_of(root, FINGERPRINT), case.record, charged)


def files_in(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def looked_at(root: Path) -> Scan:
    """What the next process finds."""
    return scan(Disk(), root, SMALL, deep=True)


def test_a_state_is_stored_in_the_place_of_others_and_fetched() -> None:
    case = case_of(RETAINED)
    with scratch() as root:
        old = write(Disk(), root, case_of(OLD))
        disk = FaultyDisk()
        assert store(disk, order_of(root, case, old), case.parts) == Outcome(7, True, (old,))
        removed = disk.calls.index(("remove", old))
        assert removed < disk.calls.index(disk.named("write")[0])
        path = old.with_name(case.record.name)
        assert files_in(root) == {path}
        into = blank(len(case.rows), SMALL)
        order = ReadOrder(path, SMALL, case.record.chain)
        assert fetch(Disk(), order, [into.reshape(-1).data]) == case.record
        assert (into == case.rows).all()
        with pytest.raises(StateCorrupt):
            fetch(Disk(), replace(order, chain=case_of(OLD).record.chain), [into.reshape(-1).data])


def test_every_call_may_fail_and_nothing_half_done_is_left() -> None:
    """A file that should have gone is there or is told to be gone; the next try succeeds."""
    case = case_of(RETAINED)
    with scratch() as root:
        old_case = case_of(OLD)
        counting = FaultyDisk()
        store(counting, order_of(root, case, write(Disk(), root, old_case)), case.parts)
        for number in range(len(counting.calls)):
            for error in (errno.EIO, errno.ENOSPC):
                for path in files_in(root):
                    path.unlink()
                old = write(Disk(), root, old_case)
                disk = FaultyDisk(faults={number: Fault(error)})
                outcome = store(disk, order_of(root, case, old), case.parts)
                assert not disk.paths, "a file stays open"
                name, _ = counting.calls[number]
                assert (outcome.landed, outcome.trouble) == (False, TROUBLES[error]), name
                assert outcome.message
                assert files_in(root) == {old} - set(outcome.removed), name
                assert outcome.left_bytes == 0
                again = store(Disk(), order_of(root, case), case.parts)
                assert again.landed
                assert (read(Disk(), old.with_name(case.record.name), case) == case.rows).all()


def test_errors_mean_that_the_disk_is_full_or_read_only_or_fails() -> None:
    case = case_of(RETAINED)
    with scratch() as root:
        for error, trouble in TROUBLES.items():
            outcome = store(FaultyDisk(always={"write": error}), order_of(root, case), case.parts)
            assert outcome.trouble is trouble


def test_a_file_that_cannot_even_be_removed_is_told_of() -> None:
    case = case_of(RETAINED)
    for failing in ("write", "sync_data", "sync", "rename", "sync_directory"):
        with scratch() as root:
            scan(Disk(), root, SMALL)
            disk = FaultyDisk(always={failing: errno.EIO, "remove": errno.EIO})
            outcome = store(disk, order_of(root, case), case.parts)
            assert not outcome.landed
            assert outcome.left_bytes == whole_blocks(case.record.file_bytes)
            (left,) = files_in(root)
            assert left.stat().st_size <= outcome.left_bytes
            assert clear(disk, [directory_of(root, FINGERPRINT) / case.record.name]).kept
            done = clear(Disk(), [directory_of(root, FINGERPRINT) / case.record.name])
            assert (len(done.removed), files_in(root)) == (1, set()), failing


def test_a_process_may_die_at_every_call() -> None:
    """Before it, or half-way through a transfer. What the next one finds is whole or is removed."""
    case, old_case = case_of(RETAINED), case_of(OLD)
    with scratch() as root:
        counting = FaultyDisk()
        store(counting, order_of(root, case, write(Disk(), root, old_case)), case.parts)
        num_whole = 0
        for number in range(len(counting.calls)):
            for short in (None, 50, 4096):
                for path in files_in(root):
                    path.unlink()
                old = write(Disk(), root, old_case)
                disk = FaultyDisk(faults={number: Fault(short=short, kills=True)})
                with pytest.raises(Killed):
                    store(disk, order_of(root, case, old), case.parts)
                found = looked_at(root)
                assert not found.damaged
                names = {one.name for one in found.records}
                assert names <= {old_case.record.name, case.record.name}
                assert {path.name for path in files_in(root)} == names
                num_whole += case.record.name in names
        assert num_whole, "the file was in place before the last call"


def test_power_may_fail_at_every_call() -> None:
    """A file with a header is whole, even without its name; one with its name is never damaged."""
    case = case_of(RETAINED)
    with scratch() as root:
        counting = FaultyDisk()
        store(counting, order_of(root, case), case.parts)
        for number in range(len(counting.calls) + 1):
            for seed in range(8):
                for path in files_in(root):
                    path.unlink()
                disk = FaultyDisk(faults={number: Fault(kills=True)})
                try:
                    landed = store(disk, order_of(root, case), case.parts).landed
                except Killed:
                    landed = False
                disk.lose_power(Random(seed))
                for path in files_in(root):
                    whole = path.rename(path.with_name(case.record.name))
                    try:
                        open_state(Disk(), whole).close()
                    except StateCorrupt:
                        assert path != whole, "what has its name is not damaged"
                        whole.rename(path)
                        continue
                    verify_state(Disk(), whole)
                    whole.rename(path)
                found = looked_at(root)
                assert not found.damaged
                assert not landed or len(found.records) == 1, "what has landed stays"


def test_a_full_disk_is_left_alone_before_anything_makes_way() -> None:
    case, old_case = case_of(RETAINED), case_of(OLD)
    with scratch() as root:
        old = write(Disk(), root, old_case)
        order = order_of(root, case, old)
        wanted = whole_blocks(case.record.file_bytes) - order.leaving[0].num_bytes
        total = 1 << 30
        floor = free_floor(Space(0, total))
        refused = store(FaultyDisk(space_told=Space(floor + wanted - 1, total)), order, case.parts)
        assert (refused.trouble, refused.removed) == (Trouble.FULL, ())
        assert str(floor) in refused.message
        assert files_in(root) == {old}
        assert store(FaultyDisk(space_told=Space(floor + wanted, total)), order, case.parts).landed


def test_the_free_floor_is_the_smaller_of_a_share_and_a_size() -> None:
    assert free_floor(Space(0, 100 << 30)) == 5 << 30
    assert free_floor(Space(0, 200 << 30)) == 10 << 30
    assert free_floor(Space(0, 1 << 40)) == 10 << 30


def test_a_live_sequence_is_written_as_its_windows_come_and_may_be_cancelled() -> None:
    case = case_of(LIVE)
    with scratch() as root:
        half = len(case.parts[0]) // 2
        for stop in (0, 1, 2):
            writing = StateWrite(Disk(), order_of(root, case))
            for piece in (case.parts[0][:half], case.parts[0][half:])[:stop]:
                writing.write([piece])
            assert writing.cancel() == Outcome(7, False, ())
            assert files_in(root) == set()
        writing = StateWrite(Disk(), order_of(root, case))
        writing.write([case.parts[0][:half]])
        writing.write([case.parts[0][half:]])
        assert writing.commit().landed
        path = directory_of(root, FINGERPRINT) / "live-2.state"
        assert (read(Disk(), path, case) == case.rows).all()


def test_after_the_first_trouble_nothing_more_is_tried() -> None:
    case = case_of(LIVE)
    with scratch() as root:
        disk = FaultyDisk(always={"write": errno.EIO})
        writing = StateWrite(disk, order_of(root, case))
        writing.write(case.parts)
        num_calls = len(disk.calls)
        writing.write(case.parts)
        for outcome in (writing.commit(), writing.cancel()):
            assert (outcome.landed, outcome.trouble) == (False, Trouble.FAILED)
        assert len(disk.calls) == num_calls


def test_files_are_cleared_as_far_as_it_goes() -> None:
    with scratch() as root:
        paths = [write(Disk(), root, case_of(one)) for one in (RETAINED, OLD)]
        gone = root / "never there"
        done = clear(FaultyDisk(faults={3: Fault(errno.EROFS)}), [gone, *paths])
        assert done.removed == (gone, paths[1])
        assert (done.kept, done.trouble) == ((paths[0],), Trouble.READ_ONLY)
        assert files_in(root) == {paths[0]}


def test_what_a_writer_could_not_remove_is_cleared_with_its_name() -> None:
    with scratch() as root:
        path = write(Disk(), root, case_of(RETAINED))
        path.rename(path.with_name(path.name + ".partial"))
        assert clear(Disk(), [path]).removed == (path,)
        assert not files_in(root)


def test_a_scan_adopts_what_is_good_and_removes_what_nobody_can_use() -> None:
    good, bad = case_of(RETAINED), case_of(OLD)
    with scratch() as root:
        kept = write(Disk(), root, good)
        damaged = write(Disk(), root, bad)
        damaged.write_bytes(damaged.read_bytes()[:-1])
        renamed = kept.with_name("0" * 32 + "-64.state")
        renamed.write_bytes(kept.read_bytes())
        live = write(Disk(), root, case_of(LIVE))
        partial = kept.with_name("x.state.partial")
        partial.write_bytes(b"half")
        foreign_case = case_of(OLD, replace(SMALL, fingerprint=OTHER))
        foreign = write(Disk(), root, foreign_case)
        stray = foreign.with_name("live-9.state")
        stray.write_bytes(b"left")
        others = {root / "notes.txt", kept.parent / "readme", root / "folder" / "x.state"}
        for path in others:
            path.parent.mkdir(exist_ok=True)
            path.write_text("not ours")
        found = scan(Disk(), root, SMALL)
        assert [one.name for one in found.records] == [good.record.name]
        assert found.records[0] == good.record
        assert found.damaged == {damaged: Damage.LENGTH, renamed: Damage.NAME}
        assert found.num_strays == len({live, partial, stray})
        (other,) = found.foreign
        assert (other.path, other.num_bytes) == (
            foreign,
            whole_blocks(foreign_case.record.file_bytes),
        )
        assert files_in(root) == {kept, foreign, *others}
        assert (found.left, found.trouble) == ((), None)


def test_a_scan_reads_cells_only_if_it_is_asked_to() -> None:
    with scratch() as root:
        path = write(Disk(), root, case_of(RETAINED))
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.write_bytes(raw)
        assert len(scan(Disk(), root, SMALL).records) == 1
        assert scan(Disk(), root, SMALL, deep=True).damaged == {path: Damage.WINDOW}
        assert files_in(root) == set()


def test_the_empty_folders_of_other_models_go() -> None:
    with scratch() as root:
        empty = directory_of(root, OTHER)
        empty.mkdir()
        (root / "a folder of somebody").mkdir()
        scan(Disk(), root, SMALL)
        own = directory_of(root, FINGERPRINT)
        assert set(root.iterdir()) == {own, root / "a folder of somebody"}, "and its own stays"


def test_a_new_folder_outlasts_a_loss_of_power() -> None:
    with scratch() as root:
        disk = FaultyDisk()
        scan(disk, root, SMALL)
        write(disk, root, case_of(RETAINED))
        assert disk.named("sync_directory") == [
            ("sync_directory", root),
            ("sync_directory", directory_of(root, FINGERPRINT)),
        ]


def test_what_a_scan_cannot_remove_is_counted() -> None:
    with scratch() as root:
        live = write(Disk(), root, case_of(LIVE))
        found = scan(FaultyDisk(always={"remove": errno.EROFS}), root, SMALL)
        assert found.left == (Charged(live, whole_blocks(live.stat().st_size)),)
        assert found.trouble is Trouble.READ_ONLY


def test_one_process_at_a_time_has_the_tier() -> None:
    with scratch() as folder:
        root = folder / "new" / "kv"
        held = hold(Disk(), root)
        assert held is not None
        assert hold(Disk(), root) is None
        Disk().close(held)
        again = hold(Disk(), root)
        assert again is not None
        Disk().close(again)
        assert root.stat().st_mode & 0o777 == 0o700
        assert not scan(Disk(), root, SMALL).records
