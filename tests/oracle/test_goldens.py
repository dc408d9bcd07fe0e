"""The slow forward agrees with the goldens: the weights are mapped right, the formulas are known.

It needs none of the programs that serve, so a failure here is one of loading or of the goldens.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ignisd.model.spec import ModelSpec, read_spec
from ignisd.model.weight_spec import Params
from ignisd.model.weights import load
from tests.oracle.cases import GOLDENS, LENGTHS, NAMES, kept_rows, read_golden
from tests.oracle.reference_forward import forward

# Relative to the largest logit: the float32 error of the goldens themselves (5e-6 was seen).
TOLERANCE = 2e-5


def _checkpoint(name: str) -> tuple[ModelSpec, Params]:
    spec = read_spec(GOLDENS / name)
    return spec, load(GOLDENS / name, spec, jnp.float32)


@pytest.mark.parametrize("name", NAMES)
def test_the_slow_forward_agrees_with_the_goldens(name: str) -> None:
    spec, params = _checkpoint(name)
    for length in LENGTHS:
        golden = read_golden(name, length)
        logits = forward(spec, params, golden.tokens)
        found = np.concatenate([logits[list(kept_rows(length))], logits[length:]])
        wanted = np.concatenate([golden.prefill, golden.decode])
        error = np.abs(found - wanted).max() / np.abs(wanted).max()
        assert error <= TOLERANCE, f"length {length}: {error:.1e}"


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_shows_in_the_goldens(name: str) -> None:
    """A weight that the goldens do not depend on could be left out unnoticed."""
    spec, params = _checkpoint(name)
    golden = read_golden(name, 1)
    wanted = golden.decode[:11]
    leaves, tree = jax.tree.flatten(params)
    for index in range(len(leaves)):
        changed = [*leaves[:index], leaves[index][..., ::-1] + 0.1, *leaves[index + 1 :]]
        logits = forward(spec, jax.tree.unflatten(tree, changed), golden.tokens[:12])[1:]
        error = np.abs(logits - wanted).max() / np.abs(wanted).max()
        assert error > 100 * TOLERANCE, f"leaf {index} of shape {leaves[index].shape}: {error:.1e}"


def test_the_cases_cover_the_head_ratios_and_both_heads() -> None:
    specs = [read_spec(GOLDENS / name) for name in NAMES]
    assert {spec.linear_value_heads // spec.linear_key_heads for spec in specs} == {1, 2, 3}
    assert {spec.num_heads // spec.num_kv_heads for spec in specs} >= {1, 2, 4}
    assert {spec.tied for spec in specs} == {True, False}
    assert len({spec.rotary_dims for spec in specs}) > 1
    assert any(spec.linear_key_dim != spec.linear_value_dim for spec in specs)
