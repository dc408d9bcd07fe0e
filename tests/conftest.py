"""What every test shares: one backend, seeded generators, a compile cache."""

import os
from pathlib import Path

import hypothesis
import jax
import pytest

_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}

# A slow machine is no failure: no deadline, and no complaint about slow generation.
_COMMON = hypothesis.settings(
    deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("dev", parent=_COMMON)
hypothesis.settings.register_profile("ci", parent=_COMMON, derandomize=True)
hypothesis.settings.load_profile("ci" if _CI else "dev")


def pytest_configure(config: pytest.Config) -> None:
    """Pin jax to the CPU, unless tests for an accelerator were asked for by their marker."""
    expression: str = config.getoption("markexpr")
    if "gpu" not in expression or "not gpu" in expression:
        jax.config.update("jax_platforms", "cpu")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    directory = Path(config.rootpath) / ".pytest_cache" / "jax" / worker
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
