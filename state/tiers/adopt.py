"""The shelf that a process begins with: the good files of an earlier one, within the ceiling."""

from dataclasses import replace

from state.tiers.condition import Writer
from state.tiers.format import Record, whole_blocks
from state.tiers.index import TierIndex
from state.tiers.scan import Scan
from state.tiers.shelf import Shelf
from state.tiers.stored import Stored


def adopt(
    shelf: Shelf, found: Scan, first_id: int, now_ms: float, now_wall_ms: float, ttl_ms: float
) -> Shelf:
    """An empty shelf with what a scan has found; what is beyond the ceiling is to be removed.

    Args:
        shelf: empty.
        found: by a scan of its root with its layout.
        first_id: the id of the first state; the next ones follow.
        now_ms: the time, on the clock of `Stored.used_ms`.
        now_wall_ms: the same moment on the wall clock.
        ttl_ms: idle time that ends a protection.
    """
    assert not shelf.charged, f"{len(shelf.charged)} files are on the shelf already"
    index = TierIndex.empty()
    charged = {one.path: one.num_bytes for one in found.foreign}
    charged |= {one.path: one.num_bytes for one in found.left}
    for number, record in enumerate(found.records):
        idle_ms = max(0.0, now_wall_ms - record.used_wall_ms)
        stored = _stored(record, first_id + number, now_ms - idle_ms)
        index = index.insert(stored)
        charged[shelf.path_of(stored)] = whole_blocks(record.file_bytes)
    writer = Writer()
    if found.trouble is not None:
        why = "at the start a directory could not be made, or what is no use could not be removed"
        writer = writer.after(found.trouble, why, now_ms)
    full = replace(
        shelf,
        index=index,
        charged=charged,
        used_bytes=sum(charged.values()),
        foreign=found.foreign,
        leaving=frozenset(one.path for one in found.left),
        writer=writer,
    )
    return _within_ceiling(full, now_ms, ttl_ms)


def _stored(record: Record, id: int, used_ms: float) -> Stored:
    assert record.kind is not None, f"{record.name} is live and nobody's"
    return Stored(
        id=id,
        chain=record.chain,
        length=record.length,
        num_common=record.num_common,
        kind=record.kind,
        cls=record.cls,
        owner=None,
        hits=record.hits,
        used_ms=used_ms,
    )


def _within_ceiling(shelf: Shelf, now_ms: float, ttl_ms: float) -> Shelf:
    """Give up foreign files, then states in their order, until the rest fits."""
    excess = shelf.used_bytes - shelf.ceiling_bytes
    excess -= sum(shelf.charged[path] for path in shelf.leaving)
    going = []
    for foreign in shelf.foreign:
        if excess <= 0:
            break
        going.append(foreign.path)
        excess -= foreign.num_bytes
    shelf = replace(shelf, foreign=shelf.foreign[len(going) :], leaving=shelf.leaving.union(going))
    for victim in list(shelf.index.victims(now_ms, ttl_ms)):
        if excess <= 0:
            break
        excess -= shelf.file_bytes(victim)
        shelf = shelf.drop(victim.id)
    return shelf
