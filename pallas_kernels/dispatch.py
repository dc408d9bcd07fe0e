"""Which path of an operation a program is built from."""

import enum

import jax


class Path(enum.StrEnum):
    """XLA runs on every backend; TRITON needs an NVIDIA card or a lowering for one."""

    XLA = "xla"
    TRITON = "triton"
    INTERPRET = "interpret"


def default_path() -> Path:
    """The path for the backend in use. Called where programs are built, never inside them."""
    return Path.TRITON if jax.default_backend() == "gpu" else Path.XLA
