"""Host memory as the kernel tells it, and the folders for what the daemon leaves behind."""

from pathlib import Path

import pytest

from ignisd.errors import ConfigError
from ignisd.machine import (
    HostMemory,
    cache_folder,
    read_host_memory,
    require_folder,
    state_folder,
)

GIB = 1 << 30


def machine(root: Path, cgroup: str, limits: dict[str, str]) -> HostMemory:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:       16777216 kB\nMemFree:  1 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in limits.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_host_memory(root)


@pytest.mark.parametrize(
    ("cgroup", "limits", "usable"),
    [
        ("0::/a/b\n", {}, 16 * GIB),
        ("0::/a/b\n", {"a/b/memory.max": "max\n"}, 16 * GIB),
        ("0::/a/b\n", {"a/b/memory.max": f"{2 * GIB}\n"}, 2 * GIB),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{3 * GIB}\n"}, 3 * GIB),
        ("0::/a/b\n", {"a/b/memory.max": f"{4 * GIB}", "a/b/memory.high": f"{GIB}"}, GIB),
        ("0::/\n", {"memory.max": f"{GIB}\n"}, GIB),
        ("0::/hidden\n", {"memory.max": f"{GIB}\n"}, GIB),
        (
            "4:memory:/a\n0::/\n",
            {"memory/a/memory.limit_in_bytes": f"{GIB}"},
            GIB,
        ),
        (
            "4:cpu,memory:/a\n",
            {"memory/a/memory.limit_in_bytes": "9223372036854771712"},
            16 * GIB,
        ),
        ("0::/a\n", {"b/memory.max": f"{GIB}\n"}, 16 * GIB),
    ],
)
def test_the_tightest_limit_on_the_way_up_counts(
    cgroup: str, limits: dict[str, str], usable: int, tmp_path: Path
):
    found = machine(tmp_path, cgroup, limits)
    assert found.installed_bytes == 16 * GIB
    assert found.usable_bytes == usable
    assert (found.limit_bytes is None) == (usable == 16 * GIB)


def test_this_machine_has_memory():
    assert read_host_memory().usable_bytes > 1 << 26


def test_the_cache_folder_follows_systemd_then_the_user():
    assert cache_folder({"CACHE_DIRECTORY": "/a:/b", "XDG_CACHE_HOME": "/c"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/ignisd")
    assert cache_folder({}) == Path.home() / ".cache" / "ignisd"


def test_the_state_folder_follows_systemd_then_the_user():
    assert state_folder({"STATE_DIRECTORY": "/a:/b", "XDG_STATE_HOME": "/c"}) == Path("/a")
    assert state_folder({"XDG_STATE_HOME": "/c"}) == Path("/c/ignisd")
    assert state_folder({"CACHE_DIRECTORY": "/d"}) == Path.home() / ".local/state/ignisd"


def test_a_folder_is_made_as_private_as_it_must_be(tmp_path: Path):
    folder = tmp_path / "a" / "b"
    require_folder("--kv-disk-path", folder, 0o700)
    assert folder.stat().st_mode & 0o777 == 0o700
    require_folder("--kv-disk-path", folder, 0o700)


def test_a_folder_that_cannot_be_used_is_refused_naming_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--kv-disk-path .*/file/x cannot be made: Not a dir"):
        require_folder("--kv-disk-path", tmp_path / "file" / "x")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"--kv-disk-path .* cannot be written; name a folder"):
        require_folder("--kv-disk-path", tmp_path)
