"""`ignisd inspect`: what is told of a disk tier, good and bad, and that nothing is changed."""

import errno
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ignisd import cli
from ignisd.errors import ConfigError
from ignisd.inspection import as_json, has_damage, inspect, lines
from state.tiers.disk import Disk
from state.tiers.format import Damage
from tests.state.tiers.disk_cases import LIVE, OTHER, RETAINED, SMALL, case_of, write
from tests.state.tiers.faulty_disk import FaultyDisk
from tests.state.tiers.plain_tier import plain

NOW_WALL_MS = 1e12 + 90_000.0
SECRET = b"the tenant's salt"


def tier(root: Path) -> dict[str, Path]:
    """A tier of two fingerprints, all good."""
    foreign = case_of(plain(3, [2] * 20), replace(SMALL, fingerprint=OTHER))
    paths = {
        "retained": write(Disk(), root, case_of(RETAINED)),
        "salted": write(Disk(), root, case_of(plain(4, [1], salt=SECRET))),
        "live": write(Disk(), root, case_of(LIVE)),
        "foreign": write(Disk(), root, foreign),
    }
    paths["unfinished"] = paths["retained"].with_name("x.state.partial")
    paths["unfinished"].write_bytes(b"half of it")
    (paths["retained"].with_name("notes.txt")).write_text("somebody's")
    (root / "lock").touch()
    (root / "elsewhere").mkdir()
    return paths


def test_every_file_is_listed_with_what_it_holds(tmp_path: Path) -> None:
    paths = tier(tmp_path)
    groups = inspect(tmp_path, NOW_WALL_MS)
    told = {one.name: (one.kind, one.tokens, one.damage) for group in groups for one in group.files}
    assert told == {
        paths["retained"].name: ("checkpoint", 192, None),
        paths["salted"].name: ("checkpoint", 64, None),
        paths["live"].name: ("live", 135, None),
        paths["unfinished"].name: ("unfinished", None, None),
        paths["foreign"].name: ("checkpoint", 1280, None),
    }
    assert {group.fingerprint for group in groups} == {str(SMALL.fingerprint), str(OTHER)}
    assert {one.idle_s for group in groups for one in group.files if one.tokens} == {90.0}
    size = sum(path.stat().st_size for path in paths.values())
    assert sum(group.num_bytes for group in groups) == size
    assert not has_damage(groups)
    (own,) = inspect(paths["retained"].parent, NOW_WALL_MS)
    assert own in groups


def test_a_bad_file_is_told_of_and_stays(tmp_path: Path) -> None:
    path = tier(tmp_path)["retained"]
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    groups = inspect(tmp_path, NOW_WALL_MS)
    assert has_damage(groups)
    (bad,) = [one for group in groups for one in group.files if one.damage]
    assert (bad.name, bad.damage, bad.kind) == (path.name, Damage.WINDOW, None)
    assert path.read_bytes() == raw
    text = "\n".join(lines(groups))
    assert f"BAD window: the checksum of window 2 of 3 differs  {path.name}" in text
    assert text.endswith(", 1 bad")
    told = as_json(groups)
    assert (told["num_bad"], told["num_files"]) == (1, 5)
    files = [one for group in told["fingerprints"] for one in group["files"]]
    assert [one["name"] for one in files if not one["verified"]] == [
        path.name,
        "x.state.partial",
    ]
    assert [one["damage"] for one in files if "damage" in one] == ["window"]


def test_neither_tokens_nor_salts_are_told(tmp_path: Path) -> None:
    tier(tmp_path)
    groups = inspect(tmp_path, NOW_WALL_MS)
    text = "\n".join(lines(groups)) + json.dumps(as_json(groups))
    assert SECRET.decode() not in text
    assert "1000" not in text, "the first token of a page"


def test_a_file_that_goes_meanwhile_is_no_fault(tmp_path: Path) -> None:
    tier(tmp_path)
    gone = FaultyDisk(always={"open_old": errno.ENOENT})
    groups = inspect(tmp_path, NOW_WALL_MS, gone)
    assert [one.kind for group in groups for one in group.files] == ["unfinished"]
    assert not has_damage(groups)


def test_the_table_is_for_people(tmp_path: Path) -> None:
    path = tier(tmp_path)["foreign"]
    text = list(lines(inspect(path.parent, NOW_WALL_MS)))
    size = f"{path.stat().st_size / 1024:.1f}K"
    assert text == [
        f"fingerprint {OTHER}",
        f"  checkpoint      1,280 tokens  {size:>8}     2m  ok  {path.name}",
        f"  1 file, {size}, all good",
        f"1 fingerprint: 1 file, {size}, all good",
    ]
    assert list(lines(inspect(tmp_path / "elsewhere", 0.0))) == [
        "0 fingerprints: 0 files, 0, all good"
    ]


def test_the_command_says_by_its_status_whether_anything_is_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tier(tmp_path)["retained"]
    assert cli.main(["inspect", str(tmp_path)]) == 0
    assert "all good" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:-1])
    assert cli.main(["inspect", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["num_bad"] == 1


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "ignisd inspect DIR [--json]"),
        (["--jsn", "."], "--jsn is no flag; did you mean --json?"),
        (["a", "b"], "one directory, had 2"),
        (["absent"], "absent: No such file or directory. Give the directory of --kv-disk-path"),
    ],
)
def test_a_wrong_word_is_refused(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", *words]) == cli.REFUSED
    assert hint in capsys.readouterr().err


def test_a_directory_that_cannot_be_listed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Permission denied"):
        inspect(tmp_path, 0.0, FaultyDisk(always={"entries": errno.EACCES}))


def test_it_loads_no_jax(tmp_path: Path) -> None:
    code = f"import sys\nfrom ignisd import cli\ncli.main(['inspect', {str(tmp_path)!r}])\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print('jax' in sys.modules)"],
        cwd=Path(cli.__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False"
