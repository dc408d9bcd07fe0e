"""One step of attention with a running maximum, for the paths built from XLA operations."""

import jax
import jax.numpy as jnp

NEGATIVE = -1e30
"""Score of a masked key: finite, so that no infinity is ever subtracted from itself."""

KEY_PAGES = 4
"""Pages of keys in one tile, at absolute multiples: the order of additions depends on position."""


def load_values(pages: jax.Array) -> jax.Array:
    """Pool values as f32: uint16 holds the bits of bf16."""
    if pages.dtype == jnp.uint16:
        return jax.lax.bitcast_convert_type(pages, jnp.bfloat16).astype(jnp.float32)
    return pages


def gather_tile(pages: jax.Array, table: jax.Array, tile: jax.Array) -> jax.Array:
    """Key tile `tile` of a sequence, [Hkv, KEY_PAGES * 64, d] f32.

    Args:
        pages: [P, Hkv, 64, d] in storage form.
        table: [N] int32, N a multiple of KEY_PAGES; padded with the null page.
    """
    numbers = jax.lax.dynamic_slice_in_dim(table, tile * KEY_PAGES, KEY_PAGES)
    picked = load_values(pages[numbers])
    return jnp.moveaxis(picked, 0, 1).reshape(picked.shape[1], -1, picked.shape[3])


Partial = tuple[jax.Array, jax.Array, jax.Array]


def empty_partial(heads: int, rows: int, width: int) -> Partial:
    """(accumulated values, maximum, sum) before the first tile."""
    return (
        jnp.zeros((heads, rows, width), jnp.float32),
        jnp.full((heads, rows), NEGATIVE, jnp.float32),
        jnp.zeros((heads, rows), jnp.float32),
    )


def add_tile(
    partial: Partial, q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array
) -> Partial:
    """The partial result with one more tile of keys.

    Args:
        q: [Hkv, rows, d] f32, scaled. k, v: [Hkv, keys, d] f32.
        visible: [rows, keys] bool. Rows of v that nobody sees are zeroed, since they may hold
            anything (0 * NaN is NaN).
    """
    accumulated, highest, total = partial
    scores = jnp.matmul(q, jnp.swapaxes(k, 1, 2), precision=jax.lax.Precision.HIGHEST)
    scores = jnp.where(visible, scores, NEGATIVE)
    peak = jnp.maximum(highest, jnp.max(scores, axis=-1))
    weights = jnp.where(visible, jnp.exp(scores - peak[..., None]), 0.0)
    shrink = jnp.exp(highest - peak)
    v = jnp.where(jnp.any(visible, axis=0)[:, None], v, 0.0)
    added = jnp.matmul(weights, v, precision=jax.lax.Precision.HIGHEST)
    return (
        accumulated * shrink[..., None] + added,
        peak,
        total * shrink + jnp.sum(weights, axis=-1),
    )
