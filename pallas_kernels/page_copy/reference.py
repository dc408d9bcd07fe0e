"""Copies whole pages inside a pool, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def page_copy(pages: Array, source: Array, target: Array) -> Array:
    """Page target[i] becomes what page source[i] was before the call.

    Args:
        pages: [P, ...] of any dtype.
        source: [M] int32.
        target: [M] int32, without repetitions except of the null page 0, which takes padding.

    Returns:
        The pool [P, ...]; every page that is no target is unchanged.
    """
    copied = pages.copy()
    for here, there in zip(source, target, strict=True):
        copied[there] = pages[here]
    return copied
