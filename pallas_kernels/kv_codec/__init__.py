"""The codec `hq-e8-2b`: 72 bytes for a row of 256 numbers, and what is done to rows before it.

`rotate`, `balance` and `centre` prepare rows, `encode` codes them, `decode_rows` reads them. Each
decision of the encoder is made on integers, so that every path gives the same bytes.
"""

import jax

from pallas_kernels.dispatch import Path
from pallas_kernels.kv_codec import xla
from pallas_kernels.kv_codec.balance import balance, centre
from pallas_kernels.kv_codec.rotation import rotate, unrotate
from pallas_kernels.kv_codec.tables import Layout, layout_of
from pallas_kernels.kv_codec.words import decode_integers, decode_rows, join_page, split_page

__all__ = [
    "Layout",
    "balance",
    "centre",
    "decode_integers",
    "decode_rows",
    "encode",
    "join_page",
    "layout_of",
    "rotate",
    "split_page",
    "unrotate",
]


def encode(rows: jax.Array, path: Path = Path.XLA) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Codes rows that are already rotated.

    Args:
        rows: [..., d] float32; d is a power of two, or 192 (not on the GPU paths).

    Returns:
        codes [..., d / 8] uint16, meta [..., meta_words] uint16, and [...] bool: rows that held a
        number that is not finite. Those, and rows that are zero or nearly so, are all zero.
    """
    if path is Path.XLA:
        return xla.encode(rows)
    from pallas_kernels.kv_codec.pallas import encode as encode_by_kernel

    return encode_by_kernel(rows, interpret=path is Path.INTERPRET)
