"""Clients that leave at any moment: some always, five hundred in the slow suite, over faults."""

from pathlib import Path

import pytest

from tests.bench.storm import Bench, Storm, report

CACHE = ("--check", "on", "--compile-cache-dir", str(Path.cwd() / ".pytest_cache" / "ignisd"))


def test_a_small_storm_leaves_nothing(tmp_path: Path) -> None:
    storm = Bench(tmp_path, 80, flags=CACHE).run()
    assert report(storm, 80) == 0
    assert storm.ends["dropped while waiting"]
    assert storm.ends["dropped while decoding"]


@pytest.mark.slow
def test_five_hundred_leave_nothing(tmp_path: Path) -> None:
    assert report(Bench(tmp_path, 500, flags=CACHE).run(), 500) == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cancel-that-leaks", "the-queue-ignores-departures"])
def test_a_leak_is_seen_from_outside(fault: str, tmp_path: Path) -> None:
    try:
        storm = Bench(tmp_path, 80, fault=fault).run()
    except AssertionError:
        return  # it did not come to rest
    assert report(storm, 80) == 1


@pytest.mark.parametrize(
    ("more", "status"), [({}, 0), ({"pages free": -1}, 1), ({"tasks": 1}, 1), ({"MiB": 9.0}, 1)]
)
def test_what_is_left_is_the_exit_status(more: dict[str, float], status: int) -> None:
    before = {"pages free": 94.0, "tasks": 7.0, "MiB": 400.0}
    storm = Storm(before=before, after={k: v + more.get(k, 0) for k, v in before.items()})
    storm.compare()
    assert report(storm, 1) == status
