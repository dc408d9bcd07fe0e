"""Copies of mutable state between lanes, prefill captures and slots.

A capture and a claim copy; neither consumes its source. The bank that is written is donated, so
the copy touches one row of it.
"""

import functools

import jax
import jax.numpy as jnp

from state.device import LaneBank, MutableState, SlotBank


def _row(bank: MutableState, index: jax.Array) -> MutableState:
    return jax.tree.map(
        lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, 0, keepdims=False), bank
    )


def _put(bank: MutableState, index: jax.Array, image: MutableState) -> MutableState:
    return jax.tree.map(
        lambda leaf, row: jax.lax.dynamic_update_index_in_dim(leaf, row, index, 0), bank, image
    )


@jax.jit
def take_row(stack: MutableState, index: jax.Array) -> MutableState:
    """The image at `index` of a stack of images (leading axis), copied out of it."""
    return _row(stack, index)


@functools.partial(jax.jit, donate_argnums=0)
def claim(bank: LaneBank, lane: jax.Array, image: MutableState) -> LaneBank:
    """The lane starts where the image stands; the image stays as it was."""
    return LaneBank(_put(bank.lanes, lane, image))


@functools.partial(jax.jit, donate_argnums=0)
def clear(bank: LaneBank, lane: jax.Array) -> LaneBank:
    """The lane has read nothing."""
    return LaneBank(
        jax.tree.map(
            lambda leaf: jax.lax.dynamic_update_index_in_dim(
                leaf, jnp.zeros(leaf.shape[1:], leaf.dtype), lane, 0
            ),
            bank.lanes,
        )
    )


@jax.jit
def save_lane(bank: LaneBank, lane: jax.Array) -> MutableState:
    """An image of what a lane has read."""
    return _row(bank.lanes, lane)


@functools.partial(jax.jit, donate_argnums=0)
def capture(bank: SlotBank, slot: jax.Array, image: MutableState) -> tuple[SlotBank, jax.Array]:
    """The device slot holds a copy of the image.

    The position read back from the bank comes with it: an array that is ready once the slot is
    written, and that no later capture takes away with the donated bank.
    """
    slots = _put(bank.slots, slot, image)
    return SlotBank(slots), slots.position[slot]


@jax.jit
def read_slot(bank: SlotBank, slot: jax.Array) -> MutableState:
    """The image in a device slot, copied out of it."""
    return _row(bank.slots, slot)
