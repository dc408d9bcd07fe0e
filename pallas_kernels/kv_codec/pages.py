"""Pages of stored rows to sealed pages: balanced, centred, rotated, coded, in the pool's form."""

from __future__ import annotations

import jax

from pallas_kernels.dispatch import Path
from pallas_kernels.kv_codec import encode
from pallas_kernels.kv_codec.rotation import rotate
from pallas_kernels.kv_codec.words import join_page


def seal_keys(
    keys: jax.Array, balance: jax.Array, centre: jax.Array, path: Path = Path.XLA
) -> jax.Array:
    """Sealed pages of keys.

    Args:
        keys: [..., 64, d] float32 that bf16 can hold, rotary-embedded.
        balance: [d] float32, as `kv_codec.balance` gives it.
        centre: [..., d] float32, one for each page of one head.

    Returns:
        [..., 64 * row_words] uint16.
    """
    return _seal(keys * balance - centre[..., None, :], path)


def seal_values(values: jax.Array, path: Path = Path.XLA) -> jax.Array:
    """Sealed pages of values [..., 64, d] float32; they are neither balanced nor centred."""
    return _seal(values, path)


def _seal(rows: jax.Array, path: Path) -> jax.Array:
    codes, meta, _ = encode(rotate(rows), path)
    return join_page(codes, meta)
