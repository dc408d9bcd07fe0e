"""The device's half of the state: pytrees that hold bytes, addressed by page, lane and slot number.

Each layer's array is a leaf of its own rather than a row of one stacked array: a program that
changes one layer then updates that buffer in place, and nothing of pool size is sliced or copied.
"""

import jax
import jax.numpy as jnp
from flax import struct

from state.spec import PAGE_TOKENS, KvFormat, StateSpec


@struct.dataclass
class KvPool:
    """Pages of keys and values of the full-attention layers.

    k, v: one array per full layer, [pages, kv_heads, 64, head_dim]; float32, or uint16 that holds
    the bits of bf16 (a scatter into a bf16 array would convert the whole pool on the CPU).
    """

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]


@struct.dataclass
class MutableState:
    """What of one sequence changes with each token and is no page; an image is a copy of it.

    recurrent: one array per linear layer, [value_heads, key_dim, value_dim] f32.
    conv: one array per linear layer, [conv_width - 1, conv_channels], in the pool's storage type.
    position: tokens that the state has read, int32.
    """

    recurrent: tuple[jax.Array, ...]
    conv: tuple[jax.Array, ...]
    position: jax.Array


@struct.dataclass
class LaneBank:
    """The `MutableState` of every decode lane: the same leaves with a leading lane axis."""

    lanes: MutableState


@struct.dataclass
class SlotBank:
    """Device slots: images with a leading slot axis. Host slots are arrays of their own."""

    slots: MutableState


def storage_dtype(kv_format: KvFormat) -> jnp.dtype:
    """The type that holds pool values: uint16 for the bits of bf16, or float32."""
    return jnp.dtype(jnp.uint16 if kv_format is KvFormat.BF16 else jnp.float32)


def empty_pool(spec: StateSpec, num_pages: int) -> KvPool:
    """A pool of zeroed pages, the null page included."""
    shape = (num_pages, spec.kv_heads, PAGE_TOKENS, spec.head_dim)
    dtype = storage_dtype(spec.kv_format)
    return KvPool(
        k=tuple(jnp.zeros(shape, dtype) for _ in range(spec.num_full)),
        v=tuple(jnp.zeros(shape, dtype) for _ in range(spec.num_full)),
    )


def empty_state(spec: StateSpec, *leading: int) -> MutableState:
    """A state that has read nothing, with any leading axes."""
    matrix = (*leading, spec.value_heads, spec.key_dim, spec.value_dim)
    tail = (*leading, spec.conv_width - 1, spec.conv_channels)
    dtype = storage_dtype(spec.kv_format)
    return MutableState(
        recurrent=tuple(jnp.zeros(matrix, jnp.float32) for _ in range(spec.num_linear)),
        conv=tuple(jnp.zeros(tail, dtype) for _ in range(spec.num_linear)),
        position=jnp.zeros(leading, jnp.int32),
    )
