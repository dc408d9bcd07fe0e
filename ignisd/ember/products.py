"""Matrix products that take operands in a short dtype, keep sums in f32, and differentiate so too.

Without these the derivative of a product of bf16 operands is rounded to bf16, and a batched one is
turned and copied before it is computed.
"""

from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: jax.Array, weight: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`x @ weight.T` for x [..., M] and weight [N, M]: operands in `dtype`, f32 result."""
    contracted = (((x.ndim - 1,), (1,)), ((), ()))
    return jax.lax.dot_general(
        x.astype(dtype), weight.astype(dtype), contracted, preferred_element_type=jnp.float32
    )


def _product_forward(
    x: jax.Array, weight: jax.Array, dtype: jnp.dtype
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return product(x, weight, dtype), (x.astype(dtype), weight.astype(dtype))


def _product_backward(
    dtype: jnp.dtype, kept: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, weight = kept
    gradient = gradient.astype(dtype)
    for_x = jax.lax.dot_general(
        gradient,
        weight,
        (((gradient.ndim - 1,), (0,)), ((), ())),
        preferred_element_type=jnp.float32,
    )
    rows = tuple(range(gradient.ndim - 1))
    for_weight = jax.lax.dot_general(
        gradient, x, ((rows, rows), ((), ())), preferred_element_type=jnp.float32
    )
    return for_x, for_weight


product.defvjp(_product_forward, _product_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _batched(a: jax.Array, b: jax.Array, of_a: int, of_b: int, dtype: jnp.dtype) -> jax.Array:
    """Sums over axis `of_a` of a's matrices and `of_b` of b's; all axes before are the batch."""
    lead = a.ndim - 2
    batch = tuple(range(lead))
    return jax.lax.dot_general(
        a.astype(dtype),
        b.astype(dtype),
        (((lead + of_a,), (lead + of_b,)), (batch, batch)),
        preferred_element_type=jnp.float32,
    )


_Kept = tuple[jax.Array, jax.Array]


def _batched_forward(
    a: jax.Array, b: jax.Array, of_a: int, of_b: int, dtype: jnp.dtype
) -> tuple[jax.Array, _Kept]:
    return _batched(a, b, of_a, of_b, dtype), (a.astype(dtype), b.astype(dtype))


def _batched_backward(
    of_a: int, of_b: int, dtype: jnp.dtype, kept: _Kept, gradient: jax.Array
) -> _Kept:
    # The result's rows are a's other axis and its columns are b's; either sum goes over one of
    # them, and leaves the summed axis where the operand has it.
    a, b = kept
    of_columns, of_rows = 1 - of_b, 1 - of_a
    for_a = (
        _batched(gradient, b, 1, of_columns, dtype)
        if of_a
        else _batched(b, gradient, of_columns, 1, dtype)
    )
    for_b = (
        _batched(gradient, a, 0, of_rows, dtype)
        if of_b
        else _batched(a, gradient, of_rows, 0, dtype)
    )
    return for_a, for_b


_batched.defvjp(_batched_forward, _batched_backward)


def matmul(a: jax.Array, b: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """[..., m, k] by [..., k, n] to [..., m, n] in f32."""
    return _batched(a, b, 1, 0, dtype)


def matmul_turned_right(a: jax.Array, b: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """[..., m, k] by [..., n, k] to [..., m, n] in f32: a bᵀ."""
    return _batched(a, b, 1, 1, dtype)


def matmul_turned_left(a: jax.Array, b: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """[..., k, m] by [..., k, n] to [..., m, n] in f32: aᵀ b."""
    return _batched(a, b, 0, 0, dtype)
