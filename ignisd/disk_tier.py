"""kv_disk of a model that is being loaded: its folder taken, its good files adopted, its rate."""

import errno
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ignisd import log
from ignisd.below import Below, DiskPlan
from ignisd.engine.files import FileThreads
from ignisd.engine.rates import floor_tokens, one_after_the_other
from ignisd.engine.tiers import Tiers, shown_floor
from ignisd.errors import ConfigError
from state.spec import Fingerprint
from state.tiers.adopt import adopt
from state.tiers.disk import Disk
from state.tiers.format import BLOCK_BYTES, PARTIAL_SUFFIX, SUFFIX, Layout, whole_blocks
from state.tiers.scan import Scan, directory_of, scan
from state.tiers.shelf import Shelf

_PROBE_BYTES = 16 << 20
_SLOW_BYTES_S = 100e6
_OPEN_MS = 1.0
"""What opening and verifying a file takes beside reading it."""

_STUCK_S = 10.0
"""A file that is being read or written for so long is not waited for."""

_log = logging.getLogger("ignisd.load")


@dataclass(frozen=True, slots=True)
class DiskTier:
    """A disk tier whose folder this process holds.

    Args:
        shelf: the files that were adopted.
        threads: who reads and writes them.
        plan: what it was told to be.
        floor_tokens: what a restore must add.
        next_id: the first id that no adopted state has.
    """

    shelf: Shelf
    threads: FileThreads
    plan: DiskPlan
    floor_tokens: int
    next_id: int

    def added_to(self, tiers: Tiers, wall_offset_ms: float) -> Tiers:
        """The tiers with this one below them."""
        arena = tiers.arena
        limits = replace(
            tiers.limits,
            disk_floor_tokens=self.floor_tokens,
            low_cells=min(arena.num_cells // 8, 4 * arena.image_cells + 256),
            wall_offset_ms=wall_offset_ms,
        )
        return replace(tiers, limits=limits, shelf=self.shelf)

    def facts(self) -> Mapping[str, object]:
        """What the control plane tells of kv_disk as it was opened."""
        return {
            "path": str(self.plan.root),
            "bytes": self.plan.ceiling_bytes,
            "persist": self.plan.persist,
            "floor_tokens": shown_floor(self.floor_tokens),
            "adopted_states": len(self.shelf.index),
            "adopted_bytes": self.shelf.used_bytes,
        }

    @property
    def drain_ms(self) -> float:
        """How long retained state may take to be written out when the process ends."""
        return float(self.plan.drain_ms) if self.plan.persist else 0.0

    def close(self) -> bool:
        """Leave the files alone from now on; without persistence none is left.

        Returns:
            False where a thread of files is stuck, so that the arena is still in use.
        """
        if not self.threads.close(_STUCK_S):
            return False
        if not self.plan.persist:
            own = directory_of(self.plan.root, self.shelf.layout.fingerprint)
            for path in own.glob(f"*{SUFFIX}*"):
                path.unlink(missing_ok=True)
        return True


def open_disk(
    below: Below,
    fingerprint: Fingerprint,
    first_id: int,
    clock_ms: Callable[[], float],
    wall_ms: Callable[[], float],
) -> DiskTier | None:
    """Adopt what an earlier process left in the folder of kv_disk; None without one.

    Raises:
        ConfigError: the folder cannot be used.
    """
    if below.disk is None or below.arena is None:
        return None
    plan, disk, sizes = below.disk, Disk(), below.sizes
    layout = Layout(fingerprint, sizes.cell_bytes, sizes.image_cells)
    try:
        found = scan(disk, plan.root, layout)
        rate = _read_rate(disk, plan, found, layout, below.arena.rows)
    except OSError as error:
        raise ConfigError(f"--kv-disk-path {plan.root} cannot be used: {error}") from error
    empty = Shelf.empty(plan.root, layout, plan.ceiling_bytes)
    shelf = adopt(empty, found, first_id, clock_ms(), wall_ms(), below.ttl_ms)
    if not plan.persist:
        for stored in list(shelf.index):
            shelf = shelf.drop(stored.id)
    floor = plan.floor_tokens or _floor(below, rate)
    log.write(
        _log,
        logging.INFO,
        "kv_disk",
        path=str(plan.root),
        adopted=len(shelf.index),
        bytes=shelf.used_bytes,
        ceiling_bytes=plan.ceiling_bytes,
        damaged=len(found.damaged),
        strays=found.num_strays,
        read_mib_s=round(rate / (1 << 20), 1),
        floor=shown_floor(floor),
    )
    return DiskTier(
        shelf=shelf,
        threads=FileThreads(disk, below.arena.rows),
        plan=plan,
        floor_tokens=floor,
        next_id=first_id + len(found.records),
    )


def _floor(below: Below, read_bytes_s: float) -> int:
    """Twice what breaks even, of a file that is read and then copied up."""
    rates = below.rates
    assert rates is not None, "kv_disk without rates of the arena"
    both = one_after_the_other(read_bytes_s, rates.raise_bytes_s)
    fixed_ms = rates.start_ms + _OPEN_MS
    return floor_tokens(rates.prefill_tokens_s, fixed_ms, below.token_bytes, both)


def _read_rate(
    disk: Disk, plan: DiskPlan, found: Scan, layout: Layout, rows: npt.NDArray[np.uint8]
) -> float:
    """Bytes a second that a file is read with, into the arena, which is still empty.

    The largest file that lies there is read, or else a scratch file that neither the ceiling nor
    a full disk forbids. Where there is neither, nothing can be said and a slow disk is assumed.
    """
    folder = directory_of(plan.root, layout.fingerprint)
    used_bytes = sum(one.num_bytes for one in found.foreign)
    used_bytes += sum(one.num_bytes for one in found.left)
    used_bytes += sum(whole_blocks(record.file_bytes) for record in found.records)
    largest = max(found.records, key=lambda record: record.file_bytes, default=None)
    try:
        if largest is not None:
            return _timed_read(disk, folder / largest.name, _room(rows, largest.file_bytes))
        part = _room(rows, plan.ceiling_bytes - used_bytes)
        if len(part) and found.trouble is None:
            return _timed_scratch(disk, folder / f"rate{PARTIAL_SUFFIX}", part)
    except OSError as error:
        # A disk that is full, or fails now, is no reason not to serve.
        log.write(_log, logging.WARNING, "kv_disk", unmeasured=str(error))
    return _SLOW_BYTES_S


def _room(rows: npt.NDArray[np.uint8], most_bytes: int) -> memoryview:
    """So much of the arena as a probe reads or writes, whole blocks."""
    flat = rows.reshape(-1).data
    size = min(_PROBE_BYTES, len(flat), max(most_bytes, 0))
    return flat[: size // BLOCK_BYTES * BLOCK_BYTES]


def _timed_scratch(disk: Disk, path: Path, part: memoryview) -> float:
    """Bytes a second of a file that is written, synced, read back and removed."""
    try:
        fd = disk.open_new(path, direct=False)
        try:
            done = 0
            while done < len(part):
                done += disk.write(fd, [part[done:]], done)
            disk.sync_data(fd)
        finally:
            disk.close(fd)
        return _timed_read(disk, path, part)
    finally:
        disk.remove(path)


def _timed_read(disk: Disk, path: Path, part: memoryview) -> float:
    """Bytes a second of a read from the medium; the file has at least as many."""
    fd = disk.open_old(path, direct=False)
    try:
        disk.forget(fd)
        began = time.perf_counter()
        done = 0
        while done < len(part):
            moved = disk.read(fd, [part[done:]], done)
            if not moved:
                raise OSError(errno.EIO, f"{path} ends after {done} bytes")
            done += moved
        return len(part) / max(time.perf_counter() - began, 1e-6)
    finally:
        disk.close(fd)
