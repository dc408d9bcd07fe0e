"""What lies below the device, as one value of the world: the arena, the shelf, and moves under way.

A state below the device has one id, whichever tier it is in. Cells are given back when no round
under way touches them and no thread of files does: until then a state that nobody wants any more
is an orphan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ignisd.engine.moves import ClearFiles, Lower, Order, Raise
from state.reuse import ReuseIndex
from state.tiers.arena import Arena
from state.tiers.condition import RETRY_MS
from state.tiers.jobs import Cleared
from state.tiers.shelf import Shelf
from state.tiers.stored import Stored

NEVER_TOKENS = 1 << 30
"""The floor of a tier that takes longer to restore a token than the model takes to read it."""


def shown_floor(tokens: int) -> int | str:
    """A floor for a person to read."""
    return "never" if tokens >= NEVER_TOKENS else tokens


@dataclass(frozen=True, slots=True)
class TierLimits:
    """The bounds of moves between tiers.

    Args:
        image_bytes: what the move of an image costs; a page costs a cell.
        window_bytes: most bytes that a round moves; one image may exceed it.
        ram_floor_tokens, disk_floor_tokens: what a restore from each tier must add beyond the best
            match above it.
        low_cells: free cells of the arena below which states are written to files.
        most_writes: files that may be written at a time.
        wall_offset_ms: what the wall clock shows more than the engine's.
    """

    image_bytes: int
    window_bytes: int = 32 << 20
    ram_floor_tokens: int = 64
    disk_floor_tokens: int = 64
    low_cells: int = 0
    most_writes: int = 2
    wall_offset_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Ahead:
    """A large retained state on its way down while it is still on the device.

    Args:
        retained_id: on the device.
        stored_id: in the arena.
        hits: how often it had been claimed when it was chosen.
        moved_pages: of those that must be moved.
        image_sent: whether its image has gone down.
    """

    retained_id: int
    stored_id: int
    hits: int
    moved_pages: int = 0
    image_sent: bool = False


def _nothing() -> Mapping[int, int]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Tiers:
    """The lower tiers and what moves.

    Args:
        limits: bounds.
        arena: who holds which cell of kv_ram, and what is found there.
        shelf: the ledger of kv_disk; None where there is none.
        left_bytes: what the round being planned may still move.
        lowers, raises: planned for that round.
        orders: for the threads of files, not yet handed over.
        landings: by round, whose last byte goes down with it.
        touched: by state, the last round that reads or writes its cells.
        writing, reading: states whose files are being written or read.
        orphans: states to be given back as soon as nothing touches them.
        transient: read from their files into the arena for a restore, and no longer than that.
        claimed: by round, the state that a sequence has resumed from with it.
        ahead: the large state that goes down window by window; None while none does.
        ahead_asked: the index that was last asked for a state to go down ahead.
        arriving: those of which all has been sent and that have not landed.
        pins_seen: the values by which every pinned state of the device had its copy below, or
            could have none: it is asked again when one has changed.
        clear_at_ms: when files may be removed again.
        draining: everything is being written out.
    """

    limits: TierLimits
    arena: Arena
    shelf: Shelf | None = None
    left_bytes: int = 0
    lowers: tuple[Lower, ...] = ()
    raises: tuple[Raise, ...] = ()
    orders: tuple[Order, ...] = ()
    landings: tuple[tuple[int, int], ...] = ()
    touched: Mapping[int, int] = field(default_factory=_nothing)
    writing: frozenset[int] = frozenset()
    reading: frozenset[int] = frozenset()
    orphans: frozenset[int] = frozenset()
    transient: frozenset[int] = frozenset()
    claimed: tuple[tuple[int, int], ...] = ()
    ahead: Ahead | None = None
    ahead_asked: ReuseIndex | None = None
    arriving: tuple[Ahead, ...] = ()
    pins_seen: tuple[object, object, object] = (None, None, None)
    clear_at_ms: float = 0.0
    draining: bool = False

    def on_shelf(self, stored_id: int) -> Stored | None:
        """A state that a file holds, None where none does."""
        return None if self.shelf is None else self.shelf.index.get(stored_id)

    def affordable_pages(self) -> int:
        """Pages that the round may still move; one at least while it has moved nothing."""
        pages = max(self.left_bytes, 0) // self.arena.cell_bytes
        if not pages and self.left_bytes >= self.limits.window_bytes:
            return 1
        return pages

    def charged(self, num_pages: int, num_images: int) -> "Tiers":
        """With what a move costs taken from the round's window."""
        cost = num_pages * self.arena.cell_bytes + num_images * self.limits.image_bytes
        return replace(self, left_bytes=self.left_bytes - cost)

    def touching(self, stored_id: int, number: int) -> "Tiers":
        """A round of this number reads or writes the state's cells."""
        return replace(self, touched=MappingProxyType({**self.touched, stored_id: number}))

    def ordered(self, order: Order) -> "Tiers":
        """With one order more for the threads of files."""
        return replace(self, orders=(*self.orders, order))


def given_up(tiers: Tiers, stored_id: int) -> Tiers:
    """Nobody wants a state any more: cells and file go, now or when nothing touches them."""
    if _busy(tiers, stored_id):
        return replace(tiers, orphans=tiers.orphans | {stored_id})
    tiers = replace(_without_cells(tiers, stored_id), orphans=tiers.orphans - {stored_id})
    return without_file(tiers, stored_id)


def let_go(tiers: Tiers, stored_id: int) -> Tiers:
    """A restore does not need a state any more; what was read from a file for it goes again."""
    if stored_id in tiers.arena.index:
        tiers = replace(tiers, arena=tiers.arena.release(stored_id))
    return _settled(tiers, stored_id)


def emptied(tiers: Tiers) -> Tiers:
    """Every retained state goes, as soon as nothing touches it; live ones stay."""
    for stored_id in sorted(retained_ids(tiers)):
        tiers = given_up(tiers, stored_id)
    return tiers


def retained_ids(tiers: Tiers) -> set[int]:
    """The retained states in any lower tier or on the way there, those given up left out."""
    found = {one.id for one in tiers.arena.index if not one.is_live}
    found |= {one.id for one in tiers.arena.pending.values() if not one.is_live}
    if tiers.shelf is not None:
        found |= {one.id for one in tiers.shelf.index if not one.is_live}
    return found - tiers.orphans


def without_file(tiers: Tiers, stored_id: int) -> Tiers:
    """The state's file goes, if it has one."""
    if tiers.shelf is None or stored_id not in tiers.shelf.index:
        return tiers
    return replace(tiers, shelf=tiers.shelf.drop(stored_id))


def cleared_up(tiers: Tiers, now_ms: float) -> Tiers:
    """Order the removal of files that nobody wants; what cannot be removed is tried again later."""
    if tiers.shelf is None or not tiers.shelf.leaving or now_ms < tiers.clear_at_ms:
        return tiers
    shelf, paths = tiers.shelf.clear()
    return replace(tiers, shelf=shelf).ordered(ClearFiles(paths))


def files_cleared(tiers: Tiers, done: Cleared, now_ms: float) -> Tiers:
    """Files that nobody wanted are gone, or some of them could not be removed."""
    assert tiers.shelf is not None
    again_ms = now_ms + RETRY_MS if done.kept else tiers.clear_at_ms
    return replace(tiers, shelf=tiers.shelf.cleared(done, now_ms), clear_at_ms=again_ms)


def round_done(tiers: Tiers, number: int) -> Tiers:
    """No round up to this number touches anything any more; what waited for that goes."""
    for at, stored_id in tiers.claimed:
        if at <= number:
            tiers = let_go(tiers, stored_id)
    tiers = replace(tiers, claimed=tuple(one for one in tiers.claimed if one[0] > number))
    free = [stored_id for stored_id, last in tiers.touched.items() if last <= number]
    if not free:
        return tiers
    left = {stored_id: last for stored_id, last in tiers.touched.items() if last > number}
    tiers = replace(tiers, touched=MappingProxyType(left))
    for stored_id in free:
        tiers = _settled(tiers, stored_id)
    return tiers


def file_done(tiers: Tiers, stored_id: int) -> Tiers:
    """No thread of files touches a state any more; what waited for that goes."""
    tiers = replace(tiers, writing=tiers.writing - {stored_id}, reading=tiers.reading - {stored_id})
    return _settled(tiers, stored_id)


def _busy(tiers: Tiers, stored_id: int) -> bool:
    """Whether something reads or writes the state's bytes, or waits to resume from them."""
    held = tiers.arena.index.get(stored_id)
    waited_for = held is not None and held.held > 0
    moved = stored_id in tiers.touched or stored_id in tiers.writing
    return waited_for or moved or stored_id in tiers.reading


def _settled(tiers: Tiers, stored_id: int) -> Tiers:
    """Give back what an orphan or an unused transient holds, unless something still touches it."""
    if _busy(tiers, stored_id):
        return tiers
    if stored_id in tiers.orphans:
        return given_up(tiers, stored_id)
    held = tiers.arena.index.get(stored_id)
    if stored_id in tiers.transient and (held is None or not held.held):
        return _without_cells(tiers, stored_id)
    return tiers


def _without_cells(tiers: Tiers, stored_id: int) -> Tiers:
    arena = tiers.arena
    if stored_id in arena.index:
        arena = arena.drop(stored_id)
    elif stored_id in arena.pending:
        arena = arena.abandon(stored_id)
    landings = tuple(one for one in tiers.landings if one[1] != stored_id)
    transient = tiers.transient - {stored_id}
    return replace(tiers, arena=arena, landings=landings, transient=transient)
