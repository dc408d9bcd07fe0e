"""Where the bytes of a state lie in the arena, and which of them two states have in common."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from state.chain import PAGE_KEY_BYTES
from state.shards import ShardMap
from state.spec import PAGE_TOKENS
from state.tiers.stored import Stored

Begins = tuple[bytes, bytes, int]
"""Salt and common tokens of a state, and its id."""


@dataclass(frozen=True, slots=True)
class Located:
    """Where the bytes of a state lie.

    Args:
        image_cells: the cells of its image, in order.
        page_cells: the cell of each of its pages, in order.
        missing: the pages, by their number in the state, whose bytes are still to be copied. The
            image of a state that has not landed is to be copied too.
    """

    image_cells: tuple[int, ...] = field(repr=False)
    page_cells: tuple[int, ...] = field(repr=False)
    missing: tuple[int, ...] = field(repr=False, default=())

    @property
    def cells(self) -> tuple[int, ...]:
        """All its cells, those of the image first."""
        return self.image_cells + self.page_cells


@dataclass(frozen=True, slots=True)
class Placement:
    """What it takes to place a state in the arena that planned it.

    Args:
        source: the state that shares its leading pages; None where there is none.
        num_shared: leading pages whose bytes are there.
        num_new: cells to be taken.
        victims: who must leave, the first to go first.
    """

    source: int | None
    num_shared: int
    num_new: int
    victims: tuple[Stored, ...]


def num_common(one: Stored, other: Stored) -> int:
    """Leading pages that are the same bytes in both."""
    shared_pages = one.chain.num_shared(other.chain) // PAGE_TOKENS
    return min(shared_pages, one.num_common, other.num_common)


def check_shared(states: dict[int, Stored], places: ShardMap[Located]) -> None:
    """A cell that several hold is the same common page of all of them."""
    holder: dict[int, tuple[int, int]] = {}
    depth: dict[tuple[int, int], int] = {}
    for id in states:
        for page, cell in enumerate(places[id].page_cells):
            first_id, first_page = holder.setdefault(cell, (id, page))
            assert page == first_page, f"cell {cell} is page {page} of {id}, not of {first_id}"
            depth[id, first_id] = page + 1
    for (id, first_id), num_pages in depth.items():
        both = num_common(states[id], states[first_id])
        assert id == first_id or num_pages <= both, (
            f"states {id} and {first_id} share {num_pages} pages, {both} are the same"
        )


def begins(stored: Stored) -> Begins:
    """Sorts states so that those that share most are neighbours."""
    return stored.chain.salt, stored.chain.raw[: stored.num_common * PAGE_KEY_BYTES], stored.id


def numbers(cells: tuple[int, ...]) -> npt.NDArray[np.intp]:
    """Cells as an index of arrays."""
    return np.asarray(cells, np.intp)
