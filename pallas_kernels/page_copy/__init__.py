"""Copies whole pages inside one pool array."""

from pallas_kernels.page_copy.xla import page_copy

__all__ = ["page_copy"]
