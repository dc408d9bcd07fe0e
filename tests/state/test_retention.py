"""Where prompts are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.chain import chain_of
from state.groups import resume_points
from state.retained import KIND_ORDER, Kind
from state.retention import Cut, Marks, RetentionPolicy
from state.reuse import Match, ReuseIndex
from state.spec import PAGE_TOKENS
from tests.state.builders import FINGERPRINT, retained

POLICY = RetentionPolicy()


def _cuts(marks: Marks, num_tokens: int, resumed_at: int = 0) -> list[tuple[int, str]]:
    return [(cut.position, cut.kind.value) for cut in POLICY.cuts(marks, num_tokens, resumed_at)]


def test_each_mark_is_cut_at_its_page_floor() -> None:
    marks = Marks(system_end=200, turn_open=500, opener=1000)
    assert _cuts(marks, 1001) == [(192, "prefix"), (448, "turn_open"), (960, "checkpoint")]


def test_only_what_lies_beyond_the_resumed_point_is_cut() -> None:
    marks = Marks(system_end=200, turn_open=500, opener=1000)
    assert _cuts(marks, 1001, 192) == [(448, "turn_open"), (960, "checkpoint")]
    assert _cuts(marks, 1001, 448) == [(960, "checkpoint")]
    assert _cuts(marks, 1001, 960) == []


def test_one_place_has_the_highest_of_its_kinds() -> None:
    assert _cuts(Marks(turn_open=300, opener=300), 300) == [(256, "turn_open")]
    assert _cuts(Marks(system_end=260, turn_open=300, opener=300), 301) == [(256, "prefix")]
    cuts = POLICY.cuts(Marks(opener=300), 301, 0, junctions=(270, 100))
    assert cuts == (Cut(64, Kind.JUNCTION), Cut(256, Kind.JUNCTION))


def test_a_mark_that_ends_the_prompt_on_the_grid_is_cut_a_page_earlier() -> None:
    assert _cuts(Marks(turn_open=256, opener=256), 256) == [(192, "turn_open")]
    assert _cuts(Marks(opener=64), 64) == []
    assert _cuts(Marks(opener=65), 65) == [(64, "checkpoint")]


@pytest.mark.parametrize(
    ("num_tokens", "position"), [(0, None), (7, None), (71, None), (72, 64), (135, 64), (136, 128)]
)
def test_a_plain_prompt_is_cut_before_its_seam(num_tokens: int, position: int | None) -> None:
    expected = [] if position is None else [(position, "checkpoint")]
    assert _cuts(Marks(), num_tokens) == expected


def test_marks_before_the_first_page_yield_nothing() -> None:
    assert _cuts(Marks(system_end=63, turn_open=63, opener=63), 80) == []


def test_an_interval_adds_every_multiple() -> None:
    policy = RetentionPolicy(interval_tokens=128)
    cuts = policy.cuts(Marks(system_end=300, opener=600), 601, 128)
    assert cuts == (
        Cut(256, Kind.PREFIX),
        Cut(384, Kind.PERIODIC),
        Cut(512, Kind.PERIODIC),
        Cut(576, Kind.CHECKPOINT),
    )
    assert policy.cuts(Marks(opener=512), 512, 0)[-1] == Cut(448, Kind.CHECKPOINT)


@pytest.mark.parametrize("interval", [-64, 1, 100])
def test_an_interval_off_the_grid_is_refused_by_its_flag(interval: int) -> None:
    with pytest.raises(ValueError, match=rf"{interval} .* 64 .*--reuse-retention-interval"):
        RetentionPolicy(interval_tokens=interval)


def test_a_mark_outside_the_prompt_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="mark at 301 of 300 tokens"):
        POLICY.cuts(Marks(opener=301), 300, 0)


def test_an_interrupted_prefill_is_kept_when_it_saved_enough() -> None:
    assert POLICY.interrupted(1023, 0) is None
    assert POLICY.interrupted(1024, 0) == Cut(1024, Kind.INTERRUPTED)
    assert POLICY.interrupted(1100, 64) == Cut(1088, Kind.INTERRUPTED)
    assert POLICY.interrupted(1100, 128) is None
    assert RetentionPolicy(min_interrupted_tokens=0).interrupted(63, 0) is None


OFFSETS = st.none() | st.integers(0, 700)


@given(
    system_end=OFFSETS,
    turn_open=OFFSETS,
    opener=OFFSETS,
    junctions=st.lists(st.integers(0, 700), max_size=2),
    num_tokens=st.integers(1, 700),
    resumed_pages=st.integers(0, 10),
    interval=st.sampled_from([0, 64, 192]),
)
def test_a_follower_can_resume_at_every_cut(
    system_end: int | None,
    turn_open: int | None,
    opener: int | None,
    junctions: list[int],
    num_tokens: int,
    resumed_pages: int,
    interval: int,
) -> None:
    def inside(offset: int | None) -> int | None:
        return None if offset is None else min(offset, num_tokens)

    marks = Marks(inside(system_end), inside(turn_open), inside(opener))
    resumed_at = min(resumed_pages * PAGE_TOKENS, (num_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS)
    policy = RetentionPolicy(interval)
    cuts = policy.cuts(
        marks, num_tokens, resumed_at, tuple(min(at, num_tokens) for at in junctions)
    )
    positions = [cut.position for cut in cuts]
    assert positions == sorted(set(positions))
    assert all(resumed_at < position < num_tokens for position in positions)
    chain = chain_of(list(range(num_tokens)))
    for cut in cuts:
        index = ReuseIndex.empty(FINGERPRINT).insert(retained(1, chain, cut.position))
        found = index.longest_match(chain, num_tokens)
        assert isinstance(found, Match)
        assert found.length == cut.position
    if interval:
        promised = range(interval, num_tokens, interval)
        assert {at for at in promised if at > resumed_at} <= set(positions)


def test_resume_points_leave_a_token_to_read() -> None:
    assert list(resume_points(64)) == []
    assert list(resume_points(65)) == [64]
    assert list(resume_points(128)) == [64]
    assert list(resume_points(129)) == [64, 128]
    assert set(KIND_ORDER) == set(Kind)
