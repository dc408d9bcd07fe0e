"""The product's values and the plain ones, changed together and compared."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from state.chain import Link, chain_of
from state.retained import Kind
from state.spec import PAGE_TOKENS, Class
from state.tiers.arena import Arena
from state.tiers.index import TierIndex, ranks_below
from state.tiers.stored import Stored
from tests.state.tiers.plain_tier import (
    IMAGE_CELLS,
    TTL_MS,
    Plain,
    PlainArena,
    PlainIndex,
    tokens_of,
)

CELL_BYTES = 4096
CONTINUATIONS: tuple[list[int], ...] = ([], [7], tokens_of([1]), tokens_of([2], 7))


def constant(before: bytes, page: bytes) -> bytes:
    """A hash that finds everything everywhere: only the tokens tell states apart."""
    return b"sixteen bytes .."


def told(states: TierIndex | list[Stored]) -> dict[int, tuple[object, ...]]:
    """What the product says of each state, by id."""
    return {
        one.id: (one.kind, one.cls, one.hits, one.used_ms, one.held, one.pinned) for one in states
    }


def meant(states: dict[int, Plain]) -> dict[int, tuple[object, ...]]:
    """The same of the plain states."""
    return {
        one.id: (one.kind, one.cls, one.hits, one.used_ms, one.held, one.pinned)
        for one in states.values()
    }


def compare(index: TierIndex, model: PlainIndex, now_ms: float, link: Link) -> None:
    """The same states, the same order in which they give way, the same answers."""
    index.check()
    assert told(index) == meant(model.states)
    order = [one.id for one in index.victims(now_ms, TTL_MS)]
    wanted = model.victims(now_ms)
    assert order == [one.id for one in wanted]
    best = model.best(now_ms)
    assert [one.id for one in index.best(now_ms, TTL_MS)] == best
    assert sorted(one.id for one in index.live()) == sorted(model.states.keys() - set(best))
    assert [one.id for one in index.pinned()] == best[: index.num_pinned]
    for one, other in pairwise(one.stored(link) for one in wanted):
        assert ranks_below(one, other, now_ms, TTL_MS)
        assert not ranks_below(other, one, now_ms, TTL_MS)
    for known in model.states.values():
        whole = len(known.tokens) // PAGE_TOKENS * PAGE_TOKENS
        if whole:
            found = index.find(chain_of(known.tokens, known.salt, link), whole)
            assert (found.id if found else None) == model.find(known.salt, known.tokens[:whole])
        for more in CONTINUATIONS:
            prompt = (*known.tokens, *more)
            found = index.longest_match(chain_of(prompt, known.salt, link), len(prompt))
            assert (found.id if found else None) == model.longest_match(known.salt, prompt)


class IndexPair:
    """An index and its model."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.index = TierIndex.empty()
        self.model = PlainIndex()
        self.now_ms = 0.0

    def insert(self, new: Plain) -> None:
        before = self.index
        self.index = before.insert(new.stored(self.link))
        assert new.id not in before
        self.model.states[new.id] = new

    def remove(self, id: int) -> None:
        before = self.index
        self.index = before.remove(id)
        assert before.get(id) is not None
        assert self.index.get(id) is None
        del self.model.states[id]

    def pin(self, id: int, pinned: bool) -> None:
        self.index = self.index.pin(id, pinned)
        self.model.pin(id, pinned)

    def touch(self, id: int) -> None:
        self.index = self.index.touch(id, self.now_ms)
        self.model.touch(id, self.now_ms)

    def hold(self, id: int) -> None:
        self.index = self.index.hold(id)
        self.model.change(id, held=self.model.states[id].held + 1)

    def release(self, id: int) -> None:
        self.index = self.index.release(id)
        self.model.change(id, held=self.model.states[id].held - 1)

    def renew(self, id: int, kind: Kind, cls: Class, used_ms: float) -> None:
        one = self.model.states[id]
        again = Plain(id, one.salt, one.tokens, one.num_common, kind, cls, 0, used_ms)
        self.index = self.index.renew(again.stored(self.link))
        self.model.renew(id, kind, cls, used_ms)

    def agree(self) -> None:
        compare(self.index, self.model, self.now_ms, self.link)


class ArenaPair:
    """An arena, its model, and a memory that is written piece by piece."""

    def __init__(self, num_cells: int, link: Link) -> None:
        self.link = link
        self.arena = Arena.empty(num_cells, IMAGE_CELLS, CELL_BYTES)
        self.model = PlainArena(num_cells)
        self.memory: dict[int, object] = {}
        self.unwritten: dict[int, list[tuple[int, object]]] = {}
        self.now_ms = 0.0
        self.outcomes: Counter[str] = Counter()

    @property
    def landed(self) -> dict[int, Plain]:
        return self.model.landed.states

    def contents(self, one: Plain) -> list[object]:
        """What must lie in its cells: its image, its common pages, and what only it has."""
        common = one.common()
        own = [("page", one.id, page) for page in range(len(common), one.num_pages)]
        return [*(("image", one.id, piece) for piece in range(IMAGE_CELLS)), *common, *own]

    def place(self, new: Plain, kept: set[int]) -> bool:
        """Plan, compare, and place where there is room."""
        stored = new.stored(self.link)
        before = self.arena
        plan = before.plan(stored, self.now_ms, TTL_MS, lambda one: one.id not in kept)
        wanted = self.model.plan(new, self.now_ms, kept)
        if plan is None:
            assert wanted is None
            self.outcomes["refused"] += 1
            return False
        assert (plan.num_new, [one.id for one in plan.victims]) == wanted
        self.outcomes["displaced"] += bool(plan.victims)
        self.outcomes["shared"] += bool(plan.num_shared)
        counts = before.counts.copy()
        self.arena, place = before.place(stored, plan)
        assert (before.counts == counts).all()
        assert new.id not in before.places
        self.model.place(new, [one.id for one in plan.victims])
        assert self.arena.located(new.id) == place
        contents = self.contents(new)
        pages = [IMAGE_CELLS + page for page in place.missing]
        self.unwritten[new.id] = [
            (place.cells[at], contents[at]) for at in (*range(IMAGE_CELLS), *pages)
        ]
        return True

    def write(self, id: int, num_cells: int) -> None:
        """The next bytes of a pending state arrive."""
        for _ in range(min(num_cells, len(self.unwritten[id]))):
            cell, content = self.unwritten[id].pop()
            self.memory[cell] = content

    def land(self, id: int) -> None:
        self.write(id, len(self.unwritten[id]))
        del self.unwritten[id]
        self.arena = self.arena.land(id)
        self.model.land(id)

    def abandon(self, id: int) -> None:
        self.arena = self.arena.abandon(id)
        del self.unwritten[id]
        self.model.abandon(id)

    def drop(self, id: int) -> None:
        self.arena = self.arena.drop(id)
        self.model.drop(id)

    def pin(self, id: int, pinned: bool) -> None:
        self.arena = self.arena.pin(id, pinned)
        if id in self.landed:
            self.model.landed.pin(id, pinned)
        else:
            self.model.pending[id] = replace(self.model.pending[id], pinned=pinned)

    def touch(self, id: int) -> None:
        self.arena = self.arena.touch(id, self.now_ms)
        self.model.landed.touch(id, self.now_ms)

    def hold(self, id: int) -> None:
        self.arena = self.arena.hold(id)
        self.model.landed.change(id, held=self.landed[id].held + 1)

    def release(self, id: int) -> None:
        self.arena = self.arena.release(id)
        self.model.landed.change(id, held=self.landed[id].held - 1)

    def agree(self) -> None:
        """The same cells are held, every byte that was written is there, every answer the same."""
        self.arena.check()
        assert self.arena.pending.keys() == self.model.pending.keys()
        used = self.model.used()
        assert self.arena.num_free == self.model.num_cells - used
        assert self.arena.used_bytes == used * CELL_BYTES
        for also in (None, *self.model.copies):
            assert self.arena.num_pinned_cells(also) == self.model.num_held(
                lambda one: one.pinned, also
            )
        assert self.arena.num_live_cells() == self.model.num_held(lambda one: one.kind is None)
        for one in (*self.landed.values(), *self.model.pending.values()):
            place = self.arena.located(one.id)
            awaited = {cell for cell, _ in self.unwritten.get(one.id, ())}
            for cell, content in zip(place.cells, self.contents(one), strict=True):
                assert cell in awaited or self.memory[cell] == content
            if one.kind is not None:
                held = self.arena.holds(chain_of(one.tokens, one.salt, self.link), len(one.tokens))
                assert held is not None
                assert held.chain.tokens.tolist() == list(one.tokens)
            sole = set(self.model.copies[one.id])
            for id, copies in self.model.copies.items():
                sole -= set(copies) if id != one.id else set()
            assert self.arena.num_sole(one.id) == len(sole)
        compare(self.arena.index, self.model.landed, self.now_ms, self.link)
