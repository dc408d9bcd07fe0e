"""Medians, ratios and tables."""

from ignisd.bench.report import reuse_rows, reuse_table, speed_rows, speed_table
from ignisd.bench.reuse import ReuseRun
from ignisd.bench.speed import PREFILL, Load, SpeedRun
from ignisd.bench.target import Answer


def answer(ttft_s: float, cached: int | None = 0, prompt: int = 100) -> Answer:
    return Answer(0.0, ttft_s, 1.0, prompt, cached, 16, "said")


def run(
    group: str,
    ttft_s: float,
    *,
    target: str = "one",
    cold_s: float | None = None,
    cached: int | None = 0,
    same: bool | None = True,
) -> ReuseRun:
    cold = None if cold_s is None else answer(cold_s)
    return ReuseRun(target, 0, group, group, answer(ttft_s, cached), cold, same)


def test_a_row_holds_medians_and_bounds():
    runs = [run("turn 2", each, cold_s=each * 10, cached=64) for each in (0.1, 0.5, 0.2)]
    (row,) = reuse_rows(runs)
    assert (row.ttft_s, row.lowest_s, row.highest_s) == (0.2, 0.1, 0.5)
    assert (row.cold_s, row.cached_tokens) == (2.0, 64)
    assert row.ratio == 10.0


def test_without_cold_answers_the_first_prompt_is_the_measure():
    runs = [run("cold", 0.4), run("repeat 1", 0.1), run("others", 0.4)]
    rows = {row.case: row for row in reuse_rows(runs)}
    assert rows["repeat 1"].ratio == 4.0
    assert rows["others"].ratio is None


def test_one_that_differed_in_one_repetition_is_marked():
    runs = [run("cold", 0.1), run("cold", 0.1, same=False)]
    assert "cold ≠" in reuse_table(reuse_rows(runs))
    assert "≠" not in reuse_table(reuse_rows(runs[:1]))


def test_what_a_target_does_not_say_is_a_dash():
    line = reuse_table(reuse_rows([run("cold", 0.25, cached=None)])).splitlines()[2]
    assert line.split() == ["cold", "100", "-", "-", "250.0", "250.0", "250.0", "250.0", "1.00"]


def test_several_targets_stand_side_by_side_against_the_first():
    runs = [run("cold", 0.2), run("cold", 0.3, target="two")]
    last = reuse_table(reuse_rows(runs)).splitlines()[-1]
    assert last.split() == ["cold", "200.0", "300.0", "(1.50x)"]


def test_columns_are_aligned():
    runs = [run("cold", 0.2, cold_s=0.2), run("mid-message fork", 123.0, cold_s=0.2)]
    _, head, first, second = reuse_table(reuse_rows(runs)).splitlines()
    assert len(head) == len(first) == len(second)
    assert head.index("ratio") + len("ratio") == len(head)


def test_rates_are_medians_and_one_without_any_is_a_dash():
    loads = Load(PREFILL, 512, 1), Load(PREFILL, 512, 4)
    runs = [SpeedRun("one", 0, loads[0], tokens, 1.0, 512) for tokens in (10, 30, 20)]
    runs += [SpeedRun("two", 0, loads[0], 40, 1.0, 512)]
    runs += [SpeedRun("one", 0, loads[1], 0, 1.0, 512), SpeedRun("two", 0, loads[1], 5, 1.0, 512)]
    lines = speed_table(speed_rows(runs)).splitlines()[2:]
    assert lines[0].split("  ")[-1].strip() == "40.0 (40.0 to 40.0) (2.00x)"
    assert "20.0 (10.0 to 30.0)" in lines[0]
    assert "x)" not in lines[1]
    assert lines[2].startswith("-: answers of one ended before their full length")
    assert "-:" not in speed_table(speed_rows(runs[:4]))
