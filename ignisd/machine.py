"""What the machine has: memory for this process, and folders for what it leaves behind."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ignisd.errors import ConfigError

_CGROUP_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Main memory in bytes: what is installed, and what the control group leaves of it.

    `limit_bytes` is None without a control group, or with one that sets no limit.
    """

    installed_bytes: int
    limit_bytes: int | None

    @property
    def usable_bytes(self) -> int:
        """What this process may use at most."""
        if self.limit_bytes is None:
            return self.installed_bytes
        return min(self.installed_bytes, self.limit_bytes)


def read_host_memory(root: Path = Path("/")) -> HostMemory:
    """Read /proc/meminfo and the limits of this process's control groups, versions 1 and 2.

    Args:
        root: where the file system hangs; another place in a test.
    """
    installed = 0
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            installed = int(rest.split()[0]) * 1024
    limits = [limit for limit in _cgroup_limits(root) if limit < installed]
    return HostMemory(installed, min(limits, default=None))


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where compiled programs go by default: systemd's cache folder, or the user's."""
    return _own_folder(environ, "CACHE_DIRECTORY", "XDG_CACHE_HOME", ".cache")


def state_folder(environ: Mapping[str, str]) -> Path:
    """Where what shall outlive the process goes by default: systemd's state folder, or the user's.

    The user's is `$XDG_STATE_HOME/ignisd`, or `~/.local/state/ignisd`.
    """
    return _own_folder(environ, "STATE_DIRECTORY", "XDG_STATE_HOME", ".local/state")


def disk_folder(asked: Path | None, environ: Mapping[str, str]) -> Path:
    """Where the files of kv_disk go: what was asked for, or a folder in the state folder."""
    return asked or state_folder(environ) / "kv_disk"


def _own_folder(environ: Mapping[str, str], given: str, base: str, home: str) -> Path:
    """The first folder of the variable `given`, or ours in the folder of `base` or in the home."""
    folders = environ.get(given)
    if folders:
        return Path(folders.partition(":")[0])
    named = environ.get(base)
    return (Path(named) if named else Path.home() / home) / "ignisd"


def require_folder(flag: str, folder: Path, mode: int = 0o777) -> None:
    """Make a folder that this process may write, unless it is there.

    Args:
        flag: what named it.
        mode: its permissions where it has to be made.

    Raises:
        ConfigError: it cannot be made or written.
    """
    ask = "name a folder that this process may write"
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{flag} {folder} cannot be made: {error.strerror}; {ask}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{flag} {folder} cannot be written; {ask}")


def _cgroup_limits(root: Path) -> list[int]:
    """Every memory limit that is set on the way from this process's group up to the top."""
    limits = []
    for folder, path in _cgroup_folders(root):
        for group in (path, *path.parents):
            for name in _CGROUP_LIMITS:
                with contextlib.suppress(OSError, ValueError):  # no file, or the word `max`
                    limits.append(int((folder / group / name).read_text()))
    return limits


def _cgroup_folders(root: Path) -> list[tuple[Path, Path]]:
    """Each mount point of a memory hierarchy with this process's group in it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        group = Path(path.lstrip("/"))
        if not controllers:
            found.append((root / "sys/fs/cgroup", group))
        elif "memory" in controllers.split(","):
            found.append((root / "sys/fs/cgroup/memory", group))
    return found
