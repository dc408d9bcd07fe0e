"""What the numbers were measured on."""

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ignisd import __version__
from ignisd.machine import read_host_memory

_PACKAGES = ("jax", "jaxlib", "numpy")


def machine_block(root: Path = Path("/")) -> dict[str, object]:
    """Processor, memory, system and versions, and how busy the machine is as of now.

    Args:
        root: where the file system hangs; another place in a test.
    """
    memory = read_host_memory(root)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_name(root),
        "cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": memory.installed_bytes,
        "usable_memory_bytes": memory.usable_bytes,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "ignisd": __version__,
        **_versions(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _cpu_name(root: Path) -> str:
    for line in (root / "proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Processor", "cpu"):
            return value.strip()
    return platform.processor() or "unknown"


def _versions() -> Mapping[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
