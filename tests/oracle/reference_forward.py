"""The model written down once more, slowly: float64, one token after another, dense attention.

It shares no code with the programs that serve, so an agreement of the two says something. The
formulas are those of the Qwen3.5 family: a pre-norm block whose mixer is either softmax attention
with an output gate or the gated delta rule.
"""

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from ignisd.model.spec import LayerKind, ModelSpec

F64 = NDArray[np.float64]


def forward(spec: ModelSpec, params: dict[str, Any], tokens: NDArray[np.int32]) -> F64:
    """Logits [T, V] after each of `tokens` [T]; `params` are as the loader gives them."""
    weights = jax.tree.map(lambda leaf: np.asarray(leaf).astype(np.float64), params)
    hidden = weights["embed"][tokens]
    for kind, layer in zip(spec.layer_kinds, weights["layers"], strict=True):
        mixer = _delta_rule if kind is LayerKind.LINEAR else _attention
        hidden = hidden + mixer(spec, layer, _norm(hidden, 1 + layer["norm_in"], spec))
        inner = _norm(hidden, 1 + layer["norm_post"], spec)
        hidden = hidden + (_silu(inner @ layer["gate"].T) * (inner @ layer["up"].T)) @ (
            layer["down"].T
        )
    head = weights["embed"] if spec.tied else weights["head"]
    logits: F64 = _norm(hidden, 1 + weights["norm"], spec) @ head.T
    return logits


def _norm(x: F64, weight: F64, spec: ModelSpec) -> F64:
    scale: F64 = weight / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + spec.rms_norm_eps)
    return x * scale


def _sigmoid(x: F64) -> F64:
    grown: F64 = 1 + np.exp(-x)
    return 1 / grown


def _silu(x: F64) -> F64:
    return x * _sigmoid(x)


def _rotate(x: F64, spec: ModelSpec) -> F64:
    """Rotary of [T, heads, d] at positions 0..T-1, on the first `rotary_dims` of each head."""
    half = spec.rotary_dims // 2
    frequency = spec.rope_theta ** (-np.arange(half) / half)
    angle = np.arange(len(x))[:, None, None] * frequency
    low, high, rest = np.split(x, [half, 2 * half], axis=-1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)


def _attention(spec: ModelSpec, layer: dict[str, F64], x: F64) -> F64:
    num_tokens, width = len(x), spec.head_dim
    both = (x @ layer["q"].T).reshape(num_tokens, spec.num_heads, 2, width)
    gate = both[:, :, 1]
    query = _rotate(_norm(both[:, :, 0], 1 + layer["q_norm"], spec), spec)
    key = (x @ layer["k"].T).reshape(num_tokens, spec.num_kv_heads, width)
    key = _rotate(_norm(key, 1 + layer["k_norm"], spec), spec)
    value = (x @ layer["v"].T).reshape(num_tokens, spec.num_kv_heads, width)
    shared = spec.num_heads // spec.num_kv_heads
    out = np.empty((num_tokens, spec.num_heads, width))
    for head in range(spec.num_heads):
        scores = query[:, head] @ key[:, head // shared].T / np.sqrt(width)
        scores = np.where(np.tri(num_tokens, dtype=bool), scores, -np.inf)
        grown = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = grown / grown.sum(-1, keepdims=True) @ value[:, head // shared]
    return (out * _sigmoid(gate)).reshape(num_tokens, -1) @ layer["o"].T


def _delta_rule(spec: ModelSpec, layer: dict[str, F64], x: F64) -> F64:
    num_tokens = len(x)
    key_heads, value_heads = spec.linear_key_heads, spec.linear_value_heads
    key_width = key_heads * spec.linear_key_dim
    raw = np.concatenate([np.zeros((spec.conv_width - 1, spec.conv_channels)), x @ layer["qkv"].T])
    taps = [raw[j : j + num_tokens] * layer["conv"][:, j] for j in range(spec.conv_width)]
    mixed = _silu(np.sum(taps, axis=0))
    query, key, value = np.split(mixed, [key_width, 2 * key_width], axis=-1)
    query = _unit(query.reshape(num_tokens, key_heads, -1)) / np.sqrt(spec.linear_key_dim)
    key = _unit(key.reshape(num_tokens, key_heads, -1))
    value = value.reshape(num_tokens, value_heads, -1)
    beta = _sigmoid(x @ layer["b"].T)
    softplus = np.logaddexp(0, x @ layer["a"].T + layer["dt_bias"])
    decay = np.exp(-np.exp(layer["a_log"]) * softplus)
    gate = _silu(x @ layer["z"].T).reshape(num_tokens, value_heads, -1)

    # Consecutive value heads share a key head.
    query, key = (np.repeat(x, value_heads // key_heads, axis=1) for x in (query, key))
    memory = np.zeros((value_heads, spec.linear_key_dim, spec.linear_value_dim))
    out = np.empty((num_tokens, value_heads, spec.linear_value_dim))
    for token in range(num_tokens):
        kept = decay[token][:, None, None] * memory
        known = np.einsum("hk,hkv->hv", key[token], kept)
        error = beta[token][:, None] * (value[token] - known)
        memory = kept + key[token][:, :, None] * error[:, None, :]
        out[token] = np.einsum("hk,hkv->hv", query[token], memory)
    return (_norm(out, layer["norm"], spec) * gate).reshape(num_tokens, -1) @ layer["out"].T


def _unit(x: F64) -> F64:
    length: F64 = np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + 1e-6)
    return x / length
