"""The order in which retained states give way."""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from state.retained import Rank, Retained, rank, rank_key, serves_a_person


def in_order_of_victims(
    states: Iterable[Retained],
    in_order: Iterable[Retained],
    now_ms: float,
    ttl_ms: float,
    most_protected: int | None = None,
) -> Iterator[tuple[Rank, Retained]]:
    """The states with their ranks, lowest first; periodic ones by the gap that their loss leaves.

    Args:
        states: all of them.
        in_order: the same, those of one salt together and in the order of their tokens, so that
            a state comes before everything that extends it. Read only where it is needed.
        now_ms: the time.
        ttl_ms: as for `rank`.
        most_protected: how many may rank above a checkpoint; of more than these the ones that
            would give way first rank as checkpoints. Pinned ones count and keep their rank. None is
            no bound.
    """
    held: dict[Rank, list[Retained]] = {}
    for one in states:
        held.setdefault(rank(one, now_ms, ttl_ms), []).append(one)

    def key(one: Retained) -> tuple[bool, float, int]:
        return rank_key(one, now_ms, ttl_ms)

    if most_protected is not None:
        _bound(held, most_protected, key)
    for level in sorted(held):
        if level is Rank.PERIODIC:
            periodic = {one.id for one in held[level]}
            gone = {one.id for below in held if below < level for one in held[below]}
            ordered = [one for one in in_order if one.id not in gone]
            people = {one.id for one in held[level] if serves_a_person(one, now_ms, ttl_ms)}
            for one in _by_gap(ordered, periodic, people):
                yield level, one
        else:
            for one in _ascending(held[level], key):
                yield level, one


def _ascending(
    states: list[Retained], key: Callable[[Retained], tuple[bool, float, int]]
) -> Iterator[Retained]:
    """The states in the order of their keys, of which no two are equal; the first costs least."""
    heap = [(key(one), one) for one in states]
    heapq.heapify(heap)
    while heap:
        yield heapq.heappop(heap)[1]


def _bound(
    held: dict[Rank, list[Retained]],
    most_protected: int,
    key: Callable[[Retained], tuple[bool, float, int]],
) -> None:
    """Move what exceeds the bound from the ranks above a checkpoint to the checkpoints."""
    levels = [level for level in sorted(held) if level > Rank.CHECKPOINT]
    excess = sum(len(held[level]) for level in levels) - most_protected
    for level in levels:
        if excess <= 0 or level is Rank.PINNED:
            return
        ordered = sorted(held[level], key=key)
        held.setdefault(Rank.CHECKPOINT, []).extend(ordered[:excess])
        held[level] = ordered[excess:]
        excess -= len(ordered)


def _by_gap(
    ordered: Sequence[Retained], periodic: set[int], people: set[int]
) -> Iterator[Retained]:
    """The periodic states, agents' first, then the one between the closest neighbours first.

    The gap of a state is what lies between the state before it on its path and the nearest one
    that extends it; the last of a path has no such neighbour and goes last. Each state that goes
    widens the gaps of its neighbours.
    """
    by_id = {one.id: one for one in ordered}
    above = _nearest_prefixes(ordered)
    below: dict[int | None, set[int]] = {}
    for id, prefix in above.items():
        below.setdefault(prefix, set()).add(id)

    def key(id: int) -> tuple[bool, float, float, int]:
        one, prefix = by_id[id], above[id]
        start = by_id[prefix].length if prefix is not None else 0
        end = min((by_id[next_id].length for next_id in below.get(id, ())), default=math.inf)
        return id in people, end - start, one.used_ms, id

    current = {id: key(id) for id in periodic}
    heap = [(entry, id) for id, entry in current.items()]
    heapq.heapify(heap)
    while heap:
        entry, id = heapq.heappop(heap)
        if current.get(id) != entry:
            continue
        yield by_id[id]
        del current[id]
        prefix, extensions = above.pop(id), below.pop(id, set())
        below[prefix].remove(id)
        below[prefix] |= extensions
        above.update(dict.fromkeys(extensions, prefix))
        for near in (prefix, *extensions):
            if near is not None and near in current:
                current[near] = key(near)
                heapq.heappush(heap, (current[near], near))


def _nearest_prefixes(ordered: Sequence[Retained]) -> dict[int, int | None]:
    """For each state the longest other one that is a prefix of it, None where there is none."""
    nearest: dict[int, int | None] = {}
    path: list[Retained] = []
    for one in ordered:
        while path and not path[-1].chain.is_prefix_of(one.chain):
            path.pop()
        nearest[one.id] = path[-1].id if path else None
        path.append(one)
    return nearest
