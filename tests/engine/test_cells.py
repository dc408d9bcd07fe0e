"""Pages and images reach their cells and come back as they were, on either way."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ignisd.engine.cells import (
    CellStore,
    PageCopier,
    SharedPages,
    StagedPages,
    in_cell_order,
    stretches,
)
from state.device import KvPool, empty_state
from state.spec import KvFormat, StateSpec
from state.windows import gather_pages, put_pages

SPEC = StateSpec(
    num_full=2,
    kv_heads=1,
    head_dim=16,
    num_linear=2,
    value_heads=2,
    key_dim=16,
    value_dim=24,
    conv_channels=40,
    conv_width=4,
    kv_format=KvFormat.BF16,
)
NUM_PAGES = 12
NUM_CELLS = 9


def random_pool(spec: StateSpec, seed: int) -> KvPool:
    """Pages that all differ."""
    rng = np.random.default_rng(seed)
    shape = (NUM_PAGES, spec.kv_heads, 64, spec.head_dim)

    def leaf() -> jax.Array:
        return jnp.array(rng.integers(0, 2**16, shape), jnp.uint16)

    return KvPool(
        k=tuple(leaf() for _ in range(spec.num_full)), v=tuple(leaf() for _ in range(spec.num_full))
    )


def setup(kind: str) -> tuple[Any, CellStore]:
    """A device with a pool, and an arena of cells full of ones."""
    rng = np.random.default_rng(3)
    images = jax.tree.map(
        lambda leaf: jnp.array(rng.integers(0, 99, leaf.shape), leaf.dtype), empty_state(SPEC, 2)
    )
    device: Any = SimpleNamespace(pool=random_pool(SPEC, 1), images=images)
    rows = np.full((NUM_CELLS, SPEC.page_bytes), 0xFF, np.uint8)
    programs: Any = SimpleNamespace(gather_pages=gather_pages, put_pages=put_pages)
    pages: PageCopier = (
        SharedPages(device, rows)
        if kind == "shared"
        else StagedPages(device, rows, programs, window_pages=2)
    )
    return device, CellStore(device, rows, pages)


def page_bytes(pool: KvPool, page: int) -> bytes:
    """What a page holds, one leaf after the other."""
    return b"".join(np.asarray(leaf[page]).tobytes() for leaf in in_cell_order(pool))


@pytest.mark.parametrize("kind", ["shared", "staged"])
def test_pages_go_down_and_come_up_elsewhere(kind: str) -> None:
    device, cells = setup(kind)
    before = [page_bytes(device.pool, page) for page in range(NUM_PAGES)]
    cells.pages.lower((3, 7, 1, 8, 2), (4, 0, 8, 2, 6))
    # What reuses the pages comes later and must not be seen below.
    device.pool = jax.tree.map(jnp.zeros_like, device.pool)
    cells.settle()
    assert [cells.rows[cell].tobytes() for cell in (4, 0, 8, 2, 6)] == [
        before[page] for page in (3, 7, 1, 8, 2)
    ]
    assert (cells.rows[[1, 3, 5, 7]] == 0xFF).all()
    cells.pages.lift((0, 8, 6), (11, 5, 4))
    after = [page_bytes(device.pool, page) for page in range(1, NUM_PAGES)]
    wanted = {11: before[7], 5: before[1], 4: before[2]}
    zeros = bytes(len(before[0]))
    assert after == [wanted.get(page, zeros) for page in range(1, NUM_PAGES)]


@pytest.mark.parametrize("kind", ["shared", "staged"])
def test_neighbours_go_down_and_come_up_together(kind: str) -> None:
    """Stretches of several lengths, some of which are neighbours on one side only."""
    device, cells = setup(kind)
    before = [page_bytes(device.pool, page) for page in range(NUM_PAGES)]
    pages, chosen = (4, 5, 6, 1, 2, 9, 8, 11), (0, 1, 2, 3, 5, 6, 7, 8)
    cells.pages.lower(pages, chosen)
    cells.settle()
    assert [cells.rows[cell].tobytes() for cell in chosen] == [before[page] for page in pages]
    device.pool = random_pool(SPEC, 2)  # other buffers than those that were seen before
    cells.pages.lift((0, 1, 2, 5, 7, 8), (7, 8, 9, 1, 2, 3))
    lifted = {7: 4, 8: 5, 9: 6, 1: 2, 2: 8, 3: 11}
    for page, source in lifted.items():
        assert page_bytes(device.pool, page) == before[source], page
    untouched = random_pool(SPEC, 2)
    for page in {*range(1, NUM_PAGES)} - {*lifted}:
        assert page_bytes(device.pool, page) == page_bytes(untouched, page), page


@pytest.mark.parametrize(
    ("pages", "cells", "found"),
    [
        ((), (), []),
        ((5,), (2,), [(5, 2, 1)]),
        ((5, 6, 7), (2, 3, 4), [(5, 2, 3)]),
        ((5, 6, 7), (2, 3, 5), [(5, 2, 2), (7, 5, 1)]),
        ((5, 7, 8), (2, 3, 4), [(5, 2, 1), (7, 3, 2)]),
        ((7, 6, 5), (4, 3, 2), [(7, 4, 1), (6, 3, 1), (5, 2, 1)]),
    ],
)
def test_stretches_are_neighbours_on_both_sides(
    pages: tuple[int, ...], cells: tuple[int, ...], found: list[tuple[int, int, int]]
) -> None:
    assert list(stretches(pages, cells)) == found


@pytest.mark.parametrize("kind", ["shared", "staged"])
def test_an_image_fills_its_cells_and_comes_back(kind: str) -> None:
    device, cells = setup(kind)
    image = jax.tree.map(lambda leaf: leaf[1], device.images)
    num_cells = -(-SPEC.image_bytes // SPEC.page_bytes)
    chosen = tuple(range(NUM_CELLS))[-num_cells:][::-1]
    cells.put_image(image, chosen)
    cells.settle()
    came = cells.image(chosen)
    assert all(
        np.array_equal(np.asarray(one), np.asarray(other))
        for one, other in zip(jax.tree.leaves(image), jax.tree.leaves(came), strict=True)
    )
    assert [leaf.dtype for leaf in jax.tree.leaves(came)] == [
        leaf.dtype for leaf in jax.tree.leaves(image)
    ]
    cells.rows[:] = 0  # the image that came up is a copy
    assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(came))
