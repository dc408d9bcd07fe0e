"""Who gives way, first to last."""

import pytest

from state.retained import KIND_ORDER, Kind, Rank, Retained, rank
from state.reuse import ReuseIndex
from state.spec import Class
from tests.state.builders import FINGERPRINT, chain_of_letters, retained

TTL_MS = 1000.0


def _order(states: list[Retained], now_ms: float = 10.0) -> list[int]:
    index = ReuseIndex.empty(FINGERPRINT)
    for one in states:
        index = index.insert(one)
    return [one.id for _, one in index.victims(now_ms, TTL_MS)]


def _one(id: int, kind: Kind, *, hits: int = 1, **more: object) -> Retained:
    return retained(id, chain_of_letters([100 + id]), kind=kind, hits=hits, **more)  # type: ignore[arg-type]


def test_kinds_give_way_in_order() -> None:
    states = [
        _one(1, Kind.PREFIX),
        _one(2, Kind.JUNCTION),
        _one(3, Kind.CHECKPOINT, now_ms=2.0),
        _one(4, Kind.TURN_OPEN, now_ms=1.0),
        _one(5, Kind.PERIODIC),
        _one(6, Kind.INTERRUPTED),
    ]
    assert _order(states) == [6, 5, 4, 3, 2, 1]
    assert list(Rank) == sorted(Rank)
    assert set(KIND_ORDER) == set(Kind)


def test_agents_give_way_before_people_and_then_the_least_recently_used() -> None:
    states = [
        _one(1, Kind.CHECKPOINT, now_ms=1.0),
        _one(2, Kind.CHECKPOINT, now_ms=3.0, cls=Class.AGENT),
        _one(3, Kind.CHECKPOINT, now_ms=2.0, cls=Class.AGENT),
        _one(4, Kind.CHECKPOINT, now_ms=0.5),
    ]
    assert _order(states) == [3, 2, 4, 1]


@pytest.mark.parametrize("kind", [Kind.PREFIX, Kind.JUNCTION])
def test_a_prefix_that_never_hit_or_idles_is_worth_a_checkpoint(kind: Kind) -> None:
    full = Rank.PREFIX if kind is Kind.PREFIX else Rank.JUNCTION
    assert rank(_one(1, kind, hits=0), 0.0, TTL_MS) is Rank.CHECKPOINT
    assert rank(_one(1, kind), 0.0, TTL_MS) is full
    assert rank(_one(1, kind), TTL_MS, TTL_MS) is full
    assert rank(_one(1, kind), TTL_MS + 1, TTL_MS) is Rank.CHECKPOINT
    states = [_one(1, kind, hits=0, now_ms=1.0), _one(2, Kind.CHECKPOINT, now_ms=2.0)]
    assert _order(states) == [1, 2]
    states = [_one(1, kind, hits=1, now_ms=1.0), _one(2, Kind.CHECKPOINT, now_ms=2.0)]
    assert _order(states) == [2, 1]
    assert _order(states, now_ms=TTL_MS + 2) == [1, 2]


def test_a_superseded_state_is_of_the_lowest_rank_whatever_its_kind() -> None:
    for kind in Kind:
        assert rank(_one(1, kind, superseded=True), 0.0, TTL_MS) is Rank.LOWEST


def _periodic(pages: int, *, kind: Kind = Kind.PERIODIC, cls: Class = Class.AGENT) -> Retained:
    return retained(pages, chain_of_letters([1] * pages), kind=kind, hits=1, cls=cls)


def test_of_periodic_states_the_one_that_leaves_the_smallest_gap_goes_first() -> None:
    states = [_periodic(pages) for pages in (2, 3, 6, 10, 11)]
    # Gaps by pages: 2 has 0..3, 3 has 2..6, 6 has 3..10, 10 has 6..11, 11 ends the path.
    # Once 2 is gone 3 has 0..6; then 10 has 5 and goes; then 3 has 6, 6 has 8.
    assert _order(states) == [2, 10, 3, 6, 11]


def test_states_of_other_kinds_bound_the_gaps_of_periodic_ones() -> None:
    states = [
        _periodic(2),
        _periodic(5),
        _periodic(6, kind=Kind.CHECKPOINT),
        _periodic(1, kind=Kind.PREFIX),
    ]
    # 2 has 1..5 and 5 has 2..6, both 4 pages; the older goes, and 5 is left with 1..6.
    assert _order(states) == [2, 5, 6, 1]
    # An interrupted state goes before any of them and bounds nothing.
    states = [_periodic(2), _periodic(6), _periodic(3, kind=Kind.INTERRUPTED), _periodic(7)]
    assert _order(states) == [3, 6, 2, 7]


def test_a_state_that_goes_widens_the_gap_of_the_one_before_it() -> None:
    path = [_periodic(3), _periodic(5), _periodic(7, kind=Kind.CHECKPOINT)]
    other = retained(20, chain_of_letters([2] * 2), kind=Kind.PERIODIC, cls=Class.AGENT)
    end = retained(21, chain_of_letters([2] * 6), kind=Kind.CHECKPOINT)
    # 5 leaves 3..7; without it 3 leaves 0..7, more than the other's 0..6.
    assert _order([*path, other, end])[:3] == [5, 20, 3]


def test_a_branch_bounds_the_gap_by_its_nearest_extension() -> None:
    stem = retained(1, chain_of_letters([1] * 4), kind=Kind.PERIODIC)
    near = retained(2, chain_of_letters([1] * 4 + [2]), kind=Kind.CHECKPOINT)
    far = retained(3, chain_of_letters([1] * 4 + [3] * 9), kind=Kind.CHECKPOINT)
    lone = retained(4, chain_of_letters([4] * 3), kind=Kind.PERIODIC)
    beyond = retained(5, chain_of_letters([4] * 6), kind=Kind.CHECKPOINT)
    # The stem leaves 5 pages open, the lone one 6.
    assert _order([stem, near, far, lone, beyond])[:2] == [1, 4]


def test_the_walk_goes_on_while_its_states_are_removed() -> None:
    index = ReuseIndex.empty(FINGERPRINT)
    for pages in range(1, 9):
        index = index.insert(_periodic(pages))
    seen = []
    for _, one in index.victims(0.0, TTL_MS):
        index = index.remove(one.id)
        seen.append(one.id)
    assert sorted(seen) == list(range(1, 9))
    assert len(index) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 65}, "off the grid"),
        ({"length": 0}, "retains 0 tokens"),
        ({"length": 256}, "prefix of 256 of 192"),
        ({"table": (1, 2)}, "2 pages for 192 tokens"),
        ({"table": (1, 0, 2)}, "null page"),
        ({"slot": -1}, "slot -1"),
    ],
)
def test_a_state_off_the_grid_or_without_its_halves_cannot_be_made(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        retained(1, chain_of_letters([1, 2, 3]), **change)  # type: ignore[arg-type]


def test_a_state_keeps_only_the_tokens_that_it_stands_for() -> None:
    one = retained(1, chain_of_letters([1, 2, 3]), 128)
    assert one.position == one.length == one.chain.num_tokens == 128
    assert one.digest == chain_of_letters([1, 2]).digests[-1]
