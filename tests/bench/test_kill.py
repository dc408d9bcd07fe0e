"""kill -9 under load: a few times always, fifty times in the slow suite, and over a fault."""

import os
from pathlib import Path

import pytest

from tests.bench.kill import EXT4, ROOMY, SMALL, Bench, Life, Plan, report

CACHE = ("--check", "on", "--compile-cache-dir", str(Path.cwd() / ".pytest_cache" / "ignisd"))


def lives(folder: Path, plan: Plan, program: tuple[str, ...] = ("ignisd",)) -> list[Life]:
    return Bench(folder, plan, lambda text: print(text, flush=True), program).run()


def test_a_few_kills_leave_nothing_wrong(tmp_path: Path) -> None:
    plan = Plan(kills=3, most_s=2.5, flags=CACHE)
    done = lives(tmp_path, plan)
    assert report(done, plan) == 0
    assert sum(life.answers for life in done)
    assert any(life.adopted for life in done)
    assert max(life.most_bytes for life in done)
    # What was done is kept, so that a long run can be gone on with.
    assert lives(tmp_path, plan) == done


def test_a_few_kills_on_a_full_disk_leave_nothing_wrong(tmp_path: Path) -> None:
    plan = Plan(kills=2, disk=SMALL, most_s=2.5, flags=CACHE)
    done = lives(tmp_path, plan)
    assert report(done, plan) == 0
    assert sum(life.answers for life in done)


@pytest.mark.slow
@pytest.mark.parametrize("disk", [ROOMY, SMALL, *([EXT4] if os.geteuid() == 0 else [])])
def test_fifty_kills_leave_nothing_wrong(disk: str, tmp_path: Path) -> None:
    plan = Plan(disk=disk, flags=CACHE)
    assert report(lives(tmp_path, plan), plan) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "disk"),
    [
        ("strays-stay", ROOMY),
        ("short-write-taken-for-whole", SMALL),
        ("state-one-token-off", ROOMY),
    ],
)
def test_a_fault_of_the_disk_tier_is_seen_from_outside(
    fault: str, disk: str, tmp_path: Path
) -> None:
    plan = Plan(kills=5, disk=disk, flags=CACHE)
    done = lives(tmp_path, plan, ("tests.bench.faulty", fault))
    assert report(done, plan) == 1
