"""The own engine as a target: a process of its own, as users run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = ["--model-max-context", "2048", "--reps", "1"]
SIZES = ["--shared", "300", "--user", "150", "--max-tokens", "8"]


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    cache = str(Path.cwd() / ".pytest_cache" / "ignisd")
    return subprocess.run(
        [sys.executable, "-m", "ignisd", "bench", *words, *SMALL, "--compile-cache-dir", cache],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
def test_reuse_on_the_embedded_model():
    done = bench("reuse", *SIZES, "--json", "--check")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert records[0]["targets"][0]["answers_cold"] is True
    assert records[0]["settings"]["model.name"] == "ember"
    rows = {record["case"]: record for record in records if record["type"] == "reuse_median"}
    assert rows["cold"]["cached_tokens"] == 0
    prompt, cached = (rows["repeat 1"][name] for name in ("prompt_tokens", "cached_tokens"))
    assert prompt - 128 < cached < prompt
    assert rows["repeat 2"]["cached_tokens"] == cached
    for case in ("turn 2", "turn 3", "sibling 1", "sibling 2", "late sibling"):
        assert rows[case]["cached_tokens"] > 0, case
    assert all(row["same"] for case, row in rows.items() if case != "others")


@pytest.mark.slow
def test_reuse_with_a_disk_below(tmp_path: Path):
    tiers = ["--reuse-kv-host-pool-bytes", "2M", "--reuse-retained-host", "2"]
    disk = ["--kv-disk-bytes", "64M", "--kv-disk-path", str(tmp_path)]
    done = bench("reuse", *SIZES, "--json", "--check", *tiers, *disk)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*.state"))


@pytest.mark.slow
def test_speed_on_the_embedded_model_and_a_prompt_that_does_not_fit():
    done = bench("prefill", "--prefill", "300x1,100x2")
    assert done.returncode == 0, done.stderr
    assert "100 x 2" in done.stdout
    done = bench("decode", "--decode", "64x2", "--decode-tokens", "8")
    assert done.returncode == 0, done.stderr
    assert "64 x 2" in done.stdout
    done = bench("prefill", "--prefill", "3000x1")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "raise --model-max-context" in done.stderr
