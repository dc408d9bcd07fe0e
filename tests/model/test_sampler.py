"""Sampling against definitions in numpy, and its independence of lanes."""

from dataclasses import fields

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignisd.model import sampler
from ignisd.model.sampler import SamplerBank

VOCAB = 200
LANES = 3

sample_row = jax.jit(sampler.sample_row)
sample_lanes = jax.jit(sampler.sample_lanes)
set_lane = jax.jit(sampler.set_lane)


def row(**values: float) -> SamplerBank:
    """A lane's parameters: greedy with nothing seen, but for what is given."""
    neutral = dict.fromkeys(("temperature", "min_p", "presence", "frequency"), 0.0)
    neutral |= {"top_p": 1.0, "repetition": 1.0} | values
    arrays = {name: np.float32(value) for name, value in neutral.items()}
    return SamplerBank(
        **arrays
        | {
            "top_k": np.int32(values.get("top_k", 0)),
            "seed": np.uint32(values.get("seed", 0)),
            "generated": np.zeros(VOCAB, np.int32),
            "seen": np.zeros(VOCAB, np.uint8),
            "last_token": np.int32(0),
        }
    )


def logits_of(seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(VOCAB) * 3).astype(np.float32)


def allowed(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> set[int]:
    """Tokens that may be drawn: min-p, then top-k, then top-p of what is left."""
    scaled = (logits / np.float32(temperature)).astype(np.float64)
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-scaled)
    kept = [token for token in order if weights[token] >= min_p]
    kept = kept[:top_k] if top_k else kept
    mass = np.cumsum(weights[kept]) / weights[kept].sum()
    return {int(token) for token in kept[: int(np.searchsorted(mass, top_p)) + 1]}


@settings(max_examples=40)
@given(
    st.integers(0, 1000),
    st.floats(0.2, 2.0),
    st.integers(0, 30),
    st.sampled_from([1.0, 0.95, 0.7, 0.3]),
    st.sampled_from([0.0, 0.02, 0.2]),
)
def test_only_allowed_tokens_are_drawn(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = logits_of(seed)
    may = allowed(logits, temperature, top_k, top_p, min_p)
    lane = row(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    drawn = {int(sample_row(lane, logits, np.int32(at))) for at in range(60)}
    assert drawn <= may


def test_draws_follow_the_distribution() -> None:
    logits = np.full(VOCAB, -50.0, np.float32)
    logits[[3, 7, 11]] = np.log([0.5, 0.3, 0.2])
    lane = row(temperature=1.0, seed=5)
    draw = jax.jit(jax.vmap(lambda at: sampler.sample_row(lane, jnp.array(logits), at)))
    drawn = np.asarray(draw(jnp.arange(6000)))
    shares = [float(np.mean(drawn == token)) for token in (3, 7, 11)]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


def test_greedy_takes_the_largest_and_ignores_the_rest() -> None:
    logits = logits_of(1)
    lane = row(top_k=5, top_p=0.1, min_p=0.5, seed=3)
    assert int(sample_row(lane, logits, np.int32(9))) == int(logits.argmax())


@pytest.mark.parametrize("temperature", [1e-4, 1e-9, 1e-12, 1e-30, 1e-42])
def test_a_tiny_temperature_is_as_good_as_none(temperature: float) -> None:
    logits = logits_of(4) * 10
    drawn = [int(sample_row(row(temperature=temperature, seed=n), logits, n)) for n in range(9)]
    assert set(drawn) == {int(logits.argmax())}


def test_penalties_are_those_of_the_definition() -> None:
    logits = logits_of(2)
    lane = row(presence=0.7, frequency=0.4, repetition=1.3)
    lane.generated[[5, 6]] = [3, 1]
    lane.seen[[6, 8]] = 1
    want = logits.astype(np.float64).copy()
    for token in (5, 6, 8):
        want[token] = want[token] / 1.3 if want[token] > 0 else want[token] * 1.3
    want[5] -= 0.4 * 3 + 0.7
    want[6] -= 0.4 * 1 + 0.7
    got = np.asarray(sampler._penalised(lane, jnp.array(logits)))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    untouched = [token for token in range(VOCAB) if token not in (5, 6, 8)]
    np.testing.assert_array_equal(got[untouched], logits[untouched])


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    """Not on the lane, nor on what other lanes do."""
    logits = np.stack([logits_of(n) for n in range(LANES)])
    logits[2] = logits[0]
    bank = sampler.empty_bank(LANES, VOCAB)
    for lane in range(LANES):
        chosen = row(temperature=1.0, seed=9 if lane != 1 else 10)
        bank = set_lane(bank, np.int32(lane), chosen)
    at = np.array([40, 41, 40], np.int32)
    for live in ([True, True, True], [True, False, True]):
        _, tokens = sample_lanes(bank, logits, at, np.array(live))
        assert int(tokens[0]) == int(tokens[2])
    elsewhere = {int(sample_row(row(temperature=1.0, seed=9), logits[0], at_)) for at_ in range(40)}
    assert len(elsewhere) > 5


def test_only_live_lanes_are_counted() -> None:
    logits = np.stack([logits_of(n) for n in range(LANES)])
    bank = sampler.empty_bank(LANES, VOCAB)
    live = np.array([True, False, True])
    bank, tokens = sample_lanes(bank, logits, np.zeros(LANES, np.int32), live)
    assert np.asarray(bank.generated).sum(axis=1).tolist() == [1, 0, 1]
    assert np.asarray(bank.last_token).tolist() == [
        int(logits[0].argmax()),
        0,
        int(logits[2].argmax()),
    ]
    assert int(bank.generated[0, tokens[0]]) == 1


def test_setting_a_lane_leaves_the_others() -> None:
    bank = sampler.empty_bank(LANES, VOCAB)
    chosen = row(temperature=0.5, top_k=3, seed=8)
    changed = set_lane(bank, np.int32(1), chosen)
    for field in fields(SamplerBank):
        before, after = (np.asarray(getattr(each, field.name)) for each in (bank, changed))
        np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
        np.testing.assert_array_equal(after[1], getattr(chosen, field.name))
