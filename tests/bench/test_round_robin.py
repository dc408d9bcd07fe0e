"""Conversations that take turns: a few always, thirty in the slow suite, and over a fault."""

from pathlib import Path

import httpx
import pytest

from tests.bench.round_robin import Levels, Row, report, run
from tests.bench.talks import AnswerError, Ask, Told

CACHE = ("--check", "on", "--compile-cache-dir", str(Path.cwd() / ".pytest_cache" / "ignisd"))
SMALL = (
    *("--reuse-kv-host-pool-bytes", "4M", "--reuse-window-bytes", "3M"),
    *("--reuse-retained-host", "3"),
)


def test_each_tier_gives_back_what_was_left_to_it(tmp_path: Path) -> None:
    assert run(tmp_path, 14, 2, *CACHE, *SMALL) == 0


def row(tier: str | None, *, cached: int = 128, promised: int = 128, same: bool = True) -> Row:
    told = Told(("said", "stop"), 200, cached, tier, "checkpoint" if tier else None, "evicted")
    return Row(Ask("report", 0, 0), told, promised, same)


EVERY = [row(tier) for tier in ("device (host)", "kv_ram", "kv_disk")]


@pytest.mark.parametrize(
    ("rows", "over", "read", "status"),
    [
        (EVERY, [], 216, 0),
        (EVERY, ["too much in kv_ram"], 216, 1),
        (EVERY, [], 215, 1),
        (EVERY[:2], [], 144, 1),
        ([*EVERY, row("kv_ram", same=False)], [], 288, 1),
        ([*EVERY, row("kv_ram", cached=64)], [], 352, 0),
        ([*EVERY, row(None, cached=0)], [], 416, 1),
    ],
    ids=["well", "over", "read", "unused", "other", "few lost", "many lost"],
)
def test_a_claim_that_fails_is_the_exit_status(
    rows: list[Row], over: list[str], read: int, status: int
) -> None:
    assert report(rows, Levels(over=over), read) == status


@pytest.mark.slow
def test_thirty_conversations(tmp_path: Path) -> None:
    assert run(tmp_path, 30, 4, *CACHE) == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["image-of-the-page-before", "pages-out-of-order", "stale-page"])
def test_a_fault_is_seen_from_outside(fault: str, tmp_path: Path) -> None:
    program = ("-m", "tests.bench.faulty", fault)
    try:
        status = run(tmp_path, 14, 2, *CACHE, *SMALL, program=program)
    except (AssertionError, AnswerError, httpx.TransportError):
        status = 1  # it did not even answer
    assert status == 1
