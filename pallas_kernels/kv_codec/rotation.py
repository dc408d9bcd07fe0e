"""The rotation R x = H(D x) / sqrt(d) that spreads a row's energy before it is coded.

D is a fixed diagonal of signs and H the Walsh-Hadamard transform in natural order, built from
additions alone, so that no compiler can fuse a multiplication into them and round otherwise. For
192 numbers the transform is H64 (x) (I - 2/3 J) of size 3, whose thirds are divided at the end.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.kv_codec.tables import WIDE_OF_THREE, signs


def rotate(x: jax.Array) -> jax.Array:
    """R x over the last axis; float32."""
    return _transform(x * signs(x.shape[-1]).astype(jnp.float32)) * _factor(x.shape[-1])


def unrotate(x: jax.Array) -> jax.Array:
    """R^-1 x over the last axis; float32. H is its own inverse but for the factor."""
    width = x.shape[-1]
    return _transform(x) * _factor(width) * signs(width).astype(jnp.float32)


def _factor(width: int) -> float:
    """What makes the transform orthogonal: exact for 64 and 256."""
    return 1.0 / 24.0 if width == WIDE_OF_THREE else float(width**-0.5)


def _transform(x: jax.Array) -> jax.Array:
    """H x; for 192 numbers three times (H64 (x) (I - 2/3 J)) x."""
    if x.shape[-1] != WIDE_OF_THREE:
        return _hadamard(x)
    by_three = x.reshape(*x.shape[:-1], WIDE_OF_THREE // 3, 3)
    parts = [_hadamard(by_three[..., i]) for i in range(3)]
    doubled = [part + part for part in parts]
    mixed = [(parts[i] - doubled[(i + 1) % 3]) - doubled[(i + 2) % 3] for i in range(len(parts))]
    return jnp.stack(mixed, axis=-1).reshape(x.shape)


def _hadamard(x: jax.Array) -> jax.Array:
    """The transform of a power of two of numbers on the last axis, strides 1, 2, 4 and so on."""
    shape, width = x.shape, x.shape[-1]
    stride = 1
    while stride < width:
        pairs = x.reshape(*shape[:-1], width // (2 * stride), 2, stride)
        left, right = pairs[..., 0, :], pairs[..., 1, :]
        x = jnp.stack([left + right, left - right], axis=-2).reshape(shape)
        stride *= 2
    return x
