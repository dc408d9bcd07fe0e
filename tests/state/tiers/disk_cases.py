"""States with bytes, and their files, that the tests of the disk tier share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

from state.chain import link_page
from state.spec import Fingerprint
from state.tiers.disk import Disk
from state.tiers.files import StateWriter, open_state, runs
from state.tiers.format import Layout, Record, record_of
from state.tiers.scan import directory_of
from state.tiers.stored import Stored
from tests.state.tiers.plain_tier import Plain, plain

FINGERPRINT = Fingerprint.of(test="disk")
OTHER = Fingerprint.of(test="another model")
SMALL = Layout(FINGERPRINT, cell_bytes=96, image_cells=2)
"""Cells that direct I/O does not take; files of some thousand bytes."""
WHOLE = Layout(FINGERPRINT, cell_bytes=4096, image_cells=2)
"""Cells that it takes."""
WINDOW_CELLS = 2

Rows = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Case:
    """A state and the bytes of its cells."""

    record: Record
    rows: Rows

    @property
    def parts(self) -> list[memoryview]:
        return runs(self.rows, range(len(self.rows)))


def case_of(one: Plain, layout: Layout = SMALL, window_cells: int = WINDOW_CELLS) -> Case:
    """A state whose bytes follow from who it is."""
    return case_of_stored(one.stored(link_page), layout, window_cells)


def case_of_stored(
    stored: Stored, layout: Layout = SMALL, window_cells: int = WINDOW_CELLS
) -> Case:
    """The same of the product's own value."""
    record = replace(record_of(stored, layout, 1e12), window_cells=window_cells)
    return Case(record, bytes_of(stored, layout))


def bytes_of(stored: Stored, layout: Layout) -> Rows:
    """[cells, cell_bytes]: what the cells of a state hold, unlike those of any other."""
    seed = f"{stored.chain.raw.hex()} {stored.chain.salt.hex()} {stored.is_live and stored.id}"
    num_cells = layout.image_cells + stored.num_pages
    raw = Random(seed).randbytes(num_cells * layout.cell_bytes)
    rows = np.frombuffer(raw, np.uint8).reshape(num_cells, layout.cell_bytes)
    aligned = blank(num_cells, layout)
    aligned[:] = rows
    return aligned


def blank(num_cells: int, layout: Layout) -> Rows:
    """Cells that begin on a block, as the arena's do."""
    room = np.zeros(num_cells * layout.cell_bytes + 4096, np.uint8)
    start = -room.ctypes.data % 4096
    return room[start : start + num_cells * layout.cell_bytes].reshape(num_cells, -1)


def write(disk: Disk, root: Path, case: Case, parts: Sequence[memoryview] | None = None) -> Path:
    """The path of a file that holds a case."""
    directory = directory_of(root, case.record.layout.fingerprint)
    writer = StateWriter(disk, directory, case.record)
    writer.write(case.parts if parts is None else parts)
    writer.commit()
    return directory / case.record.name


def read(disk: Disk, path: Path, case: Case) -> Rows:
    """The cells in a file that should hold a case."""
    into = blank(len(case.rows), case.record.layout)
    with open_state(disk, path, case.record.layout, case.record.chain) as opened:
        assert opened.record == case.record
        opened.read(runs(into, range(len(into))))
    return into


RETAINED = plain(1, [1, 2, 1])
LIVE = plain(2, [1, 2], tail=7, prompt_pages=1)
