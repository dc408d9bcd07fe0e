"""The threads of files: in order, told from the thread, and silent after a failure."""

import threading
from pathlib import Path

import numpy as np
import pytest

from ignisd.engine.files import Command, FileThreads
from ignisd.engine.moves import WriteFile
from state.chain import chain_of
from state.retained import Kind
from state.spec import Class, Fingerprint
from state.tiers.disk import Disk
from state.tiers.format import Layout, record_of
from state.tiers.jobs import WriteOrder
from state.tiers.stored import Stored

CELL_BYTES = 4096


class Gate(Disk):
    """A disk on which a write waits until it is let through."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def sync_data(self, fd: int) -> None:
        """Wait at the gate."""
        self.reached.set()
        assert self.go_on.wait(30)
        super().sync_data(fd)


def order_for(root: Path, seed: int) -> WriteFile:
    """A state of one page, its image in cell 0 and its page in cell 1."""
    chain = chain_of(range(seed, seed + 64))
    stored = Stored(seed, chain, 64, 1, Kind.CHECKPOINT, Class.AGENT, None, 0, 0.0)
    layout = Layout(Fingerprint.of(test="files"), CELL_BYTES, 1)
    record = record_of(stored, layout, 0.0)
    return WriteFile(WriteOrder(seed, root, record, ()), (0, 1))


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (4, CELL_BYTES)).astype(np.uint8)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_what_was_begun_when_the_engine_failed_gets_no_name(
    tmp_path: Path, rows: np.ndarray
) -> None:
    disk = Gate()
    disk.go_on.set()
    threads = FileThreads(disk, rows)
    whole = order_for(tmp_path, 1)
    threads.submit(whole, lambda command: None)
    assert threads.close(30.0)
    assert names(tmp_path) == [whole.order.record.name]

    threads = FileThreads(disk, rows)
    disk.go_on.clear()
    disk.reached.clear()
    told: list[Command] = []
    threads.submit(order_for(tmp_path, 2), told.append)
    threads.submit(order_for(tmp_path, 3), told.append)
    assert disk.reached.wait(30)
    threads.abort()
    disk.go_on.set()
    assert threads.close(30.0)
    assert names(tmp_path) == [whole.order.record.name]
    assert len(told) == 1


def test_closing_waits_for_a_write_and_gives_up_a_stuck_one(
    tmp_path: Path, rows: np.ndarray
) -> None:
    disk = Gate()
    threads = FileThreads(disk, rows)
    threads.submit(order_for(tmp_path, 1), lambda command: None)
    assert disk.reached.wait(30)
    assert not threads.close(0.05)
    disk.go_on.set()
    assert threads.close(30.0)
    assert names(tmp_path) == [order_for(tmp_path, 1).order.record.name]
