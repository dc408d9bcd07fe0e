"""Ordered sets and maps of digests, against a sorted list and a dictionary."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.tiers import ordered
from state.tiers.digests import DigestMap
from state.tiers.ordered import OrderedSet

ITEMS = st.tuples(st.integers(0, 9), st.integers(0, 9))


@given(st.lists(ITEMS, max_size=80), st.sampled_from([2, 3, 8]), ITEMS)
def test_an_ordered_set_is_a_sorted_list(
    items: list[tuple[int, int]], most: int, probe: tuple[int, int]
) -> None:
    """An item that comes again goes."""
    plain: set[tuple[int, int]] = set()
    held: OrderedSet[tuple[int, int]] = OrderedSet()
    with patch.object(ordered, "MOST_IN_RUN", most):
        for item in items:
            before, was = held, sorted(plain)
            held = held.remove(item) if item in plain else held.add(item)
            plain ^= {item}
            assert list(before) == was
            assert all(0 < len(run) <= most for run in held.runs)
    wanted = sorted(plain)
    assert list(held) == wanted
    assert len(held) == len(wanted)
    assert (probe in held) == (probe in plain)
    assert list(held.starting(lambda item: item >= probe)) == [x for x in wanted if x >= probe]
    assert held.around(probe) == (
        max((item for item in wanted if item < probe), default=None),
        min((item for item in wanted if item >= probe), default=None),
    )


def test_runs_are_joined_when_they_are_small() -> None:
    held: OrderedSet[tuple[int]] = OrderedSet()
    for number in range(2_000):
        held = held.add((number,))
    for number in range(2_000):
        if number % 50:
            held = held.remove((number,))
    assert list(held) == [(number,) for number in range(0, 2_000, 50)]
    assert len(held.runs) <= 3


def test_wrong_changes_of_an_ordered_set_are_refused() -> None:
    held: OrderedSet[tuple[int]] = OrderedSet(((((1,), (3,))),))
    for wrong in (lambda: held.add((3,)), lambda: held.remove((2,)), lambda: held.remove((4,))):
        with pytest.raises(AssertionError, match="ordered set"):
            wrong()


@given(st.lists(st.tuples(st.sampled_from([b"aa", b"ab", b"b"]), st.integers(0, 3))))
def test_a_map_of_digests_is_a_dictionary(items: list[tuple[bytes, int]]) -> None:
    """A pair that comes again goes."""
    plain: dict[bytes, list[int]] = {}
    held = DigestMap()
    for digest, id in items:
        ids = plain.setdefault(digest, [])
        if id in ids:
            held = held.remove(digest, id)
            ids.remove(id)
        else:
            held = held.add(digest, id)
            ids.append(id)
    for digest in (b"aa", b"ab", b"b", b"c"):
        assert held.get(digest) == tuple(plain.get(digest, ()))
    assert sum(map(len, held.shards)) == sum(map(bool, plain.values()))
