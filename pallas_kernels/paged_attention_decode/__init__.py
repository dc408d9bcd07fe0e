"""Attention of one query a lane over the pages of that lane's sequence."""

import jax

from pallas_kernels.dispatch import Path
from pallas_kernels.paged_attention_decode import xla

__all__ = ["paged_attention_decode"]


def paged_attention_decode(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    table: jax.Array,
    lengths: jax.Array,
    scale: float,
    path: Path = Path.XLA,
) -> jax.Array:
    """Attention for the newest token of each lane.

    Args:
        q: [L, H, d] f32.
        k_pages, v_pages: [P, Hkv, 64, d], f32 or uint16 with the bits of bf16; H is a multiple
            of Hkv, and query head h reads KV head h // (H // Hkv).
        table: [L, N] int32 page numbers, N a multiple of four; entries past the sequence are 0.
        lengths: [L] int32, tokens to attend, the newest included; 0 for a dead lane.
        scale: factor of the scores.

    Returns:
        [L, H, d] f32; zeros for dead lanes.
    """
    if path is Path.XLA:
        return xla.paged_attention_decode(q, k_pages, v_pages, table, lengths, scale)
    from pallas_kernels.paged_attention_decode import pallas

    return pallas.paged_attention_decode(
        q, k_pages, v_pages, table, lengths, scale, interpret=path is Path.INTERPRET
    )
