"""Who has a file on disk, how many bytes all files take, and whether more may be written.

The shelf is a value. Its bytes are charged before they are written and given back once they are
gone, so that what lies on the disk is never more than what is charged: a file that must make way
is removed by the same job that then writes, and counts until that has ended.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from state.chain import Chain
from state.tiers.condition import RETRY_MS, Condition, Writer
from state.tiers.format import Layout, name_of, record_of, whole_blocks
from state.tiers.index import TierIndex, ranks_below
from state.tiers.jobs import Charged, Cleared, Outcome, ReadOrder, WriteOrder
from state.tiers.scan import Foreign, directory_of
from state.tiers.stored import Stored, renewed


@dataclass(frozen=True, slots=True)
class Pending:
    """A state whose file is being written.

    Args:
        stored: the state.
        path: its file.
        num_bytes: what the file will take.
        leaving: the files that its job removes first.
        unwanted: whether the file is to be removed even if it is written.
    """

    stored: Stored
    path: Path
    num_bytes: int
    leaving: tuple[Path, ...]
    unwanted: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """What it takes to write a state, on the shelf that planned it.

    Args:
        path: its file.
        num_bytes: what the file will take.
        foreign: files of other fingerprints that make way.
        victims: states that make way, the first to go first.
    """

    path: Path
    num_bytes: int
    foreign: tuple[Foreign, ...]
    victims: tuple[Stored, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Shelf:
    """The files of kv_disk.

    Args:
        root: of the tier.
        layout: of the files that this process writes and reads.
        ceiling_bytes: what all files may take, those of other fingerprints included.
        index: the states whose files are in place.
        pending: those whose files are being written, by id.
        charged: bytes of every file that is there, will be, or may be.
        used_bytes: their sum.
        foreign: files of other fingerprints, the longest unchanged first.
        leaving: files that nobody has begun to remove.
        clearing: files that a job removes now.
        writer: whether more is written.
    """

    root: Path
    layout: Layout
    ceiling_bytes: int
    index: TierIndex
    pending: dict[int, Pending]
    charged: dict[Path, int]
    used_bytes: int
    foreign: tuple[Foreign, ...]
    leaving: frozenset[Path]
    clearing: frozenset[Path]
    writer: Writer

    @staticmethod
    def empty(root: Path, layout: Layout, ceiling_bytes: int) -> "Shelf":
        """No file at all."""
        assert ceiling_bytes > 0, f"a ceiling of {ceiling_bytes} bytes"
        return Shelf(
            root=root,
            layout=layout,
            ceiling_bytes=ceiling_bytes,
            index=TierIndex.empty(),
            pending={},
            charged={},
            used_bytes=0,
            foreign=(),
            leaving=frozenset(),
            clearing=frozenset(),
            writer=Writer(),
        )

    @property
    def foreign_bytes(self) -> int:
        """Bytes of the files of other fingerprints."""
        return sum(one.num_bytes for one in self.foreign)

    def path_of(self, stored: Stored) -> Path:
        """Where the file of a state lies."""
        name = name_of(stored.chain, stored.id if stored.is_live else None)
        return directory_of(self.root, self.layout.fingerprint) / name

    def file_bytes(self, stored: Stored) -> int:
        """What the file of a state takes, in whole blocks."""
        return whole_blocks(record_of(stored, self.layout, 0.0).file_bytes)

    def holds(self, chain: Chain, length: int) -> Stored | None:
        """The retained state of exactly these tokens, in place or being written."""
        for one in self.pending.values():
            same = not one.stored.is_live and one.stored.length == length
            if same and one.stored.chain.is_prefix_of(chain) and not one.unwanted:
                return one.stored
        return self.index.find(chain, length)

    def read_order(self, id: int) -> ReadOrder:
        """How to read a state whose file is in place; hold it meanwhile."""
        stored = self._landed(id)
        return ReadOrder(self.path_of(stored), self.layout, stored.chain)

    def may_write(self, now_ms: float) -> bool:
        """Whether a write may begin; in a pause, one at a time once in a while."""
        if self.writer.condition is Condition.PAUSED:
            return not self.pending and now_ms - self.writer.since_ms >= RETRY_MS
        return self.writer.condition is Condition.WRITING

    def plan(self, stored: Stored, now_ms: float, ttl_ms: float) -> Room | None:
        """What it takes to write a state; None where it cannot be. Nothing is changed.

        Files of other fingerprints make way first. Then states that rank below this one, never a
        live one, and no more than needed: whoever turns out not to be is spared, the highest
        first.

        Args:
            stored: what is to be written.
            now_ms: the time.
            ttl_ms: idle time that ends a protection.
        """
        path, num_bytes = self.path_of(stored), self.file_bytes(stored)
        if num_bytes > self.ceiling_bytes or path in self.charged or not self.may_write(now_ms):
            return None
        excess = self.used_bytes + num_bytes - self.ceiling_bytes
        chosen: list[tuple[Foreign | Stored, int]] = []
        for one, gained in self._candidates(stored, now_ms, ttl_ms):
            if excess <= 0:
                break
            chosen.append((one, gained))
            excess -= gained
        if excess > 0:
            return None
        going: list[Foreign | Stored] = []
        for one, gained in reversed(chosen):
            if excess + gained <= 0:
                excess += gained
            else:
                going.append(one)
        going.reverse()
        return Room(
            path=path,
            num_bytes=num_bytes,
            foreign=tuple(one for one in going if isinstance(one, Foreign)),
            victims=tuple(one for one in going if isinstance(one, Stored)),
        )

    def place(
        self, stored: Stored, room: Room, now_ms: float, now_wall_ms: float
    ) -> "tuple[Shelf, WriteOrder]":
        """The victims are not findable any more, and the state waits for its file.

        Args:
            stored: with an id that is not in use.
            room: planned for it by this very shelf.
            now_ms: the time, on the clock of `Stored.used_ms`.
            now_wall_ms: the same moment on the wall clock.
        """
        assert stored.id not in self.pending, f"state {stored.id} is being written"
        assert stored.id not in self.index, f"state {stored.id} is on disk already"
        index = self.index
        for victim in room.victims:
            index = index.remove(victim.id)
        paths = [one.path for one in room.foreign] + [self.path_of(one) for one in room.victims]
        leaving = tuple(Charged(path, self.charged[path]) for path in paths)
        order = WriteOrder(
            id=stored.id,
            directory=room.path.parent,
            record=record_of(stored, self.layout, now_wall_ms - (now_ms - stored.used_ms)),
            leaving=leaving,
        )
        shelf = replace(
            self._charge({room.path: max(0, room.num_bytes - sum(c.num_bytes for c in leaving))}),
            index=index,
            pending=self.pending
            | {stored.id: Pending(stored, room.path, room.num_bytes, tuple(paths))},
            foreign=tuple(one for one in self.foreign if one.path not in paths),
        )
        return shelf, order

    def settle(self, outcome: Outcome, now_ms: float) -> "Shelf":
        """A write has ended: the state is findable, or nothing of it is left.

        Files that should have made way and did not are removed later.
        """
        one = self.pending[outcome.id]
        kept = frozenset(one.leaving).difference(outcome.removed)
        shelf = self._refund([*outcome.removed, one.path])
        shelf = replace(
            shelf,
            pending={id: other for id, other in self.pending.items() if id != outcome.id},
            leaving=shelf.leaving | kept,
        )
        if not outcome.landed:
            if outcome.left_bytes:
                shelf = replace(
                    shelf._charge({one.path: outcome.left_bytes}),
                    leaving=shelf.leaving | {one.path},
                )
            if outcome.trouble is None:
                return shelf
            return replace(
                shelf, writer=self.writer.after(outcome.trouble, outcome.message, now_ms)
            )
        assert not kept, f"state {outcome.id} was written while {len(kept)} files had to go first"
        shelf = replace(
            shelf._charge({one.path: one.num_bytes}), writer=self.writer.after_success(now_ms)
        )
        if one.unwanted:
            return replace(shelf, leaving=shelf.leaving | {one.path})
        return replace(shelf, index=shelf.index.insert(one.stored))

    def drop(self, id: int) -> "Shelf":
        """A state is not findable any more and its file is to be removed.

        Whoever reads it now may finish: an open file stays readable, and a bad one is found bad.
        """
        stored = self._landed(id)
        index = self.index
        for _ in range(stored.held):
            index = index.release(id)
        return replace(self, index=index.remove(id), leaving=self.leaving | {self.path_of(stored)})

    def clear(self) -> "tuple[Shelf, tuple[Path, ...]]":
        """The files that a job is now to remove; each is handed out once."""
        paths = tuple(sorted(self.leaving))
        return replace(self, leaving=frozenset(), clearing=self.clearing | self.leaving), paths

    def cleared(self, done: Cleared, now_ms: float) -> "Shelf":
        """A job that removed files has ended."""
        shelf = self._refund(done.removed)
        return replace(
            shelf,
            clearing=self.clearing.difference(done.removed, done.kept),
            leaving=shelf.leaving.union(done.kept),
            writer=self.writer
            if done.trouble is None
            else self.writer.after(done.trouble, done.message, now_ms),
        )

    def disable(self, why: str, now_ms: float) -> "Shelf":
        """Nothing more is written, and what is being written is not kept."""
        return replace(
            self,
            writer=Writer(Condition.DISABLED, now_ms, 0, why),
            pending={id: replace(one, unwanted=True) for id, one in self.pending.items()},
        )

    def touch(self, id: int, now_ms: float) -> "Shelf":
        """A state was restored."""
        return replace(self, index=self.index.touch(id, now_ms))

    def pin(self, id: int, pinned: bool) -> "Shelf":
        """A retained state stays whatever comes, or no longer. Its file does not say so."""
        return replace(self, index=self.index.pin(id, pinned))

    def forsake(self, id: int) -> "Shelf":
        """A file that is being written is to be removed once it is there."""
        one = replace(self.pending[id], unwanted=True)
        return replace(self, pending=self.pending | {id: one})

    def renew(self, again: Stored) -> "Shelf":
        """A retained state that is here, landed or not, came down again; see `renewed`.

        Its file stays as it is.
        """
        one = self.pending.get(again.id)
        if one is None:
            return replace(self, index=self.index.renew(again))
        changed = replace(one, stored=renewed(one.stored, again))
        return replace(self, pending=self.pending | {again.id: changed})

    def hold(self, id: int) -> "Shelf":
        """A move reads the file of a state; it makes way for nobody until it is released."""
        return replace(self, index=self.index.hold(id))

    def release(self, id: int) -> "Shelf":
        """A move that held a state has ended; the state may have been dropped meanwhile."""
        if id not in self.index:
            return self
        return replace(self, index=self.index.release(id))

    @property
    def pinned_bytes(self) -> int:
        """Bytes of the files of pinned states."""
        return sum(self.file_bytes(one) for one in self.index.pinned())

    @property
    def live_bytes(self) -> int:
        """Bytes of the files of live sequences."""
        return sum(self.file_bytes(one) for one in self.index.live())

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of files that are being written or removed."""
        going = (*self.leaving, *self.clearing, *(one.path for one in self.pending.values()))
        makes_way = (path for one in self.pending.values() for path in one.leaving)
        return sum(self.charged[path] for path in (*going, *makes_way))

    def check(self) -> None:
        """Raise AssertionError where the parts disagree, or files take more than they may."""
        self.index.check()
        landed = [self.path_of(one) for one in self.index]
        written = [one.path for one in self.pending.values()]
        makes_way = [path for one in self.pending.values() for path in one.leaving]
        foreign = [one.path for one in self.foreign]
        paths = [*landed, *written, *makes_way, *foreign, *self.leaving, *self.clearing]
        assert len(set(paths)) == len(paths), (
            f"{len(paths) - len(set(paths))} of {len(paths)} files have two places"
        )
        assert set(paths) == self.charged.keys(), (
            f"{len(paths)} files are known, {len(self.charged)} are charged"
        )
        for one in self.index:
            assert self.charged[self.path_of(one)] == self.file_bytes(one), f"state {one.id}"
        assert self.used_bytes == sum(self.charged.values()), f"{self.used_bytes} bytes are used"
        removable = sum(self.charged[path] for path in (*self.leaving, *self.clearing))
        assert self.used_bytes - removable <= self.ceiling_bytes, (
            f"{self.used_bytes} bytes are used, {removable} of them to be removed; "
            f"--kv-disk-bytes is {self.ceiling_bytes}"
        )

    def _candidates(
        self, stored: Stored, now_ms: float, ttl_ms: float
    ) -> Iterator[tuple[Foreign | Stored, int]]:
        for foreign in self.foreign:
            yield foreign, foreign.num_bytes
        for victim in self.index.victims(now_ms, ttl_ms):
            if victim.is_live or not ranks_below(victim, stored, now_ms, ttl_ms):
                return
            yield victim, self.charged[self.path_of(victim)]

    def _landed(self, id: int) -> Stored:
        stored = self.index.get(id)
        assert stored is not None, f"state {id} is not among the {len(self.index)} on disk"
        return stored

    def _charge(self, files: dict[Path, int]) -> "Shelf":
        assert not files.keys() & self.charged.keys(), f"{len(files)} files are charged twice"
        return replace(
            self, charged=self.charged | files, used_bytes=self.used_bytes + sum(files.values())
        )

    def _refund(self, paths: Iterable[Path]) -> "Shelf":
        charged = self.charged.copy()
        freed = sum(charged.pop(path) for path in paths)
        return replace(self, charged=charged, used_bytes=self.used_bytes - freed)
