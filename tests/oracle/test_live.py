"""The serving programs beside a running transformers; needs the `oracle` extra, run with -m oracle.

The goldens hold four shapes for good; here the shapes, weights and lengths are drawn anew.
"""

import random
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from ignisd.model.spec import read_spec
from ignisd.model.weights import load, random_params
from state.spec import KvFormat
from tests.model.checkpoints import save_checkpoint
from tests.model.make_random_checkpoint import SIZES
from tests.oracle.cases import GOLDENS, LENGTHS, NAMES, kept_rows, read_golden
from tests.oracle.paged_run import PagedRun
from tests.oracle.reference_forward import forward
from tests.oracle.test_goldens import TOLERANCE
from tests.oracle.test_parity import F32_TOLERANCE

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore::FutureWarning")]


def _oracle_logits(directory: Path, tokens: np.ndarray) -> np.ndarray:
    """What transformers gives after each token, in one pass and in float32."""
    # Imported here, so that a run that leaves the oracle out can still collect this file.
    import torch

    from tests.oracle.make_goldens import load_oracle

    with torch.no_grad():
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        logits: np.ndarray = load_oracle(directory)(input_ids=ids).logits[0].numpy()
    return logits


def _assert_close(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error <= tolerance, f"{error:.1e} of the largest logit"


@pytest.mark.parametrize("name", NAMES)
def test_the_goldens_are_what_transformers_computes(name: str) -> None:
    for length in LENGTHS:
        golden = read_golden(name, length)
        logits = _oracle_logits(GOLDENS / name, golden.tokens)
        _assert_close(logits[list(kept_rows(length))], golden.prefill, TOLERANCE)
        _assert_close(logits[length:], golden.decode, TOLERANCE)


def _drawn_tokens(seed: int, vocab_size: int, count: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(vocab_size, size=count, dtype=np.int32)


def _drawn_shape(drawn: random.Random) -> dict[str, Any]:
    kv_heads, key_heads = drawn.choice([1, 2]), drawn.choice([1, 2, 3])
    return {
        "vocab_size": drawn.randrange(40, 200),
        "hidden_size": drawn.choice([32, 56, 64]),
        "intermediate_size": drawn.choice([40, 96]),
        "tie_word_embeddings": drawn.random() < 0.5,
        "layer_types": drawn.sample(["linear_attention", "full_attention", "linear_attention"], 3),
        "num_hidden_layers": 3,
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * drawn.choice([1, 2, 3, 4]),
        "head_dim": drawn.choice([16, 32, 64]),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * drawn.choice([1, 2, 3]),
        "linear_key_head_dim": drawn.choice([16, 32]),
        "linear_value_head_dim": drawn.choice([16, 32]),
    }


@pytest.mark.parametrize("seed", range(4))
def test_a_drawn_checkpoint_gives_the_same_logits(seed: int, tmp_path: Path) -> None:
    import torch

    from tests.oracle.make_goldens import Case, save_checkpoint

    drawn = random.Random(seed)
    case = Case(
        f"drawn {seed}",
        seed=100 + seed,
        dtype=torch.float32,
        shape=_drawn_shape(drawn),
        partial_rotary=drawn.choice([0.25, 0.5, 1.0]),
        multimodal=drawn.random() < 0.3,
    )
    save_checkpoint(case, tmp_path)
    spec = read_spec(tmp_path)
    run = PagedRun(spec, load(tmp_path, spec, jnp.float32), KvFormat.F32)
    for length in drawn.sample(range(1, 300), 3):
        tokens = _drawn_tokens(seed, spec.vocab_size, length + 20)
        wanted = _oracle_logits(tmp_path, tokens)
        _assert_close(run.logits(tokens, length), wanted[length - 1 :], F32_TOLERANCE)


def test_transformers_reads_the_checkpoints_that_the_tests_write(tmp_path: Path) -> None:
    spec = SIZES["tiny"]
    params = random_params(spec, 5, jnp.bfloat16)
    save_checkpoint(tmp_path, spec, params)
    tokens = _drawn_tokens(5, spec.vocab_size, 100)
    _assert_close(forward(spec, params, tokens), _oracle_logits(tmp_path, tokens), F32_TOLERANCE)
