"""What crosses between the device and the arena in a round, and between the arena and files.

A cell of the arena holds a page; an image fills as many as it needs. Moves of a round are executed
on the device's thread in the order of rounds, so whoever gets a page or a cell in a later plan
writes it after the move that reads it. Orders are executed by the threads of files at their own
pace; what they touch is held until they have landed.
"""

from dataclasses import dataclass
from pathlib import Path

from state.tiers.jobs import ReadOrder, WriteOrder


@dataclass(frozen=True, slots=True)
class Lower:
    """Copy pages to cells, and perhaps an image: the one in `slot`, or the state of `lane`.

    Args:
        stored_id: whose bytes they become.
        pages, cells: page i goes to cell i.
        lane, slot: where the image stands; at most one of the two is given.
        image_cells: what the image fills, empty without one.
    """

    stored_id: int
    pages: tuple[int, ...]
    cells: tuple[int, ...]
    lane: int | None = None
    slot: int | None = None
    image_cells: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Raise:
    """Copy cells to pages, cell i to page i."""

    stored_id: int
    cells: tuple[int, ...]
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Write a state that lies in these cells, its image first, to a file of its own."""

    order: WriteOrder
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadFile:
    """Read and verify a state's file into cells of its own."""

    stored_id: int
    order: ReadOrder
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClearFiles:
    """Remove files that the shelf has given up."""

    paths: tuple[Path, ...]


Order = WriteFile | ReadFile | ClearFiles
