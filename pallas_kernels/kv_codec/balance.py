"""What is done to keys before they are coded: channels are balanced and the common part taken away.

Neither changes a score: queries are divided by the balance, and a shift common to all keys of a
query changes no softmax (it is added back as q . centre, so that coded scores stand beside exact
ones). Both make what is left easier to code.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.kv_codec.xla import tree_sum

FLOOR = 0.05
"""The least weight of a channel, as a part of the mean over all channels."""

_CENTRE_MASK = 0xFFFFFF00


def balance(q_norm: jax.Array, k_norm: jax.Array, rotary_dims: int) -> jax.Array:
    """The factor of each channel of the keys, [d] float32 with the 8 significant bits of bf16.

    a = sqrt(w_q / w_k) with w = |1 + weight|, averaged (RMS) over the two channels that the rotary
    embedding turns together and floored. With 8 bits the product with a stored bf16 key is exact in
    float32, so what is coded does not depend on how a compiler rounds a multiplication and an
    addition.

    Args:
        q_norm, k_norm: [d] the layer's weights as stored in the checkpoint, without the one.
        rotary_dims: leading channels that are rotated; j turns with j + rotary_dims / 2.
    """
    wanted = jnp.sqrt(_weights(q_norm, rotary_dims) / _weights(k_norm, rotary_dims))
    return jax.lax.reduce_precision(wanted, 8, 7)


def _weights(norm: jax.Array, rotary_dims: int) -> jax.Array:
    size = jnp.abs(1.0 + norm.astype(jnp.float32))
    half = rotary_dims // 2
    paired = jnp.sqrt((size[:half] ** 2 + size[half:rotary_dims] ** 2) / 2.0)
    size = jnp.concatenate([paired, paired, size[rotary_dims:]])
    return jnp.maximum(size, FLOOR * jnp.mean(size))


def centre(keys: jax.Array) -> jax.Array:
    """The mean of the balanced keys of positions 1 to 63, [..., d] float32 with 16 bits.

    Position 0 is left out: as a sink of attention it lies far from all others. The sum is a fixed
    tree. The low bits are cleared as integers, between the multiplication here and the subtraction
    from a key, so that no compiler makes one rounding of the two.

    Args:
        keys: [..., 64, d] float32, balanced and rotary-embedded keys of a sequence's page 0.
    """
    tokens = keys.shape[-2]
    rows = jnp.moveaxis(keys.at[..., 0, :].set(0.0), -2, -1)
    mean = tree_sum(rows) * jnp.float32(1.0 / (tokens - 1))
    bits = jax.lax.bitcast_convert_type(mean, jnp.uint32) & jnp.uint32(_CENTRE_MASK)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
