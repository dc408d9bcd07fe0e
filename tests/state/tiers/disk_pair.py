"""The shelf, its jobs and real files beside plain dictionaries, through faults and restarts."""

import errno
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from state.chain import link_page
from state.tiers.adopt import adopt
from state.tiers.condition import MOST_FAILURES, RETRY_MS
from state.tiers.disk import Space
from state.tiers.files import runs
from state.tiers.format import StateCorrupt, whole_blocks
from state.tiers.jobs import Outcome, Trouble, WriteOrder, clear, fetch, store
from state.tiers.scan import directory_of, scan
from state.tiers.shelf import Shelf
from tests.state.tiers.disk_cases import FINGERPRINT, OTHER, SMALL, blank, bytes_of
from tests.state.tiers.faulty_disk import ROOMY, Fault, FaultyDisk, Killed
from tests.state.tiers.pairs import compare
from tests.state.tiers.plain_tier import TTL_MS, Plain, PlainIndex, order_of

WALL_MS = 1_000_000_000.0
CEILING_BYTES = 10 * 3 * 4096
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOENT)
DAMAGES = ("flip", "truncate", "remove", "swap", "directory")


@dataclass
class Flight:
    """A write that has been ordered and not begun."""

    order: WriteOrder
    new: Plain
    path: Path
    num_bytes: int
    leaving: list[Path]


@dataclass
class PlainWriter:
    """Whether something is written."""

    disabled: bool = False
    paused_ms: float | None = None
    failures: int = 0

    def may_write(self, now_ms: float, busy: bool) -> bool:
        if self.paused_ms is not None:
            return not self.disabled and not busy and now_ms - self.paused_ms >= RETRY_MS
        return not self.disabled

    def told(self, trouble: Trouble | None, landed: bool, now_ms: float) -> None:
        self.disabled |= trouble is Trouble.READ_ONLY
        if landed:
            self.failures, self.paused_ms = 0, None
        self.failures += trouble is Trouble.FAILED
        if trouble is Trouble.FULL or (trouble and self.failures >= MOST_FAILURES):
            self.paused_ms = now_ms


@dataclass
class DiskPair:
    """What the engine would do with the tier, and what it must find.

    Args:
        root: an empty folder.
        landed: the states that can be found.
        content: the state that was written to each file of ours that may be there.
        charged: bytes of all files but those that are being written.
        damaged: files that no longer hold what was written; True if a scan sees it.
    """

    root: Path
    random: Random
    disk: FaultyDisk = field(default_factory=FaultyDisk)
    landed: PlainIndex = field(default_factory=PlainIndex)
    content: dict[Path, Plain] = field(default_factory=dict)
    charged: dict[Path, int] = field(default_factory=dict)
    foreign: list[Path] = field(default_factory=list)
    damaged: dict[Path, bool] = field(default_factory=dict)
    flights: dict[int, Flight] = field(default_factory=dict)
    writer: PlainWriter = field(default_factory=PlainWriter)
    outcomes: Counter[str] = field(default_factory=Counter)
    now_ms: float = 0.0

    def __post_init__(self) -> None:
        self.shelf = Shelf.empty(self.root, SMALL, CEILING_BYTES)

    @property
    def own(self) -> Path:
        return directory_of(self.root, FINGERPRINT)

    def path(self, one: Plain) -> Path:
        return self.shelf.path_of(one.stored(link_page))

    def size(self, one: Plain) -> int:
        """Blocks of the header, the tokens and the cells, counted by hand."""
        cells = (SMALL.image_cells + one.num_pages) * SMALL.cell_bytes
        return 4096 + -(-len(one.tokens) // 1024) * 4096 + -(-cells // 4096) * 4096

    def used(self) -> int:
        flying = 0
        for one in self.flights.values():
            flying += max(0, one.num_bytes - sum(self.charged[path] for path in one.leaving))
        return sum(self.charged.values()) + flying

    def making_way(self, new: Plain) -> list[Path] | None:
        """The files that must go for a new one; None where it gets no file."""
        known = self.charged.keys() | {one.path for one in self.flights.values()}
        if self.path(new) in known or not self.writer.may_write(self.now_ms, bool(self.flights)):
            return None
        below = [
            self.path(one)
            for one in self.landed.victims(self.now_ms)
            if one.kind is not None and order_of(one, self.now_ms) < order_of(new, self.now_ms)
        ]
        waiting = [*self.foreign, *below]
        chosen: list[Path] = []

        def fits(going: list[Path]) -> bool:
            left = self.used() - sum(self.charged[path] for path in going)
            return left + self.size(new) <= CEILING_BYTES

        while not fits(chosen):
            if not waiting or self.size(new) > CEILING_BYTES:
                return None
            chosen.append(waiting.pop(0))
        for path in reversed(chosen.copy()):
            if fits([other for other in chosen if other != path]):
                chosen.remove(path)
        return chosen

    def place(self, new: Plain) -> bool:
        stored = new.stored(link_page)
        wanted = self.making_way(new)
        room = self.shelf.plan(stored, self.now_ms, TTL_MS)
        assert (room is None) == (wanted is None)
        if room is None or wanted is None:
            self.outcomes["refused"] += 1
            return False
        self.outcomes["displaced"] += len(wanted)
        self.shelf, order = self.shelf.place(stored, room, self.now_ms, self.now_ms + WALL_MS)
        assert [one.path for one in order.leaving] == wanted
        for id in [one.id for one in self.landed.states.values() if self.path(one) in wanted]:
            del self.landed.states[id]
        self.foreign = [path for path in self.foreign if path not in wanted]
        self.flights[new.id] = Flight(order, new, self.path(new), self.size(new), wanted)
        return True

    def finish(self, id: int, fault: tuple[int, Fault] | None = None) -> None:
        """Carry out an order; the ledger is told and compared with the disk."""
        flight = self.flights.pop(id)
        self.arm(fault)
        outcome = store(self.disk, flight.order, self.parts(flight.new))
        self.disk.faults = {}
        assert not self.disk.paths
        roomy = self.disk.space_told == ROOMY and not (flight.leaving and self.disk.always)
        if fault is None or fault[1].short is not None:
            assert outcome.landed == roomy, outcome
        self.note(flight, outcome)
        self.outcomes["landed" if outcome.landed else "failed"] += 1
        self.shelf = self.shelf.settle(outcome, self.now_ms)
        self.writer.told(outcome.trouble, outcome.landed, self.now_ms)
        if outcome.landed:
            self.landed.states[id] = flight.new

    def note(self, flight: Flight, outcome: Outcome) -> None:
        """What the disk must look like after such an outcome."""
        for path in outcome.removed:
            assert path in flight.leaving
            assert not path.exists()
            del self.charged[path]
            self.content.pop(path, None)
            self.damaged.pop(path, None)
        partial = flight.path.with_name(flight.path.name + ".partial")
        assert not partial.exists() or outcome.left_bytes
        assert not outcome.left_bytes or (self.disk.always and not outcome.landed)
        if outcome.left_bytes:
            self.charged[flight.path] = outcome.left_bytes
            self.content[flight.path] = flight.new
            if not flight.path.exists():
                self.damaged[flight.path] = True
            self.outcomes["left"] += 1
        else:
            assert flight.path.exists() == outcome.landed
        if outcome.landed:
            assert set(outcome.removed) == set(flight.leaving)
            self.charged[flight.path] = flight.num_bytes
            self.content[flight.path] = flight.new

    def restore(self, id: int, fault: tuple[int, Fault] | None = None) -> None:
        """Read a state; what is wrong with it is found, and it is given up."""
        one = self.landed.states[id]
        rows = bytes_of(one.stored(link_page), SMALL)
        into = blank(len(rows), SMALL)
        self.shelf = self.shelf.hold(id)
        self.arm(fault)
        try:
            fetch(self.disk, self.shelf.read_order(id), runs(into, range(len(into))))
        except StateCorrupt:
            assert self.path(one) in self.damaged or fault is not None
            self.outcomes["corrupt"] += 1
            self.drop(id)
        else:
            assert self.path(one) not in self.damaged
            assert (into == rows).all()
            self.outcomes["restored"] += 1
            self.shelf = self.shelf.touch(id, self.now_ms)
            self.landed.touch(id, self.now_ms)
        self.disk.faults = {}
        assert not self.disk.paths
        self.shelf = self.shelf.release(id)

    def pin(self, id: int, pinned: bool) -> None:
        self.shelf = self.shelf.pin(id, pinned)
        self.landed.pin(id, pinned)

    def drop(self, id: int) -> None:
        self.shelf = self.shelf.drop(id)
        del self.landed.states[id]

    def clear(self, fault: tuple[int, Fault] | None = None) -> None:
        self.shelf, paths = self.shelf.clear()
        self.arm(fault)
        done = clear(self.disk, paths)
        self.disk.faults = {}
        for path in done.removed:
            assert not path.exists()
            del self.charged[path]
            self.content.pop(path, None)
            self.damaged.pop(path, None)
        assert bool(done.kept) <= (fault is not None or bool(self.disk.always))
        self.shelf = self.shelf.cleared(done, self.now_ms)
        self.writer.told(done.trouble, False, self.now_ms)

    def damage(self, how: str) -> None:
        """Do something to the files of the tier that nobody should."""
        if how == "directory":
            shutil.rmtree(self.own, ignore_errors=True)
            self.damaged |= dict.fromkeys(self.content, True)
            return
        good = sorted(path for path in self.content if path not in self.damaged)
        if not good:
            return
        path = self.random.choice(good)
        raw = bytearray(path.read_bytes())
        at = self.random.randrange(len(raw))
        self.damaged[path] = True
        if how == "remove":
            path.unlink()
        elif how == "truncate":
            os.truncate(path, at)
        elif how == "swap" and len(good) > 1:
            other = self.random.choice([one for one in good if one != path])
            path.rename(other)
            self.damaged[other] = True
        else:
            raw[at] ^= 1 << self.random.randrange(8)
            path.write_bytes(raw)
            cells = SMALL.cell_bytes * (SMALL.image_cells + self.content[path].num_pages)
            self.damaged[path] = at < len(raw) - cells

    def restart(self, num_foreign: int, *, power: bool, first_id: int) -> None:
        """The process dies in the middle of everything, and the next one adopts what it finds."""
        for flight in self.flights.values():
            self.disk.faults = {len(self.disk.calls) + self.random.randrange(16): Fault(kills=True)}
            try:
                store(self.disk, flight.order, self.parts(flight.new))
            except Killed:
                self.disk.dead = False
            self.content[flight.path] = flight.new
        if power:
            self.disk.lose_power(self.random)
        self.flights = {}
        self.add_strays(num_foreign)
        self.disk, self.writer = FaultyDisk(), PlainWriter()
        found = scan(self.disk, self.root, SMALL)
        self.shelf = adopt(
            Shelf.empty(self.root, SMALL, CEILING_BYTES),
            found,
            first_id,
            self.now_ms,
            self.now_ms + WALL_MS,
            TTL_MS,
        )
        self.expect_adopted(first_id)
        self.outcomes["restarted"] += 1

    def add_strays(self, num_foreign: int) -> None:
        """Files of another model, of another program, and what a crash has left."""
        other = directory_of(self.root, OTHER)
        other.mkdir(exist_ok=True)
        self.own.mkdir(exist_ok=True)
        for path in (
            other / "a.state.partial",
            self.own / "b.state.partial",
            other / "live-3.state",
        ):
            path.write_bytes(b"left by a crash")
        for number in range(num_foreign):
            name = f"{len(self.charged)}-{self.now_ms}-{number}.state"
            (other / name).write_bytes(bytes(self.random.randrange(1, 20_000)))
        for number, path in enumerate(sorted(other.glob("[!l]*.state"))):
            os.utime(path, (number, number))

    def expect_adopted(self, first_id: int) -> None:
        """What must be on the shelf now, from what lies in the folders."""
        other = directory_of(self.root, OTHER)
        foreign = sorted(other.glob("*"), key=lambda path: path.stat().st_mtime)
        assert other.exists() == bool(foreign), "an empty folder goes"
        self.foreign = foreign
        good = sorted(
            path
            for path, one in self.content.items()
            if one.kind is not None and not self.damaged.get(path) and path.exists()
        )
        assert {path for path in self.own.iterdir() if path.is_file()} == set(good)
        self.content = {path: self.content[path] for path in good}
        self.damaged = {path: False for path in self.damaged if path in self.content}
        self.charged = {path: whole_blocks(path.stat().st_size) for path in (*good, *foreign)}
        self.landed = PlainIndex()
        for number, path in enumerate(good):
            # A pin ends with the process.
            self.content[path] = replace(self.content[path], id=first_id + number, pinned=False)
            self.landed.states[first_id + number] = self.content[path]
        excess = sum(self.charged.values()) - CEILING_BYTES
        while excess > 0 and self.foreign:
            excess -= self.charged[self.foreign.pop(0)]
        while excess > 0:
            victim = self.landed.victims(self.now_ms)[0]
            excess -= self.size(victim)
            del self.landed.states[victim.id]

    def arm(self, fault: tuple[int, Fault] | None) -> None:
        self.disk.faults = {}
        if fault is not None:
            self.disk.faults = {len(self.disk.calls) + fault[0]: fault[1]}

    def parts(self, one: Plain) -> list[memoryview]:
        rows = bytes_of(one.stored(link_page), SMALL)
        return runs(rows, range(len(rows)))

    def full(self, is_full: bool) -> None:
        self.disk.space_told = Space(0, 1 << 40) if is_full else ROOMY

    def stick(self, sticks: bool) -> None:
        """Nothing can be removed any more, or it can again."""
        self.disk.always = {"remove": errno.EIO} if sticks else {}

    def agree(self) -> None:
        """Ledger, model and folders say the same."""
        self.shelf.check()
        compare(self.shelf.index, self.landed, self.now_ms, link_page)
        assert self.shelf.used_bytes == self.used()
        states = self.landed.states.values()
        assert self.shelf.pinned_bytes == sum(self.size(one) for one in states if one.pinned)
        live = sum(self.size(one) for one in states if one.kind is None)
        assert self.shelf.live_bytes == live
        quiet = sum(self.size(one) for one in states) + self.shelf.foreign_bytes
        assert self.shelf.used_bytes == quiet + self.shelf.unfinished_bytes
        there = [path for path in self.root.rglob("*") if path.is_file()]
        assert sum(whole_blocks(path.stat().st_size) for path in there) <= self.used()
        known = self.charged.keys() | {one.path for one in self.flights.values()}
        partial = {path.with_name(path.name + ".partial") for path in self.charged}
        assert set(there) <= known | partial
        for one in self.landed.states.values():
            assert self.path(one).exists() or self.path(one) in self.damaged
