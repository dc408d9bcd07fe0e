"""The harness with tiers below its device: an arena, and files where a test asks for them."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import numpy as np

from ignisd.engine import scheduler
from ignisd.engine.check import check_world
from ignisd.engine.files import Command, FileThreads
from ignisd.engine.moves import Order
from ignisd.engine.room import flush
from ignisd.engine.spilling import draining, is_written_out
from ignisd.engine.tiers import TierLimits, Tiers
from ignisd.engine.types import Phase, Round
from state.chain import Chain, chain_of
from state.spec import Fingerprint
from state.tiers.adopt import adopt
from state.tiers.arena import Arena
from state.tiers.condition import RETRY_MS
from state.tiers.format import Layout
from state.tiers.scan import Scan, scan
from state.tiers.shelf import Shelf
from state.tiers.stored import Stored
from tests.engine.harness import FINGERPRINT, Harness
from tests.fake_device import CELL_BYTES, EMPTY, read_on
from tests.state.tiers.faulty_disk import FaultyDisk

WALL_MS = 1e12
"""What the wall clock shows when a harness begins."""


def new_folder(owner: object) -> Path:
    """A folder that is gone with its owner."""
    folder = Path(mkdtemp(prefix="ignisd-below-"))
    weakref.finalize(owner, rmtree, folder, ignore_errors=True)
    return folder


class Tiered(Harness):
    """A harness whose world has lower tiers.

    Args:
        num_cells, image_cells: of the arena.
        window_pages: pages that a round may move beside one image.
        disk_bytes: the ceiling of kv_disk; None for none.
        root: where its files lie; a new folder where it is None.
        fingerprint: of its files.
        low_cells, ram_floor_tokens, disk_floor_tokens: as for `TierLimits`.
        **more: as for `Harness`.

    Attributes:
        disk: the system calls of kv_disk, which can be made to fail.
        slow_files: orders wait until the test calls `file`; else they are carried out at once.
        orders: those that wait.
        ended: what became of others, to be told to the world before the next plan.
    """

    def __init__(
        self,
        *,
        num_cells: int = 200,
        image_cells: int = 2,
        window_pages: int = 40,
        disk_bytes: int | None = None,
        root: Path | None = None,
        fingerprint: Fingerprint = FINGERPRINT,
        low_cells: int = 0,
        ram_floor_tokens: int = 64,
        disk_floor_tokens: int = 64,
        **more: Any,
    ) -> None:
        limits = TierLimits(
            image_bytes=image_cells * CELL_BYTES,
            window_bytes=(window_pages + image_cells) * CELL_BYTES,
            ram_floor_tokens=ram_floor_tokens,
            disk_floor_tokens=disk_floor_tokens,
            low_cells=low_cells,
            wall_offset_ms=WALL_MS,
        )
        self.disk = FaultyDisk()
        self.slow_files = False
        self.orders: list[Order] = []
        self.ended: list[Command] = []
        tiers = Tiers(limits, Arena.empty(num_cells, image_cells, CELL_BYTES))
        super().__init__(tiers=tiers, **more)
        if disk_bytes is not None:
            self.root = root or new_folder(self)
            layout = Layout(fingerprint, CELL_BYTES, image_cells)
            self.found = scan(self.disk, self.root, layout)
            self._adopt(Shelf.empty(self.root, layout, disk_bytes), self.found)
        self.threads = FileThreads(self.disk, self.device.cell_rows)

    def _adopt(self, empty: Shelf, found: Scan) -> None:
        first_id = self.world.next_retained_id
        shelf = adopt(empty, found, first_id, self.now_ms, WALL_MS, self.limits.ttl_ms)
        self.change_tiers(shelf=shelf)
        next_id = first_id + len(found.records)
        self.world = replace(self.world, next_retained_id=next_id)

    def change_tiers(self, **changes: Any) -> None:
        """Put something else into the world's tiers."""
        tiers = replace(self.tiers, **changes)
        self.world = replace(self.world, tiers=tiers)

    def window(self, pages: int) -> None:
        """From now on a round moves so many pages beside one image."""
        limits = self.tiers.limits
        window_bytes = pages * CELL_BYTES + limits.image_bytes
        self.change_tiers(limits=replace(limits, window_bytes=window_bytes))

    @property
    def tiers(self) -> Tiers:
        """What lies below the device."""
        assert self.world.tiers is not None
        return self.world.tiers

    @property
    def arena(self) -> Arena:
        """kv_ram."""
        return self.tiers.arena

    @property
    def shelf(self) -> Shelf:
        """kv_disk."""
        assert self.tiers.shelf is not None
        return self.tiers.shelf

    def plan(self) -> Round | None:
        """Tell the world what became of files, then plan, and hand its orders on."""
        self.obey()
        work = super().plan()
        self.world, orders = scheduler.take_orders(self.world)
        self.orders += orders
        if not self.slow_files:
            self.file()
        return work

    def file(self) -> None:
        """Carry out the orders that wait."""
        while self.orders:
            self.ended.append(self.threads.execute(self.orders.pop(0)))

    def obey(self) -> None:
        """Tell the world what became of orders."""
        while self.ended:
            self.world = self.ended.pop(0)(self.world, self.now_ms)
            check_world(self.world)

    def phase(self, request_id: int) -> Phase | None:
        """Where a request stands; None once it has ended."""
        seq = self.world.sequences.get(request_id)
        return None if seq is None else seq.phase

    def until(self, reached: Callable[[], bool], most: int = 500) -> None:
        """Turn until something is so."""
        for _ in range(most):
            if reached():
                return
            self.turn()
        raise AssertionError(f"not reached in {most} turns: {self.phases()}")

    def until_phase(self, phase: Phase, request_id: int) -> None:
        """Turn until a request stands there."""
        self.until(lambda: self.phase(request_id) is phase)

    def until_stepped(self, request_id: int, steps: int) -> None:
        """Turn until a request has been stepped so often."""
        self.until(lambda: self.stepped(request_id) >= steps)

    def until_said(self, request_id: int, tokens: int) -> None:
        """Turn until so many tokens of an answer were delivered."""
        self.until(lambda: len(self.answers[request_id]) >= tokens)

    def phases(self) -> dict[int, str]:
        """Where each request stands."""
        return {key: str(seq.phase) for key, seq in self.world.sequences.items()}

    def settle(self, most: int = 500) -> None:
        """Turn until nothing is under way, on the device or with files."""
        for _ in range(most):
            self.file()
            if self.turn() is None and not (self.under_way or self.orders or self.ended):
                return
        raise AssertionError(f"still busy after {most} turns: {self.phases()}")

    def flush(self) -> None:
        """Give up everything retained, as the control plane does."""
        self.world = flush(self.world)
        check_world(self.world)

    def begin_to_write_out(self) -> None:
        """From now on what is retained goes to files."""
        self.world = draining(self.world)

    def write_out(self, most: int = 500) -> None:
        """End as the daemon does: what is retained goes to files."""
        self.begin_to_write_out()
        self.until(lambda: not self.ended and is_written_out(self.world, self.now_ms), most)

    def assert_leak_free(self) -> None:
        """Nothing is in flight, and a flush gives everything back, files too."""
        self.settle()
        assert not self.world.sequences, self.phases()
        assert not self.world.pending
        self.flush()
        self.settle()
        if self.tiers.shelf is not None:
            self.now_ms += RETRY_MS
            self.settle()
            left = self.files()
            assert not left, f"{len(left)} files are left"
            assert self.shelf.used_bytes == 0, f"{self.shelf.used_bytes} bytes are charged"
        assert (self.world.pages.num_used, self.world.slots.num_used) == (0, 0)
        tiers = self.tiers
        assert tiers.arena.num_free == tiers.arena.num_cells
        moving = (tiers.touched, tiers.writing, tiers.reading, tiers.orphans, tiers.transient)
        assert not any((*moving, tiers.landings, tiers.claimed, tiers.ahead, tiers.arriving))

    def files(self) -> list[Path]:
        """The files of states, whole or not."""
        return sorted(path for path in self.root.rglob("*.state*") if path.is_file())

    def in_ram(self, tokens: Sequence[int] | Chain, length: int) -> Stored | None:
        """The retained state of the first tokens of a prompt in the arena, if it has landed."""
        return self.arena.index.find(_chain(tokens), length)

    def on_disk(self, tokens: Sequence[int] | Chain, length: int) -> Stored | None:
        """The same in a file that is in place."""
        return self.shelf.index.find(_chain(tokens), length)

    def on_device(self, tokens: Sequence[int] | Chain, length: int) -> bool:
        """Whether the same is retained on the device."""
        return self.world.index.find(_chain(tokens), length) is not None

    def stepped(self, request_id: int) -> int:
        """In how many rounds so far a request stepped."""
        steps = (step for work in self.device.rounds for step in work.decode)
        return sum(step.sequence_id == request_id for step in steps)


def check_bytes(harness: Tiered) -> int:
    """Every state that has landed in the arena holds what its tokens say.

    Returns:
        how many pages and images were compared.
    """
    arena, device = harness.arena, harness.device
    for stored in arena.index:
        place = arena.located(stored.id)
        tokens = stored.chain.tokens.astype(np.int64)
        assert device.read_cells(place.image_cells) == read_on(EMPTY, tokens), f"{stored}"
        rows = device.cells[list(place.page_cells)].ravel()[: stored.length]
        assert (rows == tokens).all(), f"pages of {stored}"
    return sum(1 + one.num_pages for one in arena.index)


def _chain(tokens: Sequence[int] | Chain) -> Chain:
    return tokens if isinstance(tokens, Chain) else chain_of(tokens)


def moved_bytes(work: Round, image_cells: int) -> int:
    """What a round moves between the device and the arena, images included."""
    pages = sum(len(low.pages) for low in work.lowers) + sum(len(up.pages) for up in work.raises)
    images = sum(bool(low.image_cells) for low in work.lowers)
    images += sum(bool(start.image_cells) for start in work.starts)
    return (pages + images * image_cells) * CELL_BYTES
