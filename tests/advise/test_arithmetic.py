"""The arithmetic of retention, with the numbers of its worked examples."""

from fractions import Fraction

from ignisd.advise.arithmetic import (
    _model_of_the_example,
    explanation,
    items_per_boundary,
    loss_of,
    num_periodic,
    resumed_at,
)
from state.groups import Group, GroupName
from state.retention import Marks, RetentionPolicy
from tests.engine.harness import Harness, words


def _periodic(num_tokens: int, interval: int) -> list[int]:
    cuts = RetentionPolicy(interval).cuts(Marks(opener=num_tokens), num_tokens, 0)
    return [cut.position for cut in cuts[:-1]]


def test_a_prompt_of_80000_tokens_has_22_segments_and_five_periodic_points() -> None:
    assert 80_000 // 3_584 == len(_periodic(80_000, 3_584)) == 22
    points = _periodic(80_000, 14_336)
    assert points == [14_336, 28_672, 43_008, 57_344, 71_680]
    assert set(points) <= set(_periodic(80_000, 3_584))


def test_six_intervals_of_32768_and_one_end_more_where_it_does_not_coincide() -> None:
    assert num_periodic(196_608, 32_768) == 6
    assert num_periodic(196_608, 0) == 0
    policy = RetentionPolicy(32_768)
    assert len(policy.promised(196_608 + 1)) == 6
    cuts = policy.cuts(Marks(opener=200_000), 200_000, 0)
    assert len(cuts) == 7
    at_the_end = policy.cuts(Marks(opener=196_608 + 1), 196_608 + 1, 0)
    assert len(at_the_end) == 6


def test_the_mean_loss_is_half_an_interval_and_the_worst_just_under_one() -> None:
    for interval in (64, 3_584, 32_768):
        gaps = [parting % interval for parting in range(10 * interval)]
        loss = loss_of(interval)
        assert loss.mean == Fraction(sum(gaps), len(gaps))
        assert loss.worst == max(gaps) == interval - 1
        assert abs(loss.mean - Fraction(interval, 2)) <= Fraction(1, 2)


def test_what_one_boundary_takes_by_group() -> None:
    window = Group(GroupName.WINDOW, 1, window_tokens=2048)
    shifted = Group(GroupName.WINDOW, 1, window_tokens=2048, is_shifted=True)
    assert (window.items_per_point, shifted.items_per_point) == (32, 33)
    assert items_per_boundary(_model_of_the_example()) == 1 + 4 + 33 == 38


def test_a_match_at_50176_with_a_state_at_32768_resumes_at_32768() -> None:
    assert resumed_at(50_176, [32_768]) == 32_768
    assert resumed_at(50_176, [32_768, 50_176]) == 50_176
    assert resumed_at(32_767, [32_768]) == 0
    # The engine does so too, at a smaller scale: the pages match and the image is not there.
    harness = Harness(interval_tokens=512, num_host_slots=16)
    prompt = words(1000, 1)
    harness.ask(prompt)
    finish = harness.ask([*prompt[:784], *words(60, 2)])
    assert (finish.reuse.matched_tokens, finish.cached_tokens) == (768, 512)


def test_the_explanation_tells_every_number() -> None:
    text = "\n".join(explanation())
    for number in ("22", "3,584", "5 every 14,336", "crosses 6", "32 pages", "33 where", "= 38"):
        assert number in text, number
    assert "resumes at 32,768" in text
    assert "16,383.5" in text
    assert "1 + 4 + 33 = 38" in text
