"""`ignisd plan`: what a start would hold, without a weight being read."""

import json
from pathlib import Path
from typing import Any

import pytest

from ignisd import cli
from ignisd.errors import ConfigError
from ignisd.machine import HostMemory
from ignisd.model import tensors
from ignisd.planning import Machine, plan_model
from ignisd.settings import Settings
from tests.model.make_random_checkpoint import SIZES, write_random_checkpoint

GIB = 1 << 30


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny-random"
    folder.mkdir()
    write_random_checkpoint(folder, SIZES["tiny"], 3)
    return folder


@pytest.fixture(autouse=True)
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def view(*args: object) -> None:
        raise AssertionError("a weight is read")

    monkeypatch.setattr(tensors.TensorReader, "view", view)


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["plan", "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["fits"] is True
    return found


def sizes(found: dict[str, Any]) -> dict[str, int]:
    return {f"{line['where']} {line['name']}": line["bytes"] for line in found["memory"]}


def test_the_embedded_model_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys)
    assert (found["model"], found["machine"]["platform"]) == ("ember", "cpu")
    assert found["machine"]["device_bytes"] is None
    held = sizes(found)
    assert held["host kv_ram"] == found["kv_ram"]["cells"] * found["kv_ram"]["cell_bytes"] > 0
    assert found["settled"]["reuse.kv-host-pool-bytes"] == held["host kv_ram"]
    assert found["settled"]["vram.kv-pool-bytes"] == held["device KV pool"]
    assert found["settled"]["reuse.kv-ram-floor"] == "measured at start"
    assert "kv.disk-bytes" not in found["settled"]


def test_a_control_group_bounds_all_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = HostMemory(installed_bytes=64 * GIB, limit_bytes=GIB)
    monkeypatch.setattr("ignisd.planning.read_host_memory", lambda: memory)
    found = planned(capsys)
    assert found["machine"]["host_bytes"] == GIB
    assert found["budget_bytes"] == GIB // 4
    assert sizes(found)["host kv_ram"] == GIB // 8
    assert cli.main(["plan", "--reuse-kv-host-pool-bytes", "1G"]) == cli.REFUSED
    refused = capsys.readouterr().err
    assert "this process may use 1024.0 MiB" in refused
    assert "--reuse-kv-host-pool-bytes (now 1024.0 MiB)" in refused


def test_the_text_shows_the_table_and_what_auto_came_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["plan", "--host-bytes", "8G", "--reuse-kv-ram-floor", "640"]
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ember on cpu: 8192.0 MiB of main memory"
    table = plan_model(Settings(), Machine("cpu", 8 * GIB)).memory.table().splitlines()
    assert lines[1 : 1 + len(table)] == table
    assert "--reuse-kv-ram-floor 640" in lines
    assert "--spec-decode-lanes 4" in lines
    assert any(line.startswith("--reuse-window-bytes ") for line in lines)


def test_a_checkpoint_folder_is_planned_from_its_headers(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(capsys, "--model", str(checkpoint), "--host-bytes", "16G")
    assert found["model"] == "tiny-random"
    stored = sum(entry.num_bytes for entry in tensors.list_tensors(checkpoint).values())
    assert 0 < sizes(found)["device weights"] <= 2 * stored
    wide = planned(capsys, "--model", str(checkpoint), "--model-kv-format", "f32")
    assert sizes(wide)["device weights"] > 1.5 * sizes(found)["device weights"]


def test_another_machine_is_planned_as_it_is_described(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine's backend is not even asked."""
    monkeypatch.setattr("ignisd.plan_command.this_machine", lambda: pytest.fail("asked"))
    card = planned(capsys, "--device-bytes", "80G", "--host-bytes", "64G")
    assert card["machine"] == {
        "platform": "gpu",
        "host_bytes": 64 * GIB,
        "device_bytes": 80 * GIB,
    }
    assert (card["budget_bytes"], card["headroom_bytes"]) == (80 * GIB, 4 * GIB)
    assert sizes(card)["host kv_ram"] == 2 * GIB
    assert sizes(card)["device windows"] > 0
    assert card["settled"]["reuse.window-bytes"] == 32 << 20
    assert card["settled"]["spec.decode-lanes"] == 8
    plain = planned(capsys, "--host-bytes", "64G")
    assert plain["machine"]["platform"] == "cpu"
    assert plain["budget_bytes"] == 16 * GIB
    assert "device windows" not in sizes(plain)


def test_files_are_part_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    found = planned(capsys, "--host-bytes", "64G", "--kv-disk-bytes", "4G")["settled"]
    assert found["kv.disk-bytes"] == 4 * GIB
    assert found["kv.disk-path"] == str(tmp_path / "state" / "kv_disk")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--host-bytes", "100M"], "--vram-budget-bytes"),
        (["--device-bytes", "10M", "--host-bytes", "8G"], "KV pool would have"),
        (["--host-bytes", "8G", "--reuse-kv-host-pool-bytes", "8G"], "this process may use"),
        (["--host-bytes", "8G", "--reuse-kv-host-pool-bytes", "10K"], "smallest state"),
        (["--kv-disk-bytes", "4G", "--reuse-kv-host-pool-bytes", "0"], "--kv-disk-bytes 4G needs"),
        (["--vram-kv-pool-bytes", "64tok", "--host-bytes", "8G"], "--vram-kv-pool-bytes gives"),
        (["--model", "/nowhere"], "no config.json in /nowhere"),
    ],
)
def test_what_does_not_fit_is_refused_as_a_start_would_refuse_it(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *words]) == cli.REFUSED == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ignisd: ")
    assert named in err
    assert cli.main(["plan", "--json", *words]) == cli.REFUSED
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is False
    assert named in told["message"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--device-bytes", "0"], "--device-bytes must be a size such as 512M or 2G; had '0'"),
        (["--host-bytes", "much"], "--host-bytes must be a size"),
        (["--host-bytes"], "plan: argument --host-bytes: expected one argument"),
        (["--hots-bytes", "4G"], "--hots-bytes is no flag"),
        (["--server-queue", "0"], "--server-queue must be"),
    ],
)
def test_a_wrong_word_is_refused(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *words]) == cli.REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert hint in err


def test_a_checkpoint_that_does_not_fit_its_config_is_refused_before_anything_is_planned(
    checkpoint: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in checkpoint.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    config = json.loads((other / "config.json").read_text())
    config["intermediate_size"] *= 2
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="has shape"):
        plan_model(Settings(model=str(other)), Machine("cpu", 8 * GIB))
