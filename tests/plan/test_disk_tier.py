"""kv_disk as a start finds it: its folder taken, its files adopted, its rate, whatever is wrong."""

import errno
import os
from pathlib import Path

import pytest

from ignisd import disk_tier
from ignisd.below import Below, DiskPlan
from ignisd.disk_tier import DiskTier, open_disk
from ignisd.engine.rates import Rates
from ignisd.engine.tier_plan import TierSizes
from ignisd.errors import ConfigError
from state.tiers.condition import Condition
from state.tiers.disk import Disk
from state.tiers.memory import HostArena
from state.tiers.scan import directory_of, hold
from tests.state.tiers.disk_cases import SMALL, case_of, write
from tests.state.tiers.faulty_disk import FaultyDisk
from tests.state.tiers.plain_tier import plain

CEILING_BYTES = 1 << 20
NUM_CELLS = 4096


def below(root: Path, ceiling_bytes: int = CEILING_BYTES) -> Below:
    """A tier of small cells over a folder, which is taken."""
    lock = hold(Disk(), root)
    assert lock is not None
    sizes = TierSizes(
        num_cells=NUM_CELLS,
        image_cells=SMALL.image_cells,
        cell_bytes=SMALL.cell_bytes,
        image_bytes=SMALL.image_cells * SMALL.cell_bytes,
        window_pages=1,
        window_measured=False,
        disk_bytes=ceiling_bytes,
    )
    return Below(
        sizes=sizes,
        arena=HostArena.reserve(NUM_CELLS, SMALL.cell_bytes),
        disk=DiskPlan(root, lock, ceiling_bytes, None, True, 0),
        token_bytes=1,
        window_bytes=SMALL.cell_bytes,
        ram_floor_tokens=64,
        ttl_ms=1e9,
        rates=Rates(1000.0, 50.0, 1e9, 1e9, 1.0, 1),
    )


def opened(where: Below, monkeypatch: pytest.MonkeyPatch, disk: FaultyDisk) -> DiskTier:
    monkeypatch.setattr(disk_tier, "Disk", lambda: disk)
    tier = open_disk(where, SMALL.fingerprint, 100, lambda: 50.0, lambda: 1e6)
    assert tier is not None
    return tier


def closed(tier: DiskTier, where: Below) -> None:
    assert tier.close()
    where.close()


def with_a_file(root: Path) -> Path:
    """A file of an earlier process."""
    return write(FaultyDisk(), root, case_of(plain(1, [1, 2])))


@pytest.mark.parametrize("call", ["open_new", "write", "sync_data"])
def test_a_start_on_a_full_disk_serves_from_what_is_there(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_a_file(tmp_path)
    where = below(tmp_path)
    tier = opened(where, monkeypatch, FaultyDisk(always={call: errno.ENOSPC}))
    assert [tier.shelf.path_of(stored) for stored in tier.shelf.index] == [path]
    closed(tier, where)


def test_a_first_start_on_a_full_disk_writes_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = below(tmp_path)
    make = FaultyDisk.make_directory

    def make_none_below(self: FaultyDisk, path: Path) -> None:
        if path != tmp_path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        make(self, path)

    with monkeypatch.context() as full:
        full.setattr(FaultyDisk, "make_directory", make_none_below)
        tier = opened(where, monkeypatch, FaultyDisk())
    assert tier.shelf.writer.condition is Condition.PAUSED
    assert tier.floor_tokens > 0
    with_a_file(tmp_path)
    closed(tier, where)


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "read", "forget", "open_new"])
def test_a_rate_that_cannot_be_measured_stops_no_start(
    call: str, fault: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = below(tmp_path)
    tier = opened(where, monkeypatch, FaultyDisk(always={call: fault}))
    assert tier.floor_tokens > 0
    own = directory_of(tmp_path, SMALL.fingerprint)
    assert list(own.iterdir()) == []
    closed(tier, where)


@pytest.mark.parametrize("ceiling_bytes", [CEILING_BYTES, 20_000, 3 * 4096])
def test_the_probe_stays_below_the_ceiling(
    ceiling_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, where = FaultyDisk(), below(tmp_path, ceiling_bytes)
    closed(opened(where, monkeypatch, disk), where)
    ends = [about[1] + about[2] for name, about in disk.calls if name == "write"]
    assert 0 < max(ends) <= ceiling_bytes
    with_a_file(tmp_path)
    disk, where = FaultyDisk(), below(tmp_path, ceiling_bytes)
    closed(opened(where, monkeypatch, disk), where)
    assert not disk.named("open_new", "write"), "a scratch file beside one that can be read"


def test_a_folder_that_cannot_be_used_is_refused_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = below(tmp_path)
    with pytest.raises(ConfigError, match="cannot be used"):
        opened(where, monkeypatch, FaultyDisk(always={"entries": errno.EIO}))
    assert hold(Disk(), tmp_path) is None, "another process could have it meanwhile"
    closed(opened(where, monkeypatch, FaultyDisk()), where)
    below(tmp_path).close()
