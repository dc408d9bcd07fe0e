"""The differentiable forward pass of a Qwen3.5-style text model, for training whole rows.

Serving has its own programs; this one keeps no cache. It shares with them the checkpoint and the
formulas: weights are a dict by tensor name, `[out, in]` as stored.

Legend: B rows, T tokens a row, V vocabulary, M model width, H heads, K key heads of the delta rule,
d head width, N chunks, C chunk length.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ignisd.ember.products import (
    matmul,
    matmul_turned_left,
    matmul_turned_right,
    product,
)

Params = dict[str, jax.Array]

CHUNK_TOKENS = 64
QUERY_BLOCK_TOKENS = 256
_FORGET_ALL = -80.0
"""Log decay at the first token of a conversation: e^-80 times the old state is nothing in f32."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model; the defaults are those of ember."""

    vocab_size: int = 4096
    hidden_size: int = 256
    num_layers: int = 4
    full_interval: int = 4
    num_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 64
    rotary_dims: int = 16
    rope_theta: float = 100_000.0
    rms_norm_eps: float = 1e-6
    intermediate_size: int = 768
    linear_key_heads: int = 2
    linear_value_heads: int = 4
    linear_head_dim: int = 64
    conv_width: int = 4

    def is_full(self, layer: int) -> bool:
        """Whether a layer is full attention; the others hold the delta rule."""
        return (layer + 1) % self.full_interval == 0

    @property
    def conv_channels(self) -> int:
        """Channels of queries, keys and values of a delta rule layer."""
        return (2 * self.linear_key_heads + self.linear_value_heads) * self.linear_head_dim


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed rows.

    Args:
        tokens: [B, T] int32.
        positions: [B, T] int32, counted from the start of each conversation.
        conversations: [B, T] int32, which conversation of the row a token belongs to.
        weights: [B, T] float32, the weight of predicting token t from those before it.
    """

    tokens: jax.Array
    positions: jax.Array
    conversations: jax.Array
    weights: jax.Array


jax.tree_util.register_dataclass(
    Batch, data_fields=["tokens", "positions", "conversations", "weights"], meta_fields=[]
)


def weight_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor by its checkpoint name."""
    width, head = shape.hidden_size, shape.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab_size, width),
        "model.norm.weight": (width,),
    }
    for layer in range(shape.num_layers):
        at = f"model.layers.{layer}."
        shapes[at + "input_layernorm.weight"] = (width,)
        shapes[at + "post_attention_layernorm.weight"] = (width,)
        shapes[at + "mlp.gate_proj.weight"] = (shape.intermediate_size, width)
        shapes[at + "mlp.up_proj.weight"] = (shape.intermediate_size, width)
        shapes[at + "mlp.down_proj.weight"] = (width, shape.intermediate_size)
        if shape.is_full(layer):
            at += "self_attn."
            shapes[at + "q_proj.weight"] = (2 * shape.num_heads * head, width)
            shapes[at + "k_proj.weight"] = (shape.num_kv_heads * head, width)
            shapes[at + "v_proj.weight"] = (shape.num_kv_heads * head, width)
            shapes[at + "o_proj.weight"] = (width, shape.num_heads * head)
            shapes[at + "q_norm.weight"] = (head,)
            shapes[at + "k_norm.weight"] = (head,)
        else:
            at += "linear_attn."
            values = shape.linear_value_heads
            shapes[at + "in_proj_qkv.weight"] = (shape.conv_channels, width)
            shapes[at + "in_proj_z.weight"] = (values * shape.linear_head_dim, width)
            shapes[at + "in_proj_b.weight"] = (values, width)
            shapes[at + "in_proj_a.weight"] = (values, width)
            shapes[at + "conv1d.weight"] = (shape.conv_channels, 1, shape.conv_width)
            shapes[at + "norm.weight"] = (shape.linear_head_dim,)
            shapes[at + "out_proj.weight"] = (width, values * shape.linear_head_dim)
            shapes[at + "A_log"] = (values,)
            shapes[at + "dt_bias"] = (values,)
    return shapes


def initial_params(shape: Shape, seed: int) -> Params:
    """Random f32 weights: slow decays, small outputs, norms at one."""
    keys = jax.random.split(jax.random.key(seed), len(weight_shapes(shape)))
    return {
        name: _initial_tensor(name, size, key, shape)
        for key, (name, size) in zip(keys, weight_shapes(shape).items(), strict=True)
    }


def _initial_tensor(name: str, size: tuple[int, ...], key: jax.Array, shape: Shape) -> jax.Array:
    if name.endswith("linear_attn.norm.weight"):
        return jnp.ones(size, jnp.float32)
    if name.endswith("A_log"):
        return jnp.log(jax.random.uniform(key, size, minval=1.0, maxval=16.0))
    if name.endswith("dt_bias"):
        low, high = math.log(1e-3), math.log(1e-1)
        step = jnp.exp(jax.random.uniform(key, size, minval=low, maxval=high))
        return step + jnp.log(-jnp.expm1(-step))
    if name.endswith("conv1d.weight"):
        return jax.random.uniform(key, size, minval=-0.5, maxval=0.5)
    if len(size) == 1:
        return jnp.zeros(size, jnp.float32)
    scale = 0.02 if name == "model.embed_tokens.weight" else 0.7 / math.sqrt(size[1])
    if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
        scale /= math.sqrt(2 * shape.num_layers)
    return scale * jax.random.normal(key, size, jnp.float32)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm over the last axis; the checkpoint stores the weight minus one."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * (1.0 + weight)


def rotate(x: jax.Array, positions: jax.Array, shape: Shape) -> jax.Array:
    """Rotary embedding of the first `rotary_dims` numbers of each head; x is [B, T, H, d]."""
    half = shape.rotary_dims // 2
    frequencies = shape.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second, rest = jnp.split(x, (half, 2 * half), -1)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin, rest), -1)


def full_attention(
    params: Params, at: str, x: jax.Array, batch: Batch, shape: Shape, dtype: jnp.dtype
) -> jax.Array:
    """Gated causal attention inside each conversation of a row; x is [B, T, M]."""
    rows, length, _ = x.shape
    heads, groups, head = shape.num_heads, shape.num_kv_heads, shape.head_dim
    query, gate = jnp.split(
        product(x, params[at + "q_proj.weight"], dtype).reshape(rows, length, heads, 2 * head),
        2,
        -1,
    )
    key = product(x, params[at + "k_proj.weight"], dtype).reshape(rows, length, groups, head)
    value = product(x, params[at + "v_proj.weight"], dtype).reshape(rows, length, groups, head)
    query = rms_norm(query, params[at + "q_norm.weight"], shape.rms_norm_eps)
    key = rms_norm(key, params[at + "k_norm.weight"], shape.rms_norm_eps)
    query = rotate(query, batch.positions, shape) * head**-0.5
    key = rotate(key, batch.positions, shape)
    mixed = _mixed_by_blocks(query, key, value, batch.conversations, dtype)
    mixed = mixed * jax.nn.sigmoid(gate)
    return product(mixed.reshape(rows, length, -1), params[at + "o_proj.weight"], dtype)


def _mixed_by_blocks(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    conversations: jax.Array,
    dtype: jnp.dtype,
) -> jax.Array:
    """Softmax attention of [B, T, H, d] scaled queries over [B, T, G, d], in [B, T, H, d].

    A block of queries looks at the keys up to its own end only: half of the scores of a row are
    never computed, and no array has the square of its length.
    """
    rows, length, heads, head = query.shape
    groups = key.shape[2]
    share = heads // groups
    query = query.reshape(rows, length, groups, share, head).transpose(0, 2, 1, 3, 4)
    key, value = key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)
    blocks = []
    for first in range(0, length, QUERY_BLOCK_TOKENS):
        end = min(first + QUERY_BLOCK_TOKENS, length)
        size = end - first
        asked = query[:, :, first:end].reshape(rows, groups, size * share, head)
        scores = matmul_turned_right(asked, key[:, :, :end], dtype)
        seen = jnp.arange(first, end)[:, None] >= jnp.arange(end)
        seen &= conversations[:, first:end, None] == conversations[:, None, :end]
        scores = scores.reshape(rows, groups, size, share, end)
        scores = jnp.where(seen[:, None, :, None, :], scores, -1e30)
        powers = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, -1, keepdims=True)))
        total = jnp.sum(powers, -1).reshape(rows, groups, size * share, 1)
        powers = powers.reshape(rows, groups, size * share, end)
        blocks.append(matmul(powers, value[:, :, :end], dtype) / total)
    mixed = jnp.concatenate(blocks, 2).reshape(rows, groups, length, share, head)
    return mixed.transpose(0, 2, 1, 3, 4).reshape(rows, length, heads, head)


def causal_conv(x: jax.Array, weight: jax.Array, positions: jax.Array) -> jax.Array:
    """Depthwise causal convolution and SiLU; taps before the conversation's start are zero.

    Args:
        x: [B, T, channels].
        weight: [channels, 1, width].
        positions: [B, T].
    """
    width = weight.shape[-1]
    total = x * weight[:, 0, -1]
    for back in range(1, width):
        shifted = jnp.pad(x, ((0, 0), (back, 0), (0, 0)))[:, : x.shape[1]]
        inside = (positions >= back)[..., None]
        total += jnp.where(inside, shifted, 0.0) * weight[:, 0, width - 1 - back]
    return jax.nn.silu(total)


@jax.custom_vjp
def unit_lower_inverse(lower: jax.Array) -> jax.Array:
    """Inverse of I + lower for strictly lower triangular [..., C, C], C a power of two.

    Block doubling: with P', Q' the inverses of P, Q, that of [[P, 0], [R, Q]] is
    [[P', 0], [-Q' R P', Q']].
    """
    size = lower.shape[-1]
    lead = lower.shape[:-2]
    inverse = jnp.broadcast_to(jnp.ones((1, 1), lower.dtype), (*lead, size, 1, 1))
    block = 1
    while block < size:
        pairs = size // (2 * block)
        tiles = lower.reshape(*lead, pairs, 2 * block, pairs, 2 * block)
        diagonal = jnp.moveaxis(jnp.diagonal(tiles, axis1=-4, axis2=-2), -1, -3)
        corner = diagonal[..., block:, :block]
        halves = inverse.reshape(*lead, pairs, 2, block, block)
        first, second = halves[..., 0, :, :], halves[..., 1, :, :]
        below = -(second @ corner @ first)
        top = jnp.concatenate((first, jnp.zeros_like(first)), -1)
        inverse = jnp.concatenate((top, jnp.concatenate((below, second), -1)), -2)
        block *= 2
    return inverse.reshape(lower.shape)


def _inverse_forward(lower: jax.Array) -> tuple[jax.Array, jax.Array]:
    inverse = unit_lower_inverse(lower)
    return inverse, inverse


def _inverse_backward(inverse: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    turned = jnp.swapaxes(inverse, -1, -2)
    return (jnp.tril(-(turned @ gradient @ turned), -1),)


unit_lower_inverse.defvjp(_inverse_forward, _inverse_backward)


def delta_rule(
    query: jax.Array, key: jax.Array, value: jax.Array, log_decay: jax.Array, beta: jax.Array
) -> jax.Array:
    """The gated delta rule in chunk form, from a zero state.

    S ← e^g S; S ← S + k (β (v - Sᵀk))ᵀ; o = Sᵀ q, computed 64 tokens at a time (Yang et al., 2024,
    "Gated Delta Networks").

    Args:
        query, key: [B, K, T, d], normalised; queries scaled.
        value: [B, H, T, d]; value head h reads key head h // (H // K).
        log_decay, beta: [B, H, T].

    Returns:
        [B, H, T, d].
    """
    rows, _, length, head = key.shape
    heads = value.shape[1]
    f32 = jnp.dtype(jnp.float32)

    def chunked(x: jax.Array) -> jax.Array:
        x = jnp.repeat(x, heads // x.shape[1], 1)
        x = x.reshape(rows, heads, length // CHUNK_TOKENS, CHUNK_TOKENS, *x.shape[3:])
        x = jnp.moveaxis(x, 2, 0)
        return x.reshape(x.shape[0], rows * heads, *x.shape[3:])

    query, key, value, beta = map(chunked, (query, key, value, beta))
    total = jnp.cumsum(chunked(log_decay), -1)
    seen = jnp.tril(jnp.ones((CHUNK_TOKENS, CHUNK_TOKENS), bool))
    decay = jnp.exp(jnp.where(seen, total[..., :, None] - total[..., None, :], -jnp.inf))
    overlap = matmul_turned_right(key, key, f32)
    inverse = unit_lower_inverse(jnp.tril(beta[..., None] * overlap * decay, -1))
    weighted = (beta[..., None] * value, (beta * jnp.exp(total))[..., None] * key)
    written, erased = jnp.split(matmul(inverse, jnp.concatenate(weighted, -1), f32), 2, -1)
    inner = matmul_turned_right(query, key, f32) * decay
    from_state = query * jnp.exp(total)[..., None]
    to_state = key * jnp.exp(total[..., -1:] - total)[..., None]
    kept = jnp.exp(total[..., -1])

    def step(carried: jax.Array, chunk: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        written, erased, inner, from_state, to_state, kept = chunk
        fresh = written - matmul(erased, carried, f32)
        out = matmul(from_state, carried, f32) + matmul(inner, fresh, f32)
        carried = kept[..., None, None] * carried + matmul_turned_left(to_state, fresh, f32)
        return carried, out

    start = jnp.zeros((rows * heads, head, head), value.dtype)
    _, out = jax.lax.scan(step, start, (written, erased, inner, from_state, to_state, kept))
    out = out.reshape(-1, rows, heads, CHUNK_TOKENS, head)
    return jnp.moveaxis(out, 0, 2).reshape(rows, heads, length, head)


def linear_attention(
    params: Params, at: str, x: jax.Array, batch: Batch, shape: Shape, dtype: jnp.dtype
) -> jax.Array:
    """A gated delta rule layer; x is [B, T, M]."""
    rows, length, _ = x.shape
    keys, values, head = shape.linear_key_heads, shape.linear_value_heads, shape.linear_head_dim
    mixed = product(x, params[at + "in_proj_qkv.weight"], dtype)
    mixed = causal_conv(mixed, params[at + "conv1d.weight"], batch.positions)
    mixed = mixed.reshape(rows, length, -1, head).transpose(0, 2, 1, 3)
    query, key, value = jnp.split(mixed, (keys, 2 * keys), 1)
    query = query * jax.lax.rsqrt(jnp.sum(query * query, -1, keepdims=True) + 1e-6) * head**-0.5
    key = key * jax.lax.rsqrt(jnp.sum(key * key, -1, keepdims=True) + 1e-6)
    beta = jax.nn.sigmoid(product(x, params[at + "in_proj_b.weight"], dtype))
    step = jax.nn.softplus(
        product(x, params[at + "in_proj_a.weight"], dtype) + params[at + "dt_bias"]
    )
    log_decay = jnp.where(
        (batch.positions == 0)[..., None], _FORGET_ALL, -jnp.exp(params[at + "A_log"]) * step
    )
    out = delta_rule(query, key, value, log_decay.swapaxes(1, 2), beta.swapaxes(1, 2))
    out = out.transpose(0, 2, 1, 3)
    out = out * jax.lax.rsqrt(jnp.mean(out * out, -1, keepdims=True) + shape.rms_norm_eps)
    gate = product(x, params[at + "in_proj_z.weight"], dtype).reshape(rows, length, values, head)
    out = out * params[at + "norm.weight"] * jax.nn.silu(gate)
    return product(out.reshape(rows, length, -1), params[at + "out_proj.weight"], dtype)


def forward(params: Params, batch: Batch, shape: Shape, dtype: jnp.dtype) -> jax.Array:
    """Logits [B, T, V] in f32; T is a multiple of 64 and products take operands in `dtype`."""
    hidden = params["model.embed_tokens.weight"][batch.tokens]
    for layer in range(shape.num_layers):
        at = f"model.layers.{layer}."
        x = rms_norm(hidden, params[at + "input_layernorm.weight"], shape.rms_norm_eps)
        if shape.is_full(layer):
            hidden = hidden + full_attention(params, at + "self_attn.", x, batch, shape, dtype)
        else:
            hidden = hidden + linear_attention(params, at + "linear_attn.", x, batch, shape, dtype)
        x = rms_norm(hidden, params[at + "post_attention_layernorm.weight"], shape.rms_norm_eps)
        gate = jax.nn.silu(product(x, params[at + "mlp.gate_proj.weight"], dtype))
        up = product(x, params[at + "mlp.up_proj.weight"], dtype)
        hidden = hidden + product(gate * up, params[at + "mlp.down_proj.weight"], dtype)
    hidden = rms_norm(hidden, params["model.norm.weight"], shape.rms_norm_eps)
    return product(hidden, params["model.embed_tokens.weight"], dtype)
