"""The state that shares most with a prompt, and which interval would have kept one further on."""

import random

from state.chain import chain_of
from state.nearest import helpful_interval, nearest
from state.retention import RetentionPolicy
from state.reuse import ReuseIndex
from tests.state.builders import FINGERPRINT, retained


def test_the_nearest_state_shares_as_much_as_any() -> None:
    shared_some = 0
    for seed in range(40):
        rng = random.Random(seed)
        index = ReuseIndex.empty(FINGERPRINT)
        prompts = [[rng.randrange(3) for _ in range(rng.randint(64, 400))]]
        for id in range(1, 8):
            known = rng.choice(prompts)
            kept = known[: rng.randint(0, len(known))]
            prompts.append(kept + [rng.randrange(3) for _ in range(rng.randint(64, 200))])
            index = index.insert(retained(id, chain_of(prompts[-1])))
        chain = chain_of(rng.choice(prompts)[: rng.randint(1, 300)] + [9] * 70)
        most = max(one.chain.num_shared(chain) for one in index)
        found = nearest(index, chain)
        assert (found[1] if found else 0) == most
        shared_some += most > 0
    assert shared_some > 10
    assert nearest(ReuseIndex.empty(FINGERPRINT), chain_of([1] * 70)) is None


def test_the_helpful_interval_is_the_coarsest_power_that_keeps_more() -> None:
    for matched in range(64, 3000, 64):
        for length in range(0, matched, 128):
            found = helpful_interval(length, matched)
            assert found is not None
            interval, point = found
            assert length < point <= matched
            assert point in RetentionPolicy(interval).promised(matched + 1)
            coarser = RetentionPolicy(2 * interval).promised(matched + 1)
            assert all(other <= length for other in coarser)
        assert helpful_interval(matched, matched) is None
