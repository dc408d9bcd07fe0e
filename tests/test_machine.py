"""Host memory as the kernel tells it, and the folder for what may be rebuilt."""

from pathlib import Path

import pytest

from ignisd.machine import HostMemory, cache_folder, read_host_memory

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
