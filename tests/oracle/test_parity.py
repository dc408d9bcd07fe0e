"""The serving programs against the goldens that transformers made."""

import jax.numpy as jnp
import numpy as np
import pytest

from ignisd.model.spec import read_spec
from ignisd.model.weights import load
from state.spec import KvFormat
from tests.oracle.cases import GOLDENS, LENGTHS, NAMES, NUM_STEPS, Golden, read_golden
from tests.oracle.paged_run import PagedRun

# All relative to the largest logit of the row.
F32_TOLERANCE = 1e-4
CLEAR_GAP = 0.05

# Each case compiles its own programs; of the bf16 ones the fast suite takes two.
FAST_BF16 = ("tied_even", "nested_sharded")


def _run(name: str, kv_format: KvFormat) -> list[tuple[Golden, np.ndarray]]:
    """Each golden of case `name` with what the programs give for it."""
    spec = read_spec(GOLDENS / name)
    dtype = jnp.float32 if kv_format is KvFormat.F32 else jnp.bfloat16
    run = PagedRun(spec, load(GOLDENS / name, spec, dtype), kv_format)
    goldens = [read_golden(name, length) for length in LENGTHS]
    return [(golden, run.logits(golden.tokens, golden.length)) for golden in goldens]


@pytest.mark.parametrize("name", NAMES)
def test_f32_logits_are_those_of_transformers(name: str) -> None:
    for golden, found in _run(name, KvFormat.F32):
        wanted = golden.logits
        assert found.shape == wanted.shape == (NUM_STEPS + 1, wanted.shape[1])
        error = np.abs(found - wanted).max(-1) / np.abs(wanted).max(-1)
        step = int(error.argmax())
        assert error.max() <= F32_TOLERANCE, (
            f"prompt of {golden.length}, step {step}: {error[step]:.1e} of the largest logit"
        )


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST_BF16 else pytest.mark.slow) for name in NAMES],
)
def test_bf16_agrees_on_every_clear_top_token(name: str) -> None:
    num_clear = num_rows = 0
    for golden, found in _run(name, KvFormat.BF16):
        wanted = golden.logits
        second, first = np.sort(wanted, axis=-1)[:, -2:].T
        clear = first - second > CLEAR_GAP * np.abs(wanted).max(-1)
        wrong = clear & (found.argmax(-1) != wanted.argmax(-1))
        assert not wrong.any(), f"prompt of {golden.length}: steps {np.flatnonzero(wrong)}"
        num_clear += int(clear.sum())
        num_rows += len(wanted)
    assert num_clear > num_rows / 3, f"only {num_clear} of {num_rows} rows say anything"
