"""The two threads that read and write the files of kv_disk.

One writes and removes, in the order in which it is told; the other reads. Each order ends with a
change to the world that tells what became of it, handed back from the thread.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ignisd.engine.moves import ClearFiles, Order, ReadFile, WriteFile
from ignisd.engine.restoring import file_read
from ignisd.engine.spilling import file_written
from ignisd.engine.stats import FileWork
from ignisd.engine.tiers import files_cleared
from ignisd.engine.world import World, tally
from state.tiers.disk import Disk
from state.tiers.files import runs
from state.tiers.format import StateCorrupt
from state.tiers.jobs import Cleared, clear, fetch, store

Command = Callable[[World, float], World]


class FileThreads:
    """Executes orders.

    Args:
        disk: the system calls.
        rows: [num_cells, cell_bytes]: the cells of the arena.
    """

    def __init__(self, disk: Disk, rows: npt.NDArray[np.uint8]) -> None:
        self._disk = disk
        self._rows = rows
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ignisd-write")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="ignisd-read")
        self._begun: set[Future[None]] = set()

    def submit(self, order: Order, tell: Callable[[Command], None]) -> None:
        """Begin an order; `tell` is called from a thread with what became of it."""
        thread = self._reader if isinstance(order, ReadFile) else self._writer
        begun = thread.submit(lambda: tell(self.execute(order)))
        self._begun.add(begun)
        begun.add_done_callback(self._begun.discard)

    def execute(self, order: Order) -> Command:
        """Carry out an order on the calling thread, and return what became of it."""
        if isinstance(order, WriteFile):
            outcome = store(self._disk, order.order, runs(self._rows, order.cells))
            return lambda world, now_ms: file_written(world, outcome, now_ms)
        if isinstance(order, ClearFiles):
            return partial(_cleared, done=clear(self._disk, order.paths))
        fault = None
        try:
            fetch(self._disk, order.order, runs(self._rows, order.cells))
        except StateCorrupt as corrupt:
            fault = str(corrupt)
        return lambda world, now_ms: file_read(world, order.stored_id, fault, now_ms)

    def abort(self) -> None:
        """The engine has failed: no file gets its name any more, not even one that is begun."""
        self._disk.stop_naming()
        self.stop()

    def stop(self) -> None:
        """Take no more orders, and drop those that have not begun."""
        self._writer.shutdown(wait=False, cancel_futures=True)
        self._reader.shutdown(wait=False, cancel_futures=True)

    def close(self, timeout_s: float) -> bool:
        """Wait for what had begun, and view the cells no more; False where a thread is stuck."""
        self.stop()
        if wait(list(self._begun), timeout_s).not_done:
            return False
        self._rows = np.empty((0, 0), np.uint8)
        return True


def _cleared(world: World, now_ms: float, done: Cleared) -> World:
    assert world.tiers is not None
    world = replace(world, tiers=files_cleared(world.tiers, done, now_ms))
    return world if done.trouble is None else tally(world, "file_faults", FileWork.REMOVE)
