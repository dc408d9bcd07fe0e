"""What a weight is before it exists: shape, type, and where a checkpoint keeps it."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import jax
import numpy as np

Params = dict[str, Any]
"""Nested dicts and tuples whose leaves are arrays, or `WeightSpec` in an abstract tree."""


class Role(StrEnum):
    """What a weight does; decides how a random one is drawn."""

    MATRIX = "matrix"
    EMBEDDING = "embedding"
    NORM = "norm"  # a norm that multiplies by 1 + w
    SCALE = "scale"  # a norm that multiplies by w
    CONV = "conv"
    A_LOG = "a_log"
    DT_BIAS = "dt_bias"


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One weight of a model.

    Args:
        shape: as the forward pass takes it.
        dtype: as it is held on the device.
        source: its name in a text-only checkpoint.
        source_shape: its shape there; the same numbers in the same order.
        role: what it does.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: str
    source_shape: tuple[int, ...]
    role: Role

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        return self.size * self.dtype.itemsize


def leaves(abstract: Params) -> list[WeightSpec]:
    """Every weight of an abstract tree, in the order in which jax flattens it."""
    found = jax.tree.leaves(abstract)
    assert all(isinstance(leaf, WeightSpec) for leaf in found)
    return found


def total_bytes(abstract: Params) -> int:
    """Device bytes of all weights of an abstract tree."""
    return sum(weight.num_bytes for weight in leaves(abstract))


def total_size(abstract: Params) -> int:
    """How many numbers all weights of an abstract tree hold."""
    return sum(weight.size for weight in leaves(abstract))
