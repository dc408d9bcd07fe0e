"""Copies between the device and the cells of the arena, in host memory.

A page's bytes in a cell are those of its rows in every leaf of the pool, one leaf after the other;
an image's are its leaves, one after the other. Where the device's memory is the host's, pages are
copied straight from one to the other: a gathered copy in between would halve the rate. Elsewhere
a window of pages is gathered on the device before the step that reuses them, crosses as a whole,
and reaches its cells when the round is fetched.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ignisd.engine.programs import DeviceState, Programs
from state.device import KvPool, MutableState

Rows = npt.NDArray[np.uint8]


class PageCopier(Protocol):
    """Copies pages to cells and back."""

    @property
    def beside(self) -> bool:
        """Whether pages may be copied while a program runs that touches others."""
        ...

    def lower(
        self, pages: Sequence[int], cells: Sequence[int], since: jax.Array | None = None
    ) -> None:
        """Copy pages down; they may be reused at once, the cells hold them after `settle`.

        Args:
            since: where copies go beside a program, what the program before it computes: it is
                waited for, and no more. None waits for all that was dispatched.
        """
        ...

    def lift(
        self, cells: Sequence[int], pages: Sequence[int], since: jax.Array | None = None
    ) -> None:
        """Copy cells up; `since` as for `lower`."""
        ...

    def settle(self) -> None:
        """Wait until what was lowered lies in its cells."""
        ...


class CellStore:
    """The bytes of the arena, as the runner reads and writes them.

    Args:
        device: the state whose pool holds the pages.
        rows: [num_cells, cell_bytes]: the cells.
        pages: how pages are copied.
    """

    def __init__(self, device: DeviceState, rows: Rows, pages: PageCopier) -> None:
        self.rows = rows
        self.pages = pages
        self._image = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), device.images
        )
        self._waiting: list[tuple[MutableState, tuple[int, ...]]] = []

    def put_image(self, image: MutableState, cells: tuple[int, ...]) -> None:
        """Write an image to cells; it lies there after `settle`."""
        self._waiting.append((image, cells))

    def image(self, cells: tuple[int, ...]) -> MutableState:
        """The image that cells hold, in memory of its own."""
        raw = self.rows[list(cells)].reshape(-1)
        leaves, structure = jax.tree.flatten(self._image)
        taken, at = [], 0
        for leaf in leaves:
            size = leaf.dtype.itemsize * int(np.prod(leaf.shape, dtype=np.int64))
            taken.append(jnp.asarray(raw[at : at + size].view(leaf.dtype).reshape(leaf.shape)))
            at += size
        image: MutableState = jax.tree.unflatten(structure, taken)
        return image

    def settle(self) -> None:
        """Wait until all that was lowered lies in its cells."""
        self.pages.settle()
        waiting, self._waiting = self._waiting, []
        for image, cells in waiting:
            leaves = [
                np.asarray(leaf).reshape(-1).view(np.uint8) for leaf in jax.tree.leaves(image)
            ]
            self._scatter(leaves, cells)

    def _scatter(self, leaves: list[Rows], cells: tuple[int, ...]) -> None:
        """Lay leaves one after the other over the cells; what is left of the last is zeroed."""
        width = self.rows.shape[1]
        number, offset = 0, 0
        for leaf in leaves:
            done = 0
            while done < leaf.size:
                part = min(width - offset, leaf.size - done)
                self.rows[cells[number], offset : offset + part] = leaf[done : done + part]
                done, offset = done + part, offset + part
                if offset == width:
                    number, offset = number + 1, 0
        if number < len(cells):
            self.rows[cells[number], offset:] = 0


class SharedPages:
    """Pages of a device whose memory is the host's.

    Both ways one copy a leaf and stretch of neighbours, on the calling thread, once the pool is at
    rest, or beside a program that leaves these pages alone: programs work in the pool's buffers and
    copy none of them. Up, the buffers are written in place: nobody else holds them, and the next
    program that reads them is dispatched by the same thread.
    """

    beside = True

    def __init__(self, device: DeviceState, rows: Rows) -> None:
        self._device = device
        self._rows = rows
        self._flat = rows.reshape(-1).data
        self._leaves: list[_Leaf] = []

    def lower(
        self, pages: Sequence[int], cells: Sequence[int], since: jax.Array | None = None
    ) -> None:
        """Copy pages down; they lie in their cells at once."""
        rows, flat, width = self._rows, self._flat, self._rows.shape[1]
        leaves = self._at_rest(since)
        for page, cell, count in stretches(pages, cells):
            for leaf in leaves:
                if count == 1:
                    there = leaf.size * page
                    here = width * cell + leaf.at
                    flat[here : here + leaf.size] = leaf.flat[there : there + leaf.size]
                else:
                    part = rows[cell : cell + count, leaf.at : leaf.at + leaf.size]
                    part[...] = leaf.rows[page : page + count]

    def lift(
        self, cells: Sequence[int], pages: Sequence[int], since: jax.Array | None = None
    ) -> None:
        """Copy cells up."""
        rows, flat, width = self._rows, self._flat, self._rows.shape[1]
        leaves = self._at_rest(since)
        for page, cell, count in stretches(pages, cells):
            for leaf in leaves:
                if count == 1:
                    there = leaf.size * page
                    here = width * cell + leaf.at
                    leaf.flat[there : there + leaf.size] = flat[here : here + leaf.size]
                else:
                    part = rows[cell : cell + count, leaf.at : leaf.at + leaf.size]
                    leaf.rows[page : page + count] = part

    def settle(self) -> None:
        """Nothing waits."""

    def _at_rest(self, since: jax.Array | None) -> "list[_Leaf]":
        """Views of the pool's buffers, once nothing computes with the pages in question.

        A program gives its pool back in the buffers that it took, so views made once mostly serve.
        """
        pool = list(in_cell_order(self._device.pool))
        jax.block_until_ready(pool if since is None else since)
        addresses = [leaf.unsafe_buffer_pointer() for leaf in pool]
        if addresses != [leaf.address for leaf in self._leaves]:
            self._leaves = list(_viewed(pool, addresses))
        return self._leaves


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf of the pool.

    Args:
        address: of its buffer.
        rows, flat: views of that: [pages, size], and all of it in one. A copy of one small page
            costs half as much through the latter.
        at, size: where its part of a cell begins, and its bytes.
    """

    address: int
    rows: Rows
    flat: memoryview
    at: int
    size: int


def stretches(pages: Sequence[int], cells: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Pages that follow one another and whose cells do too: the first of each, and how many."""
    first_page, first_cell, count = 0, 0, 0
    for page, cell in zip(pages, cells, strict=True):
        if count and page == first_page + count and cell == first_cell + count:
            count += 1
            continue
        if count:
            yield first_page, first_cell, count
        first_page, first_cell, count = page, cell, 1
    if count:
        yield first_page, first_cell, count


def _viewed(pool: list[jax.Array], addresses: list[int]) -> Iterator[_Leaf]:
    """Views of the buffers of a pool's leaves, in the order of a cell: k0, v0, k1, v1 …"""
    at = 0
    for leaf, address in zip(pool, addresses, strict=True):
        buffer = (ctypes.c_uint8 * leaf.nbytes).from_address(address)
        flat = np.ctypeslib.as_array(buffer)
        rows = flat.reshape(leaf.shape[0], -1)
        yield _Leaf(address, rows, flat.data, at, rows.shape[1])
        at += rows.shape[1]


def in_cell_order(pool: KvPool) -> Iterator[jax.Array]:
    """The pool's leaves in the order of a cell."""
    for k, v in zip(pool.k, pool.v, strict=True):
        yield k
        yield v


class StagedPages:
    """Pages of a device with a memory of its own, a window at a time.

    Args:
        device: whose pool.
        rows: the cells.
        programs: the gather and the put of a window.
        window_pages: pages that these programs take.
    """

    beside = False

    def __init__(
        self, device: DeviceState, rows: Rows, programs: Programs, window_pages: int
    ) -> None:
        self._device = device
        self._rows = rows
        self._programs = programs
        self._window_pages = window_pages
        self._waiting: list[tuple[KvPool, list[int]]] = []

    def lower(
        self, pages: Sequence[int], cells: Sequence[int], since: jax.Array | None = None
    ) -> None:
        """Gather pages on the device and let them cross."""
        for at in range(0, len(pages), self._window_pages):
            part = self._padded(pages[at : at + self._window_pages])
            window: KvPool = self._programs.gather_pages(self._device.pool, part)
            for leaf in jax.tree.leaves(window):
                leaf.copy_to_host_async()
            self._waiting.append((window, list(cells[at : at + self._window_pages])))

    def lift(
        self, cells: Sequence[int], pages: Sequence[int], since: jax.Array | None = None
    ) -> None:
        """Send cells up and scatter them on the device. What pads the window is page 0's."""
        for at in range(0, len(pages), self._window_pages):
            chosen = list(cells[at : at + self._window_pages])
            part = self._padded(pages[at : at + self._window_pages])
            self._device.pool = self._programs.put_pages(
                self._device.pool, part, self._window(chosen)
            )

    def settle(self) -> None:
        """Wait for what crosses, and lay it out in its cells."""
        waiting, self._waiting = self._waiting, []
        for window, cells in waiting:
            at = 0
            for leaf in in_cell_order(window):
                raw = np.asarray(leaf)[: len(cells)].reshape(len(cells), -1).view(np.uint8)
                self._rows[cells, at : at + raw.shape[1]] = raw
                at += raw.shape[1]

    def _padded(self, pages: Sequence[int]) -> npt.NDArray[np.int32]:
        padded = np.zeros(self._window_pages, np.int32)
        padded[: len(pages)] = pages
        return padded

    def _window(self, cells: list[int]) -> KvPool:
        """The cells as leaves of a window, in memory of their own."""
        at, leaves = 0, []
        for leaf in in_cell_order(self._device.pool):
            size = leaf.nbytes // leaf.shape[0]
            raw = np.zeros((self._window_pages, size), np.uint8)
            raw[: len(cells)] = self._rows[cells, at : at + size]
            part = raw.view(leaf.dtype).reshape(self._window_pages, *leaf.shape[1:])
            leaves.append(jnp.asarray(part))
            at += size
        return KvPool(k=tuple(leaves[::2]), v=tuple(leaves[1::2]))
