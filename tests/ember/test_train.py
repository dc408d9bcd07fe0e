"""The trainer on a toy size: it learns, and a run that was stopped ends with the same bits."""

import dataclasses

import jax
import numpy as np
import pytest

from ignisd.ember import train
from ignisd.ember.curriculum import Level
from ignisd.ember.train import Limits, Plan, Stage
from tests.ember.test_network import TOY

PLAN = Plan(
    shape=dataclasses.replace(TOY, vocab_size=4096),
    seed=3,
    dtype_name="float32",
    stages=(
        Stage(0.5, 2, 128, Level(max_facts=1, filler_turns=0, max_questions=2)),
        Stage(1.0, 2, 128, Level(max_facts=2, filler_turns=1, max_questions=3)),
    ),
)
STEPS = 6


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    run = train.train(PLAN, train.begin(PLAN), Limits(steps=STEPS), directory)
    return run, directory


def test_a_stopped_run_goes_on_to_the_same_bits(whole_run, tmp_path):
    limits = Limits(steps=STEPS)
    run = train.load_run(PLAN, tmp_path)
    assert run.step == 0
    stopped = dataclasses.replace(limits, stop_at_step=3)
    train.train(PLAN, run, stopped, tmp_path)
    again = train.load_run(PLAN, tmp_path)
    assert (again.step, again.tokens) == (3, 3 * 256)
    finished = train.train(PLAN, again, limits, tmp_path)
    leaves = [jax.tree.leaves((run.params, run.optimiser)) for run in (whole_run[0], finished)]
    assert all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))
    assert (finished.step, finished.tokens) == (whole_run[0].step, whole_run[0].tokens)


def test_another_seed_gives_other_weights(whole_run):
    other = train.begin(dataclasses.replace(PLAN, seed=4))
    name = "model.embed_tokens.weight"
    assert not np.array_equal(other.params[name], whole_run[0].params[name])


def test_the_loss_falls(whole_run, capsys, tmp_path):
    train.train(PLAN, train.begin(PLAN), Limits(steps=60, report_steps=10), tmp_path)
    losses = [
        float(line.split("answer loss ")[1].split()[0])
        for line in capsys.readouterr().out.splitlines()
    ]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.5


def test_a_checkpoint_of_another_shape_is_refused(whole_run):
    other = dataclasses.replace(PLAN, shape=dataclasses.replace(PLAN.shape, hidden_size=64))
    with pytest.raises(ValueError, match="choose another --out"):
        train.load_run(other, whole_run[1])


def test_the_rate_warms_up_holds_and_falls():
    rates = [PLAN.rate_at(progress / 1000) for progress in range(1001)]
    assert rates[0] < 0.2
    assert max(rates) == 1.0
    assert rates[-1] == pytest.approx(0.02)
    peak = rates.index(1.0)
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_stages_follow_each_other():
    assert PLAN.stage_at(0.0) is PLAN.stages[0]
    assert PLAN.stage_at(0.5) is PLAN.stages[1]
    assert PLAN.stage_at(1.0) is PLAN.stages[1]
