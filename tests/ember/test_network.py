"""The training forward pass: chunk form against the recurrence, packing, the exported files."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ignisd.ember import WEIGHTS_DIR, checkpoint, network
from ignisd.ember.network import Batch, Shape

TOY = Shape(
    vocab_size=300, hidden_size=32, num_layers=2, full_interval=2, num_heads=2, num_kv_heads=1,
    head_dim=16, rotary_dims=4, intermediate_size=48, linear_key_heads=1, linear_value_heads=2,
    linear_head_dim=16,
)  # fmt: skip


def rows(tokens, positions=None, conversations=None):
    tokens = jnp.asarray(tokens, jnp.int32)
    if positions is None:
        positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    if conversations is None:
        conversations = np.zeros(tokens.shape, np.int32)
    return Batch(tokens, jnp.asarray(positions), jnp.asarray(conversations), jnp.ones(tokens.shape))


def recurrence(query, key, value, log_decay, beta):
    """The delta rule as it is defined, one token after the other, in f64."""
    heads, length, width = value.shape
    ratio = heads // key.shape[0]
    out = np.zeros((heads, length, width))
    for head in range(heads):
        memory = np.zeros((width, width))
        for t in range(length):
            k, q = key[head // ratio, t], query[head // ratio, t]
            memory *= np.exp(log_decay[head, t])
            memory += np.outer(k, beta[head, t] * (value[head, t] - memory.T @ k))
            out[head, t] = memory.T @ q
    return out


def test_chunk_form_equals_the_recurrence():
    rng = np.random.default_rng(1)
    query, key = (rng.normal(size=(1, 2, 192, 16)) / 4 for _ in range(2))
    value = rng.normal(size=(1, 4, 192, 16))
    log_decay = -rng.uniform(0, 0.3, size=(1, 4, 192))
    log_decay[:, :, 100] = -80.0
    beta = rng.uniform(0, 1, size=(1, 4, 192))
    parts = (query, key, value, log_decay, beta)
    out = jax.jit(network.delta_rule)(*(jnp.asarray(part, jnp.float32) for part in parts))
    np.testing.assert_allclose(out[0], recurrence(*(part[0] for part in parts)), atol=3e-5)


def test_inverse_of_a_unit_lower_matrix_and_its_derivative():
    drawn = np.tril(np.random.default_rng(2).normal(size=(3, 16, 16)), -1) / 3
    exact = np.linalg.inv(np.eye(16) + drawn)
    lower = jnp.asarray(drawn, jnp.float32)
    np.testing.assert_allclose(jax.jit(network.unit_lower_inverse)(lower), exact, atol=1e-5)
    weights = jnp.asarray(np.random.default_rng(3).normal(size=(3, 16, 16)), jnp.float32)

    def by_blocks(x):
        return jnp.sum(weights * network.unit_lower_inverse(jnp.tril(x, -1)))

    def by_solver(x):
        return jnp.sum(weights * jnp.linalg.inv(jnp.eye(16) + jnp.tril(x, -1)))

    np.testing.assert_allclose(
        jax.jit(jax.grad(by_blocks))(lower),
        jax.jit(jax.grad(by_solver))(lower),
        atol=1e-4,
        rtol=1e-4,
    )


def test_packed_conversations_do_not_see_each_other():
    params = network.initial_params(TOY, 5)
    rng = np.random.default_rng(5)
    first, second = rng.integers(0, 300, 70), rng.integers(0, 300, 58)
    forward = jax.jit(lambda batch: network.forward(params, batch, TOY, jnp.float32))
    packed = rows([[*first, *second]], [[*range(70), *range(58)]], [[*[0] * 70, *[1] * 58]])
    together = forward(packed)[0]
    alone = [forward(rows([np.pad(part, (0, 128 - len(part)))]))[0] for part in (first, second)]
    np.testing.assert_allclose(together[:70], alone[0][:70], atol=2e-5)
    np.testing.assert_allclose(together[70:], alone[1][:58], atol=2e-5)


def test_a_later_token_changes_nothing_before_it():
    params = network.initial_params(TOY, 6)
    tokens = np.array([[random.Random(6).randrange(300) for _ in range(128)]])
    forward = jax.jit(lambda batch: network.forward(params, batch, TOY, jnp.float32))
    before = forward(rows(tokens))
    tokens[0, 90] += 1
    after = forward(rows(tokens))
    assert np.array_equal(before[0, :90], after[0, :90])
    assert not np.array_equal(before[0, 90:], after[0, 90:])


def test_shipped_checkpoint_is_small_and_fits_its_config():
    params, shape = checkpoint.read(WEIGHTS_DIR)
    assert shape == Shape()
    assert sum(value.size for value in params.values()) <= 12_000_000
    assert sum(path.stat().st_size for path in WEIGHTS_DIR.iterdir()) <= 25_000_000
    assert sum(not shape.is_full(layer) for layer in range(shape.num_layers)) >= 3 * sum(
        shape.is_full(layer) for layer in range(shape.num_layers)
    )


def test_a_tensor_that_does_not_fit_is_named(tmp_path):
    for name in ("tokenizer.json",):
        (tmp_path / name).write_bytes((WEIGHTS_DIR / name).read_bytes())
    params = network.initial_params(TOY, 7)
    params["model.norm.weight"] = jnp.zeros(33)
    checkpoint.export(params, TOY, tmp_path)
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        checkpoint.read(tmp_path)


def test_export_and_read_keep_bf16_values(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((WEIGHTS_DIR / "tokenizer.json").read_bytes())
    params = network.initial_params(TOY, 8)
    checkpoint.export(params, TOY, tmp_path)
    again, shape = checkpoint.read(tmp_path)
    assert shape == TOY
    for name, value in params.items():
        assert np.array_equal(again[name], value.astype(jnp.bfloat16).astype(jnp.float32))
