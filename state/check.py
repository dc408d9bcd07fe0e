"""Every invariant across ledgers, index and sequences that host values can show.

A violation is a bug: the check raises AssertionError with the numbers, and the process ends.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np

from state.pages import NULL_PAGE, PageLedger
from state.reuse import ReuseIndex
from state.slots import SlotLedger
from state.spec import PAGE_TOKENS
from state.tiers.arena import Arena
from state.tiers.shelf import Shelf


def check_ledgers(
    pages: PageLedger,
    slots: SlotLedger,
    index: ReuseIndex,
    tables: Mapping[int, tuple[int, ...]],
    *,
    lanes: Mapping[int, int] | None = None,
    captures: Mapping[int, int] | None = None,
    moves: Iterable[tuple[int, ...]] = (),
    written: Mapping[int, int] | None = None,
    waiting: bool = False,
) -> None:
    """Raise AssertionError where the values contradict each other.

    Args:
        pages: holders of pages.
        slots: owners of slots.
        index: retained states.
        tables: pages of each live sequence, by sequence id.
        lanes: lane of each sequence that has one, by sequence id.
        captures: slots that are being written and not published, with their owner.
        moves: pages that transfers in flight hold.
        written: per sequence, tokens whose keys and values stand in its pages; the pages after
            them are still to be written. Without it nothing is said of written pages.
        waiting: whether a request waits for pages or slots.
    """
    listed = [*tables.values(), *moves, *(one.table for one in index)]
    check_pages(pages, listed)
    check_written(pages, tables, written or {})
    check_lanes(lanes or {})
    check_slots(slots, index, captures or {})
    check_index(index)
    if waiting:
        idle = num_reclaimable(pages, index)
        assert not idle, f"a request waits while retained states alone hold {idle} pages"


def check_pages(pages: PageLedger, listed: Iterable[tuple[int, ...]]) -> None:
    """Each page has as many holders as tables that list it."""
    wanted = np.zeros_like(pages.counts)
    for table in listed:
        assert NULL_PAGE not in table, f"a table of {len(table)} pages lists the null page"
        assert len(set(table)) == len(table), (
            f"a table lists {len(table) - len(set(table))} of its {len(table)} pages twice"
        )
        beyond = [page for page in table if not 0 < page < pages.num_pages]
        assert not beyond, f"page {beyond[:1]} is listed, the pool has {pages.num_pages}"
        wanted[np.asarray(table, np.intp)] += 1
    wanted[NULL_PAGE] = pages.counts[NULL_PAGE]
    for page in np.flatnonzero(wanted != pages.counts):
        raise AssertionError(
            f"page {page} has {pages.counts[page]} holders and is listed {wanted[page]} times"
        )


def check_written(
    pages: PageLedger, tables: Mapping[int, tuple[int, ...]], written: Mapping[int, int]
) -> None:
    """A page that is still to be written has one holder."""
    for sequence, tokens in written.items():
        table = tables[sequence]
        for page in table[tokens // PAGE_TOKENS :]:
            assert pages.counts[page] == 1, (
                f"sequence {sequence} has written {tokens} tokens and would write page {page}, "
                f"which has {pages.counts[page]} holders"
            )


def check_lanes(lanes: Mapping[int, int]) -> None:
    """No two sequences share a lane."""
    shared = [lane for lane, count in Counter(lanes.values()).items() if count > 1]
    assert not shared, (
        f"lane {shared[0]} belongs to sequences "
        f"{[sequence for sequence, lane in lanes.items() if lane == shared[0]]}"
    )


def check_slots(slots: SlotLedger, index: ReuseIndex, captures: Mapping[int, int]) -> None:
    """Each slot is owned by the one retained state or capture that lies in it, and by no other."""
    wanted = dict(captures)
    for one in index:
        assert one.slot not in wanted, (
            f"slot {one.slot} holds state {one.id} and belongs to {wanted[one.slot]}"
        )
        wanted[one.slot] = one.id
    owned = dict(slots.owned())
    assert owned == wanted, (
        f"slots are owned {sorted(owned.items() - wanted.items())}, "
        f"but lie with {sorted(wanted.items() - owned.items())} (slot, owner)"
    )


def check_index(index: ReuseIndex) -> None:
    """Each state is on the grid and findable where its tokens say, and nothing else is."""
    found: Counter[int] = Counter()
    for digest, ids in index.by_digest.items():
        found.update(ids)
        for id in ids:
            one = index.get(id)
            assert one is not None, f"state {id} is findable and not retained"
            assert one.digest == digest, f"state {id} is found under another digest than its own"
    assert found == Counter(one.id for one in index), (
        f"{len(index)} states are retained, {sum(found.values())} are findable by digest"
    )
    for salt, ids in index.in_order.items():
        states = [index.entries[id] for id in ids]
        assert all(one.chain.salt == salt for one in states), "a state lies under another salt"
        keys = [one.chain.raw for one in states]
        assert all(one <= other for one, other in pairwise(keys)), (
            f"{len(ids)} states are not in the order of their tokens"
        )
    ordered = Counter(id for ids in index.in_order.values() for id in ids)
    assert ordered == found, f"{ordered.total()} states in order, {found.total()} by digest"
    for one in index:
        assert one.length > 0, f"state {one.id} retains {one.length} tokens"
        assert one.length % PAGE_TOKENS == 0, f"state {one.id} ends at {one.length}, off the grid"
        assert one.position == one.length, (
            f"state {one.id} stands for {one.length} tokens, its key holds {one.position}"
        )
        assert len(one.table) * PAGE_TOKENS == one.length, (
            f"state {one.id} has {len(one.table)} pages for {one.length} tokens"
        )
        assert one.fingerprint == index.fingerprint, f"state {one.id} is stamped otherwise"
    pinned = {one.id for one in index if one.pinned}
    assert pinned == index.pinned, f"{len(pinned)} states are pinned, {len(index.pinned)} listed"
    check_conversations(index)


def check_conversations(index: ReuseIndex) -> None:
    """Each conversation keeps at most two checkpoints above the lowest rank."""
    for conversation, ids in index.members.items():
        states = [index.entries[id] for id in ids]
        assert all(one.conversation == conversation for one in states), (
            f"conversation {conversation} lists a state of another"
        )
        kept = [one.id for one in states if one.kind.is_checkpoint and not one.superseded]
        assert len(kept) <= 2, f"conversation {conversation} keeps {len(kept)} checkpoints: {kept}"
    listed = Counter(id for ids in index.members.values() for id in ids)
    assert listed == Counter(one.id for one in index), (
        f"{listed.total()} states in conversations, {len(index)} retained"
    )


def check_tier(
    tier: Arena | Shelf, *, reads: Mapping[int, int] | None = None, writes: Iterable[int] = ()
) -> None:
    """A tier below the device is sound, and holds what the moves in flight say and no more.

    Args:
        tier: its states and their places.
        reads: moves that read a state's bytes, by its id.
        writes: states whose bytes are on their way to the tier.
    """
    tier.check()
    held = {one.id: one.held for one in tier.index if one.held}
    reading = {id: moves for id, moves in (reads or {}).items() if moves}
    assert held == reading, f"moves read states {reading}, held are {held}"
    pending, writing = sorted(tier.pending), sorted(writes)
    assert pending == writing, f"moves write states {writing}, pending are {pending}"


def num_reclaimable(pages: PageLedger, index: ReuseIndex) -> int:
    """Pages that would be free if every retained state went."""
    retained = Counter(page for one in index for page in one.table)
    return sum(int(pages.counts[page]) == count for page, count in retained.items())


def stranded(pages: PageLedger, slots: SlotLedger, index: ReuseIndex) -> tuple[int, ...]:
    """Ids of retained states of which one half is gone: pages nobody holds, or a slot not theirs.

    There is none unless there is a bug; the count is served so that one would show.
    """
    return tuple(
        one.id
        for one in index
        if slots.owner(one.slot) != one.id
        or bool((pages.counts[np.asarray(one.table, np.intp)] == 0).any())
    )
