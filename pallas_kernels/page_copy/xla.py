"""Page copy by one gather and one scatter over the page axis."""

import jax


def page_copy(pages: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
    """`pages` with page target[i] made equal to page source[i].

    Args:
        pages: [P, ...] in storage form (f32 or uint16; a bf16 array would be converted whole).
        source, target: [M] int32; targets are distinct, except that unused entries name page 0
            in both.

    Returns:
        [P, ...]; all sources are read before any target is written.
    """
    return pages.at[target].set(pages[source])
