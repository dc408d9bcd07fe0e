"""Who holds each cell of the arena in host memory, and what must leave for something new.

A cell holds one page, or a part of an image. Pages whose tokens alone decide their bytes lie once,
however many states of the same salt begin with them; everything else has cells of its own.

The arena is a value. A state is placed at once and lands when its bytes have come: until then it
holds its cells, is not findable, and nobody shares the cells that are still to be written.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from state.chain import Chain
from state.retained import Kind
from state.shards import ShardMap
from state.tiers.cells import (
    Begins,
    Located,
    Placement,
    begins,
    check_shared,
    num_common,
    numbers,
)
from state.tiers.index import TierIndex, ranks_below
from state.tiers.ordered import OrderedSet
from state.tiers.stored import Stored, renewed, retained_from


@dataclass(frozen=True, slots=True, eq=False)
class Arena:
    """The cells of kv_ram and the states that lie in them.

    Args:
        image_cells: cells that an image takes.
        cell_bytes: bytes of a cell, which are those of a page.
        counts: [num_cells] int32, read-only: how many states hold each cell.
        places: where each state lies, the pending ones included.
        index: the states that have landed.
        pending: the states that are placed and have not landed, by id.
        beginnings: the common tokens of those that have landed, in order. In that order the
            states that share most with another are its two neighbours.
    """

    image_cells: int
    cell_bytes: int
    counts: npt.NDArray[np.int32]
    places: ShardMap[Located]
    index: TierIndex
    pending: dict[int, Stored]
    beginnings: OrderedSet[Begins] = field(repr=False)

    @staticmethod
    def empty(num_cells: int, image_cells: int, cell_bytes: int) -> "Arena":
        """All cells free."""
        assert num_cells > 0, f"an arena of {num_cells} cells"
        assert image_cells > 0, f"an image of {image_cells} cells"
        assert cell_bytes > 0, f"cells of {cell_bytes} bytes"
        return Arena(
            image_cells=image_cells,
            cell_bytes=cell_bytes,
            counts=_frozen(np.zeros(num_cells, np.int32)),
            places=ShardMap(),
            index=TierIndex.empty(),
            pending={},
            beginnings=OrderedSet(),
        )

    @property
    def num_cells(self) -> int:
        """Cells in the arena."""
        return int(self.counts.size)

    @property
    def num_free(self) -> int:
        """Cells that nobody holds."""
        return self.num_cells - int(np.count_nonzero(self.counts))

    @property
    def used_bytes(self) -> int:
        """Bytes of the cells that somebody holds, shared ones once."""
        return (self.num_cells - self.num_free) * self.cell_bytes

    def located(self, id: int) -> Located:
        """Where a state lies, whether or not it has landed."""
        place = self.places.get(id)
        assert place is not None, f"state {id} is not among the {len(self.places)} in the arena"
        return place

    def holds(self, chain: Chain, length: int) -> Stored | None:
        """The retained state of exactly these tokens, landed or on its way down."""
        for one in self.pending.values():
            if not one.is_live and one.length == length and one.chain.is_prefix_of(chain):
                return one
        return self.index.find(chain, length)

    def plan(
        self,
        stored: Stored,
        now_ms: float,
        ttl_ms: float,
        may_drop: Callable[[Stored], bool] = lambda one: True,
        *,
        alone: bool = False,
    ) -> Placement | None:
        """What it takes to place a state; None where it cannot be placed. Nothing is changed.

        Only states that rank below it leave, and no more than needed: the walk goes up the order
        in which they give way until enough cells would be free, then spares, from the highest
        down, whoever's leaving gains nothing that is needed.

        Args:
            stored: what is to be placed.
            now_ms: the time.
            ttl_ms: idle time that ends a protection.
            may_drop: whether the caller lets a state go.
            alone: whether it takes cells of its own for all its pages until it has landed.
        """
        if self.image_cells + stored.num_pages > self.num_cells:
            return None
        source, num_shared = (None, 0) if alone else self._shares(stored)
        num_new = self.image_cells + stored.num_pages - num_shared
        free = self.num_free
        if free >= num_new:
            return Placement(source, num_shared, num_new, ())
        counts = self.counts.copy()
        if source is not None:
            counts[numbers(self.places[source].page_cells[:num_shared])] += 1
        chosen: list[tuple[Stored, npt.NDArray[np.intp]]] = []
        for victim in self.index.victims(now_ms, ttl_ms):
            if not ranks_below(victim, stored, now_ms, ttl_ms):
                return None
            if not may_drop(victim):
                continue
            cells = numbers(self.places[victim.id].cells)
            chosen.append((victim, cells))
            counts[cells] -= 1
            free += int(np.count_nonzero(counts[cells] == 0))
            if free >= num_new:
                break
        else:
            return None
        leaving: list[Stored] = []
        for victim, cells in reversed(chosen):
            lost = int(np.count_nonzero(counts[cells] == 0))
            if free - lost >= num_new:
                free -= lost
                counts[cells] += 1
            else:
                leaving.append(victim)
        return Placement(source, num_shared, num_new, tuple(reversed(leaving)))

    def place(self, stored: Stored, placement: Placement) -> "tuple[Arena, Located]":
        """The victims are gone, and the state holds its cells and waits for its bytes.

        Args:
            stored: with an id that is not in use.
            placement: planned for it by this very arena.
        """
        assert stored.id not in self.places, f"state {stored.id} is in the arena already"
        shared: tuple[int, ...] = ()
        if placement.source is not None:
            shared = self.located(placement.source).page_cells[: placement.num_shared]
        arena = self.without(placement.victims)
        counts = arena.counts.copy()
        counts[numbers(shared)] += 1
        free = np.flatnonzero(counts == 0)[: placement.num_new]
        assert free.size == placement.num_new, (
            f"planned to take {placement.num_new} cells for state {stored.id}, {free.size} are free"
        )
        counts[free] = 1
        taken = tuple(free.tolist())
        place = Located(
            image_cells=taken[: self.image_cells],
            page_cells=shared + taken[self.image_cells :],
            missing=tuple(range(len(shared), stored.num_pages)),
        )
        assert len(place.page_cells) == stored.num_pages, (
            f"planned {len(place.page_cells)} pages for state {stored.id} of {stored.num_pages}"
        )
        return replace(
            arena,
            counts=_frozen(counts),
            places=arena.places.put(stored.id, place),
            pending=arena.pending | {stored.id: stored},
        ), place

    def land(self, id: int) -> "Arena":
        """The bytes of a pending state have come: it is findable, and others share its pages.

        Pages that another one brought meanwhile are taken from there, and the copies given back:
        ask `located` again.
        """
        stored = self._pending(id)
        place = self.places[id]
        source, num_shared = self._shares(stored)
        arena = self
        cells = place.page_cells
        if source is not None:
            theirs = self.places[source].page_cells[:num_shared]
            doubled = [at for at in range(num_shared) if cells[at] != theirs[at]]
            arena = arena._counted(tuple(theirs[at] for at in doubled), 1)
            arena = arena._counted(tuple(cells[at] for at in doubled), -1)
            cells = theirs + cells[num_shared:]
        return replace(
            arena,
            places=self.places.put(id, Located(place.image_cells, cells)),
            index=self.index.insert(stored),
            pending=_except(self.pending, id),
            beginnings=self.beginnings.add(begins(stored)),
        )

    def abandon(self, id: int) -> "Arena":
        """A pending state will not come; its cells are given back."""
        self._pending(id)
        arena = self._counted(self.places[id].cells, -1)
        return replace(arena, places=self.places.drop(id), pending=_except(self.pending, id))

    def drop(self, id: int) -> "Arena":
        """A state that has landed, and that no move holds, is gone."""
        stored = self.index.get(id)
        assert stored is not None, f"state {id} has not landed or is not in the arena"
        return self.without((stored,))

    def without(self, gone: Iterable[Stored]) -> "Arena":
        """All these have landed, no move holds them, and they leave together."""
        counts = self.counts.copy()
        index, places, beginnings = self.index, self.places, self.beginnings
        for victim in gone:
            index = index.remove(victim.id)
            counts[numbers(places[victim.id].cells)] -= 1
            places = places.drop(victim.id)
            beginnings = beginnings.remove(begins(victim))
        return replace(
            self, counts=_frozen(counts), index=index, places=places, beginnings=beginnings
        )

    def touch(self, id: int, now_ms: float) -> "Arena":
        """A state was restored."""
        return replace(self, index=self.index.touch(id, now_ms))

    def keep(self, id: int, kind: Kind) -> "Arena":
        """A live state, landed or not, is retained from now on; it stands on the grid."""
        pending = self.pending.get(id)
        if pending is None:
            return replace(self, index=self.index.keep(id, kind))
        return replace(self, pending=self.pending | {id: retained_from(pending, kind)})

    def pin(self, id: int, pinned: bool) -> "Arena":
        """A retained state, landed or not, stays whatever comes, or no longer."""
        pending = self.pending.get(id)
        if pending is None:
            return replace(self, index=self.index.pin(id, pinned))
        return replace(self, pending=self.pending | {id: replace(pending, pinned=pinned)})

    def renew(self, again: Stored) -> "Arena":
        """A retained state that is here, landed or not, came down again; see `renewed`."""
        pending = self.pending.get(again.id)
        if pending is None:
            return replace(self, index=self.index.renew(again))
        return replace(self, pending=self.pending | {again.id: renewed(pending, again)})

    def hold(self, id: int) -> "Arena":
        """A move reads the bytes of a state that has landed."""
        return replace(self, index=self.index.hold(id))

    def release(self, id: int) -> "Arena":
        """A move that held the state has ended."""
        return replace(self, index=self.index.release(id))

    def num_sole(self, id: int) -> int:
        """Cells that would be free if the state left."""
        return int(np.count_nonzero(self.counts[numbers(self.located(id).cells)] == 1))

    def num_pinned_cells(self, also: int | None = None) -> int:
        """Cells that pinned states hold, shared ones once; those of one state more with `also`."""
        ids = {one.id for one in (*self.index.pinned(), *self.pending.values()) if one.pinned}
        return self._num_held(ids if also is None else ids | {also})

    def num_live_cells(self) -> int:
        """Cells that live sequences hold, on their way down or landed, shared ones once."""
        live = (one for one in self.pending.values() if one.is_live)
        return self._num_held({one.id for one in (*self.index.live(), *live)})

    def _num_held(self, ids: Iterable[int]) -> int:
        held: set[int] = set()
        for id in ids:
            held.update(self.located(id).cells)
        return len(held)

    def check(self) -> None:
        """Raise AssertionError where cells, places and states contradict each other."""
        self.index.check()
        states = {one.id: one for one in (*self.index, *self.pending.values())}
        assert len(states) == len(self.index) + len(self.pending), (
            f"of {len(states)} states some are landed and pending"
        )
        assert dict(self.places.items()).keys() == states.keys(), (
            f"{len(self.places)} states lie somewhere, {len(states)} are known"
        )
        landed = sorted(begins(one) for one in self.index)
        assert list(self.beginnings) == landed, f"{len(landed)} states are not in order"
        wanted = np.zeros_like(self.counts)
        for one in states.values():
            self._check_place(one, self.places[one.id])
            wanted[numbers(self.places[one.id].cells)] += 1
        for cell in np.flatnonzero(wanted != self.counts):
            raise AssertionError(
                f"cell {cell} has {self.counts[cell]} holders and is listed {wanted[cell]} times"
            )
        check_shared(states, self.places)
        for (*_, one_id), (*_, next_id) in pairwise(self.beginnings):
            both = num_common(states[one_id], states[next_id])
            cells = self.places[one_id].page_cells[:both], self.places[next_id].page_cells[:both]
            assert cells[0] == cells[1], f"states {one_id} and {next_id} do not share {both} pages"

    def _check_place(self, stored: Stored, place: Located) -> None:
        id, num_pages = stored.id, stored.num_pages
        assert len(place.image_cells) == self.image_cells, (
            f"the image of state {id} lies in {len(place.image_cells)} cells"
        )
        assert len(place.page_cells) == num_pages, (
            f"state {id} has {len(place.page_cells)} cells for {num_pages} pages"
        )
        assert len(set(place.cells)) == len(place.cells), f"state {id} lists a cell twice"
        first = num_pages - len(place.missing)
        assert place.missing == tuple(range(first, num_pages)), f"state {id} lacks pages inside"
        assert id in self.pending or not place.missing, f"state {id} landed without all its pages"
        alone = place.image_cells + place.page_cells[min(first, stored.num_common) :]
        assert (self.counts[numbers(alone)] == 1).all(), f"state {id} shares what is its own"

    def _pending(self, id: int) -> Stored:
        stored = self.pending.get(id)
        assert stored is not None, f"state {id} is not among the {len(self.pending)} pending"
        return stored

    def _shares(self, stored: Stored) -> tuple[int | None, int]:
        """The landed state that has most of the common pages, and how many; tokens are compared."""
        source, most = None, 0
        for near in self.beginnings.around(begins(stored)):
            if near is not None:
                pages = num_common(stored, self.index.entries[near[2]])
                if pages > most:
                    source, most = near[2], pages
        return source, most

    def _counted(self, cells: tuple[int, ...], step: int) -> "Arena":
        counts = self.counts.copy()
        counts[numbers(cells)] += step
        return replace(self, counts=_frozen(counts))


def _frozen(counts: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    counts.flags.writeable = False
    return counts


def _except(pending: dict[int, Stored], id: int) -> dict[int, Stored]:
    return {key: one for key, one in pending.items() if key != id}
