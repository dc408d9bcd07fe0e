"""Groups: what each needs, how intervals are read, and where nothing is kept."""

import pytest

from state.groups import (
    Group,
    GroupName,
    Intervals,
    read_intervals,
    resume_points,
    where_to_resume,
)
from state.retention import RetentionPolicy
from tests.state.fake_hybrid import DRAFTER, FULL, LINEAR, MODEL, WINDOW


def test_nothing_is_kept_where_nobody_could_resume() -> None:
    policy = RetentionPolicy(
        by_group=((WINDOW.name, 256), (LINEAR.name, 128), (DRAFTER.name, 64)),
        inert=frozenset({GroupName.DRAFTER}),
    )
    assert dict(policy.promised(1000)) == {256: None, 512: None, 768: None}
    none = RetentionPolicy(by_group=((WINDOW.name, 0), (LINEAR.name, 128)))
    assert none.promised(1000) == {}
    alone = RetentionPolicy(
        by_group=((LINEAR.name, 128), (DRAFTER.name, 256)), inert=frozenset({GroupName.DRAFTER})
    )
    target = frozenset({GroupName.FULL, GroupName.LINEAR})
    assert dict(alone.promised(400)) == {128: target, 256: None, 384: target}


def test_where_to_resume_is_the_deepest_point_that_all_have() -> None:
    both, one = frozenset({GroupName.FULL, GroupName.LINEAR}), frozenset({GroupName.FULL})
    kept = {64: both, 128: one, 192: both, 256: both}
    assert where_to_resume(257, both, kept) == (256, 192, 64)
    assert where_to_resume(256, both, kept) == (192, 64)
    assert where_to_resume(256, one, kept) == (192, 128, 64)
    assert where_to_resume(64, both, kept) == ()
    assert list(resume_points(129)) == [64, 128]


@pytest.mark.parametrize(
    ("window_tokens", "is_shifted", "pages"),
    [(2048, False, 32), (2048, True, 33), (65, False, 1), (66, False, 2), (1, False, 0)],
)
def test_a_window_needs_the_pages_of_its_last_tokens(
    window_tokens: int, is_shifted: bool, pages: int
) -> None:
    group = Group(GroupName.WINDOW, 10, window_tokens=window_tokens, is_shifted=is_shifted)
    assert group.items_per_point == pages
    assert group.bytes_per_point == 10 * pages
    assert len(group.needs(64_000)) == pages
    assert len(group.needs(64)) == min(pages, 1)


@pytest.mark.parametrize(
    ("text", "intervals"),
    [
        ("0", Intervals()),
        ("4096", Intervals(4096)),
        ("dense", Intervals("dense")),
        ("linear=4096, window=8192,drafter=0", Intervals(0, (
            (GroupName.LINEAR, 4096), (GroupName.WINDOW, 8192), (GroupName.DRAFTER, 0),
        ))),
        ("4096,drafter=dense", Intervals(4096, ((GroupName.DRAFTER, "dense"),))),
    ],
)  # fmt: skip
def test_intervals_are_read_and_written(text: str, intervals: Intervals) -> None:
    assert read_intervals(text) == intervals
    assert read_intervals(str(intervals)) == intervals


@pytest.mark.parametrize(
    "text", ["", "-64", "63", "linear=-64", "conv=64", "full=64", "window=1,2", "x", "64,64"]
)
def test_other_intervals_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 the messages are those of int and of the enum
        read_intervals(text)


def test_intervals_are_resolved_for_the_groups_of_a_model() -> None:
    own = read_intervals("dense,drafter=0").resolved(MODEL, 1024)
    assert own == (
        (GroupName.WINDOW, 1024), (GroupName.LINEAR, 1024), (GroupName.DRAFTER, 0),
    )  # fmt: skip
    assert read_intervals("full=dense").resolved((FULL, LINEAR), 256) == ((GroupName.LINEAR, 0),)
    with pytest.raises(ValueError, match="drafter is named, and the model has no such group; it "):
        read_intervals("drafter=64").resolved((FULL, LINEAR), 256)
    with pytest.raises(ValueError, match="neither windows nor linear attention"):
        read_intervals("64").resolved((FULL,), 256)
    assert read_intervals("0").resolved((FULL,), 256) == ()
