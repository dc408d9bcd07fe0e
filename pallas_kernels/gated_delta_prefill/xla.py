"""The chunk form of the gated delta rule: a scan over absolute 64-token chunks.

Within a chunk, G is the running sum of log_decay and D_ij = exp(G_i - G_j) for i >= j. With
A = strictly lower(beta_i k_i.k_j D_ij) and X = (I + A)^-1 the corrected values are
v' = X (beta v) - X (beta e^G k) S, and o = (q e^G) S + lower(q k^T * D) v'. Only exponents <= 0
appear. The matrices of both products by X are stacked, as are those by S.
"""

import jax
import jax.numpy as jnp

from pallas_kernels.tiles import TILE_ROWS, chunk_tiles, for_tiles, read_tile, write_tile

_BASE = 16


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _invert_base(lower: jax.Array) -> jax.Array:
    """(I + lower)^-1 for strictly lower [..., 16, 16], by doubling the solved block 1, 2, 4, 8."""
    row = jnp.arange(_BASE)[:, None]
    col = jnp.arange(_BASE)[None, :]
    inverse = jnp.eye(_BASE, dtype=lower.dtype) - jnp.where(row // 2 == col // 2, lower, 0.0)
    block = 2
    while block < _BASE:
        below = (row // (2 * block) == col // (2 * block)) & (row // block != col // block)
        step = _matmul(_matmul(inverse, jnp.where(below, lower, 0.0)), inverse)
        inverse = inverse - step
        block *= 2
    return inverse


def invert_unit_lower(lower: jax.Array) -> jax.Array:
    """(I + lower)^-1 for strictly lower triangular `lower` [N, 64, 64] f32, by block doubling."""
    count, size, _ = lower.shape
    blocks = size // _BASE
    tiles = lower.reshape(count, blocks, _BASE, blocks, _BASE)
    diagonal = jnp.stack([tiles[:, i, :, i, :] for i in range(blocks)], axis=1)
    inverse = _invert_base(diagonal)
    width = _BASE
    while width < size:
        pairs = size // (2 * width)
        inverse = inverse.reshape(count, pairs, 2, width, width)
        upper_left, lower_right = inverse[:, :, 0], inverse[:, :, 1]
        wide = lower.reshape(count, pairs, 2 * width, pairs, 2 * width)
        below = jnp.stack([wide[:, i, width:, i, :width] for i in range(pairs)], axis=1)
        corner = -_matmul(_matmul(lower_right, below), upper_left)
        top = jnp.concatenate([upper_left, jnp.zeros_like(corner)], axis=-1)
        inverse = jnp.concatenate([top, jnp.concatenate([corner, lower_right], axis=-1)], axis=-2)
        width *= 2
    return inverse.reshape(count, size, size)


def _chunk(
    carried: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One chunk. carried [Hv, dk, dv]; q, k [Hv, 64, dk]; v [Hv, 64, dv]; g, beta [Hv, 64]."""
    total = jnp.cumsum(g, axis=-1)
    row = jnp.arange(TILE_ROWS)[:, None]
    col = jnp.arange(TILE_ROWS)[None, :]
    gap = total[:, :, None] - total[:, None, :]
    decay = jnp.where(row >= col, jnp.exp(jnp.where(row >= col, gap, 0.0)), 0.0)
    scores = _matmul(jnp.concatenate([k, q], axis=1), jnp.swapaxes(k, 1, 2))
    strict = jnp.where(row > col, beta[:, :, None] * scores[:, :TILE_ROWS] * decay, 0.0)
    inverse = invert_unit_lower(strict)
    grown = jnp.exp(total)[:, :, None]
    solved = _matmul(
        inverse, jnp.concatenate([beta[:, :, None] * v, beta[:, :, None] * grown * k], axis=-1)
    )
    width = v.shape[-1]
    read = _matmul(jnp.concatenate([solved[:, :, width:], q * grown], axis=1), carried)
    corrected = solved[:, :, :width] - read[:, :TILE_ROWS]
    out = read[:, TILE_ROWS:] + _matmul(scores[:, TILE_ROWS:] * decay, corrected)
    last = total[:, -1:]
    weighted = k * jnp.exp(last - total)[:, :, None]
    state = jnp.exp(last)[:, :, None] * carried + _matmul(jnp.swapaxes(weighted, 1, 2), corrected)
    return state, out


def gated_delta_prefill(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    beta: jax.Array,
    state: jax.Array,
    keep: jax.Array,
    kept: jax.Array,
    num_tokens: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The delta rule over T tokens, with the states at asked chunk ends.

    Args:
        q, k: [T, Hk, dk] f32, L2-normalised, q scaled; T a multiple of 64.
        v: [T, Hv, dv] f32; value head h reads key head h // (Hv // Hk).
        log_decay, beta: [T, Hv] f32; log_decay <= 0. Padding rows have both 0.
        state: [Hv, dk, dv] f32 before the first token.
        keep: [T / 64] int32; the state after chunk i is kept in row keep[i].
        kept: [K + 1, Hv, dk, dv] f32, written in place where it is donated; row K takes what
            nobody asked for.
        num_tokens: int32, the real rows; chunks past them do not run.

    Returns:
        out [T, Hv, dv] (0 in chunks that did not run), the state after the last token, and
         kept.
    """
    tiles = chunk_tiles(q.shape[0], num_tokens)
    num_tiles = keep.shape[0]
    group = v.shape[1] // q.shape[1]

    def body(
        tile: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        out, carried, kept = carry

        def heads_first(array: jax.Array, repeats: int = 1) -> jax.Array:
            heads = jnp.swapaxes(read_tile(array, tile, num_tiles), 0, 1)
            return jnp.repeat(heads, repeats, axis=0) if repeats > 1 else heads

        carried, result = _chunk(
            carried,
            heads_first(q, group),
            heads_first(k, group),
            heads_first(v),
            heads_first(log_decay),
            heads_first(beta),
        )
        kept = jax.lax.dynamic_update_index_in_dim(kept, carried, keep[tile], 0)
        return write_tile(out, jnp.swapaxes(result, 0, 1), tile), carried, kept

    return for_tiles(tiles, body, (jnp.zeros_like(v), state, kept))
