"""A loop over the live lanes only."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

Carry = TypeVar("Carry")


def for_live(live: jax.Array, body: Callable[[jax.Array, Carry], Carry], carry: Carry) -> Carry:
    """Runs `body(lane, carry)` for each lane whose `live` is true, in ascending order."""
    order = jnp.argsort(jnp.logical_not(live), stable=True)
    count = jnp.sum(live.astype(jnp.int32))
    return jax.lax.fori_loop(0, count, lambda i, c: body(order[i], c), carry)
