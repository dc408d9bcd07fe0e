"""Copies of windows of pages out of the pool and into it, on the device."""

import functools

import jax
import jax.numpy as jnp

from state.device import KvPool


@jax.jit
def gather_pages(pool: KvPool, pages: jax.Array) -> KvPool:
    """The pages of these numbers, [window], copied out of the pool in that order."""

    def take(leaf: jax.Array) -> jax.Array:
        return jnp.take(leaf, pages, axis=0, mode="clip")

    return KvPool(k=tuple(map(take, pool.k)), v=tuple(map(take, pool.v)))


@functools.partial(jax.jit, donate_argnums=0)
def put_pages(pool: KvPool, pages: jax.Array, window: KvPool) -> KvPool:
    """The pool with a window of pages written to these numbers; number 0 takes what is padding."""

    def put(leaf: jax.Array, rows: jax.Array) -> jax.Array:
        return leaf.at[pages].set(rows, mode="promise_in_bounds")

    return KvPool(k=tuple(map(put, pool.k, window.k)), v=tuple(map(put, pool.v, window.v)))
