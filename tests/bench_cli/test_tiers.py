"""What moves between the tiers, held against plain copies."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ignisd.bench.moves import Move
from ignisd.bench.plain import PlainFile, block
from ignisd.bench.report import move_record, tier_table
from ignisd.bench.rows import Rows
from tests.bench_cli.test_own import bench


def move(spent_ms: list[float], base_ms: list[float], least: float | None = 0.7) -> Move:
    spent, base = ([each / 1000 for each in times] for times in (spent_ms, base_ms))
    return Move("device to kv_ram", 4 << 20, "memcpy" if base else "", least, spent, base)


@pytest.mark.parametrize(
    ("one", "share", "holds"),
    [
        (move([1, 1, 1], [0.8, 0.8, 0.8]), 0.8, True),
        (move([1, 1, 1], [0.6, 0.6, 0.6]), 0.6, False),
        (move([1, 1, 1], [0.6, 0.6, 0.6], None), 0.6, True),
        (move([1, 9, 9], [0.75, 0.8, 0.8]), 0.75, True),
        (move([1, 1, 5], [0.3, 0.9, 0.9]), 0.9, True),
        (move([1], []), None, False),
        (move([1], [], None), None, True),
    ],
    ids=["holds", "fails", "no claim", "by the best", "by the median", "untold", "nothing"],
)
def test_a_move_is_held_against_the_plain_copy(one: Move, share: float | None, holds: bool) -> None:
    assert one.share == pytest.approx(share)
    assert one.holds is holds
    assert json.loads(json.dumps(move_record(one)))["holds"] is holds


def test_the_table_says_what_is_claimed_and_whether_it_holds() -> None:
    moves = [move([1, 2, 3], [1, 1, 1]), move([1], [1], None), move([4], [1])]
    lines = tier_table(moves).splitlines()
    assert [line.split()[-1] for line in lines] == ["claim", "ok", "-", "FAILED"]
    assert "2.0  2.10" in lines[1]


def test_a_plain_file_is_written_and_read_whole(tmp_path: Path) -> None:
    size = (20 << 20) + 4096
    plain = PlainFile(tmp_path / "plain", size - 100)
    plain.write()
    plain.read_back[:] = 0
    plain.read()
    assert plain.read_back.size == size
    assert plain.read_back.all()
    plain.close()
    assert list(tmp_path.iterdir()) == []


def test_memory_for_copies_is_there_before_it_is_timed() -> None:
    made = block((5 << 20) + 3)
    assert made.ctypes.data % (2 << 20) == 0
    assert np.all(made == 1)


def test_nothing_is_claimed_of_a_window_that_cannot_be_smaller() -> None:
    class Lanes:
        window_bytes = 1
        window_is_least = True

    assert [one.least for one in Rows(Lanes()).moves] == [None, None, None]  # type: ignore[arg-type]
    Lanes.window_is_least = False
    assert [one.least for one in Rows(Lanes()).moves] == [None, 0.9, 0.9]  # type: ignore[arg-type]


def test_on_the_embedded_model(tmp_path: Path) -> None:
    """Whether claims hold on a machine that does other things meanwhile is not asked here."""
    sizes = ["--reuse-kv-host-pool-bytes", "16M", "--reuse-retained-device", "1"]
    done = bench("tiers", *sizes, "--kv-disk-path", str(tmp_path), "--json")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert records[0]["state_tokens"] == 2048, done.stderr
    names = {record["name"] for record in records[1:]}
    assert names >= {
        "capture to a device slot",
        "claim from a host slot",
        "claim from kv_ram, the image",
        "device to kv_ram, side by side",
        "evict and resume in windows",
        "kv_disk to kv_ram, scattered",
        "claim from kv_disk, all of it",
        "decode beside a window up",
    }
    failed = [record["name"] for record in records[1:] if not record["holds"]]
    assert done.returncode == bool(failed)
    assert [line for line in done.stderr.splitlines() if line.startswith("FAILED")] == [
        line for name in failed for line in done.stderr.splitlines() if f"FAILED: {name} " in line
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["lift", "fetch"])
def test_wrong_copies_are_not_timed(fault: str, tmp_path: Path) -> None:
    """A page that comes up as another, and a file that is not read."""
    planted = {
        "lift": "cells.SharedPages.lift = lambda self, cells, pages: "
        "cells_lift(self, cells, pages[::-1])",
        "fetch": "tiers.fetch = lambda disk, order, into: None",
    }
    code = (
        "import sys\n"
        "from ignisd import cli\n"
        "from ignisd.bench import tiers\n"
        "from ignisd.engine import cells\n"
        "cells_lift = cells.SharedPages.lift\n"
        f"{planted[fault]}\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    words = ["bench", "tiers", "--reps", "1", "--model-max-context", "2048"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--kv-disk-path", str(tmp_path)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Wrong copies are not timed" in done.stderr
    assert done.stdout == ""
