"""Kernels of the hybrid model: arrays in, arrays out. One folder an operation.

Each has a `reference` that says what it means, an `xla` path that is fast on the CPU and, where
it pays, a `pallas` path for the GPU; its `__init__` holds the signature and makes the choice.
"""
