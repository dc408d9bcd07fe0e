"""The pieces of a hybrid layer, each over tiles of rows.

`rows` are tokens of one sequence in prefill (tiles of 64) and lanes in decode (tiles of 1). Every
piece but the matrix product runs over such tiles, so that a token's bits depend neither on the
width of its chunk nor on its lane (see `pallas_kernels.tiles`).
"""

from typing import Any

import jax
import jax.numpy as jnp

from ignisd.model.spec import ModelSpec
from pallas_kernels.tiles import Tiles, map_tiles
from state.spec import KvFormat

Layer = dict[str, jax.Array]

L2_EPS = 1e-6
"""Added to the squared length of queries and keys of the delta rule."""


def product(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x [rows, in] times weight [out, in] transposed, accumulated in f32: [rows, out] f32.

    A single row is doubled: on the CPU a one-row product takes a slow path with other bits.
    """
    rows = x.shape[0]
    operand = x.astype(weight.dtype)
    if rows == 1:
        operand = jnp.concatenate([operand, operand])
    out = jax.lax.dot_general(
        operand,
        weight,
        (((1,), (1,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return out[:rows]


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x / rms(x) over the last axis, times (1 + weight); f32."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * (1.0 + weight)


def round_to(x: jax.Array, kv_format: KvFormat) -> jax.Array:
    """f32 values rounded to what the pool's format can hold.

    `reduce_precision` and not a pair of conversions, which XLA is free to drop.
    """
    return jax.lax.reduce_precision(x, 8, 7) if kv_format is KvFormat.BF16 else x


def to_storage(x: jax.Array, kv_format: KvFormat) -> jax.Array:
    """f32 values as the pool stores them: the bits of bf16 in uint16, or f32."""
    if kv_format is KvFormat.F32:
        return x
    return jax.lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16)


def embed_tokens(table: jax.Array, tokens: jax.Array) -> jax.Array:
    """Rows of the embedding as f32 [rows, hidden].

    bf16 is gathered as its bits: a gather from a bf16 table converts the whole table on the CPU.
    """
    if table.dtype == jnp.bfloat16:
        bits = jax.lax.bitcast_convert_type(table, jnp.uint16)[tokens]
        return jax.lax.bitcast_convert_type(bits, jnp.bfloat16).astype(jnp.float32)
    return table[tokens]


def normed(x: jax.Array, weight: jax.Array, spec: ModelSpec, tiles: Tiles, dtype: Any) -> jax.Array:
    """RMS norm of the residual, as input of a product."""
    return map_tiles(lambda r: rms_norm(r, weight, spec.rms_norm_eps).astype(dtype), tiles, x)


def mlp(layer: Layer, x: jax.Array, spec: ModelSpec, tiles: Tiles) -> jax.Array:
    """x + down(silu(gate h) * up h) with h the normed residual."""
    dtype = layer["gate"].dtype
    h = normed(x, layer["norm_post"], spec, tiles, dtype)
    gate, up = product(h, layer["gate"]), product(h, layer["up"])
    inner = map_tiles(lambda g, u: (jax.nn.silu(g) * u).astype(dtype), tiles, gate, up)
    return x + product(inner, layer["down"])


def rotate(x: jax.Array, positions: jax.Array, spec: ModelSpec) -> jax.Array:
    """Rotary embedding of the leading `rotary_dims` numbers of each head.

    x: [rows, heads, d] f32; positions: [rows] int32. Numbers j and j + rotary_dims / 2 turn
    together by position * theta^(-2j / rotary_dims).
    """
    half = spec.rotary_dims // 2
    exponents = jnp.arange(half, dtype=jnp.float32) * (2.0 / spec.rotary_dims)
    angles = positions.astype(jnp.float32)[:, None] * (spec.rope_theta**-exponents)
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def attention_inputs(
    layer: Layer, x: jax.Array, positions: jax.Array, spec: ModelSpec, tiles: Tiles
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Query, key, value and output gate: [rows, heads, d], twice [rows, kv_heads, d], as query."""
    h = normed(x, layer["norm_in"], spec, tiles, layer["q"].dtype)
    rows, d = x.shape[0], spec.head_dim
    both = product(h, layer["q"]).reshape(rows, spec.num_heads, 2 * d)
    k = product(h, layer["k"]).reshape(rows, spec.num_kv_heads, d)
    v = product(h, layer["v"]).reshape(rows, spec.num_kv_heads, d)

    def tile_of(both: jax.Array, k: jax.Array, at: jax.Array) -> tuple[jax.Array, ...]:
        q = rms_norm(both[..., :d], layer["q_norm"], spec.rms_norm_eps)
        k = rms_norm(k, layer["k_norm"], spec.rms_norm_eps)
        return rotate(q, at, spec), rotate(k, at, spec), jax.nn.sigmoid(both[..., d:])

    q, k, gate = map_tiles(tile_of, tiles, both, k, positions)
    return q, k, v, gate


def attention_output(layer: Layer, x: jax.Array, mixed: jax.Array, gate: jax.Array) -> jax.Array:
    """x plus the gated attention result through the output projection."""
    return x + product((mixed * gate).reshape(x.shape[0], -1), layer["o"])


def delta_inputs(
    layer: Layer, x: jax.Array, spec: ModelSpec, tiles: Tiles, kv_format: KvFormat
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Raw convolution input [rows, channels], z [rows, Hv dv], b and a [rows, Hv]; f32."""
    h = normed(x, layer["norm_in"], spec, tiles, layer["qkv"].dtype)
    mixed = round_to(product(h, layer["qkv"]), kv_format)
    return mixed, product(h, layer["z"]), product(h, layer["b"]), product(h, layer["a"])


def delta_gates(
    layer: Layer, y: jax.Array, b: jax.Array, a: jax.Array, valid: jax.Array, spec: ModelSpec
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """What the delta rule reads, from the convolved rows of one tile.

    valid: [rows] bool; other rows leave the state as it is (beta and log_decay are 0).

    Returns:
        q, k [rows, Hk, dk], v [rows, Hv, dv], log_decay and beta [rows, Hv].
    """
    rows = y.shape[0]
    width = spec.linear_key_heads * spec.linear_key_dim
    heads = (rows, spec.linear_key_heads, spec.linear_key_dim)

    def unit(part: jax.Array) -> jax.Array:
        part = part.reshape(heads)
        return part * jax.lax.rsqrt(jnp.sum(part * part, axis=-1, keepdims=True) + L2_EPS)

    q = unit(y[:, :width]) * spec.linear_key_dim**-0.5
    k = unit(y[:, width : 2 * width])
    v = y[:, 2 * width :].reshape(rows, spec.linear_value_heads, spec.linear_value_dim)
    log_decay = -jnp.exp(layer["a_log"]) * jax.nn.softplus(a + layer["dt_bias"])
    here = valid[:, None]
    return q, k, v, jnp.where(here, log_decay, 0.0), jnp.where(here, jax.nn.sigmoid(b), 0.0)


def delta_output(
    layer: Layer, x: jax.Array, mixed: jax.Array, z: jax.Array, spec: ModelSpec, tiles: Tiles
) -> jax.Array:
    """x plus the normed and gated result of the delta rule through its output projection."""
    dtype = layer["out"].dtype

    def tile_of(mixed: jax.Array, z: jax.Array) -> jax.Array:
        scale = jax.lax.rsqrt(jnp.mean(mixed * mixed, axis=-1, keepdims=True) + spec.rms_norm_eps)
        gate = jax.nn.silu(z.reshape(mixed.shape))
        return (mixed * scale * layer["norm"] * gate).reshape(mixed.shape[0], -1).astype(dtype)

    return x + product(map_tiles(tile_of, tiles, mixed, z), layer["out"])
