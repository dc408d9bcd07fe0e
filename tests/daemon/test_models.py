"""A daemon among its models: switched, unloaded, restarted, and what is retained survives it all.

One process lives through most of this file, in the order of the tests.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.running import Daemon, running
from tests.model.make_random_checkpoint import SIZES, write_random_checkpoint

MIB = 1 << 20
ARENA = 192 * MIB
LOAD_S = 240.0
SYSTEM = "You are a helpful assistant. Answer in one short sentence. " * 8


@dataclass
class Place:
    """Where the models and the files of a daemon lie."""

    models: Path
    files: Path
    flags: tuple[str, ...]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("models")
    models, files = folder / "models", folder / "files"
    write_random_checkpoint(models / "tiny", SIZES["tiny"], 7)
    write_random_checkpoint(models / "torn", SIZES["tiny"], 8)
    (models / "torn" / "tokenizer.json").write_text("{}")
    cache = str(Path.cwd() / ".pytest_cache" / "ignisd")
    flags = (
        *("--models-dir", str(models), "--kv-disk-path", str(files), "--kv-disk-bytes", "256M"),
        *("--kv-disk-floor", "64", "--reuse-kv-ram-floor", "64", "--check", "on"),
        *("--reuse-kv-host-pool-bytes", str(ARENA), "--compile-cache-dir", cache),
        *("--model-max-context", "1024", "--model-prefill-chunk", "128"),
        *("--spec-decode-lanes", "2", "--switch-allow-implicit", "on"),
    )
    return Place(models, files, flags)


@pytest.fixture(scope="module")
def daemon(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("daemon"), *place.flags) as started:
        yield started


def chat(text: str, model: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    body = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0, **fields}
    return {**body, "return_reuse": True}


def ask(daemon: Daemon, text: str, model: str = "ember", **fields: Any) -> dict[str, Any]:
    body = chat(text, model, **fields)
    answer = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=LOAD_S)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def switch(daemon: Daemon, model: str) -> httpx.Response:
    url = f"{daemon.url}/v1/models/switch"
    return httpx.post(url, json={"model": model}, timeout=LOAD_S)


def unload_after(daemon: Daemon, seconds: float | str) -> None:
    body = {"idle.unload-after": seconds}
    assert httpx.patch(f"{daemon.url}/v1/config", json=body, timeout=60).status_code == 200


def wait_for(daemon: Daemon, status: str) -> None:
    ends_s = time.monotonic() + LOAD_S
    while json.loads(daemon.get("/health"))["status"] != status:
        assert time.monotonic() < ends_s, f"never {status}"
        time.sleep(0.05)


def rss_bytes(daemon: Daemon) -> int:
    lines = Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines()
    (line,) = [each for each in lines if each.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def content(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def told_from_files(answer: dict[str, Any]) -> bool:
    """Whether a prompt was resumed from kv_disk."""
    told = answer["ignis_reuse"]
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return bool(told["tier"] == "kv_disk" and told["cached_tokens"] == cached >= 64)


def test_what_is_retained_survives_a_switch_there_and_back(daemon: Daemon) -> None:
    cold = ask(daemon, "What is a harbour?")
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    answer = switch(daemon, "tiny")
    assert answer.status_code == 200, answer.text
    assert answer.json()["previous"] == "ember"
    other = ask(daemon, "What is a harbour?", "tiny")
    assert other["model"] == "tiny"
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "another model's state"
    again = ask(daemon, "What is a harbour?", "ember")
    assert again["model"] == "ember"
    assert told_from_files(again), again["ignis_reuse"]
    assert content(again) == content(cold)
    third = ask(daemon, "What is a harbour?", "tiny")
    assert told_from_files(third), third["ignis_reuse"]
    assert content(third) == content(other)
    log = daemon.log.read_text()
    assert log.count("exact=on") >= 4
    assert "exact=off" not in log


def test_a_model_that_cannot_serve_is_refused_and_the_old_one_goes_on(daemon: Daemon) -> None:
    before = daemon.log.read_text().count("released")
    answer = switch(daemon, "torn")
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert error["code"] == "model_load_failed"
    assert "'tiny' is served on" in error["message"]
    assert str(Path.cwd()) not in error["message"]
    missing = switch(daemon, "nothing")
    assert missing.status_code == 404
    assert "'tiny', 'ember', 'torn'" in missing.json()["error"]["message"]
    assert content(ask(daemon, "Hello!", "tiny")) is not None
    assert daemon.log.read_text().count("released") == before


def test_unloaded_the_memory_is_gone_and_what_was_retained_is_not(daemon: Daemon) -> None:
    warm = ask(daemon, "What is an anchor?", "tiny")
    loaded = rss_bytes(daemon)
    unload_after(daemon, 0.2)
    wait_for(daemon, "unloaded")
    assert loaded - rss_bytes(daemon) > ARENA, "the arena, the pool and the weights are more"
    unload_after(daemon, "off")
    again = ask(daemon, "What is an anchor?", "tiny")
    assert told_from_files(again), again["ignis_reuse"]
    assert content(again) == content(warm)
    assert rss_bytes(daemon) < loaded + 64 * MIB
    assert "ignis_compiles_after_ready_total 0.0" in daemon.get("/metrics")


def test_the_folder_of_files_has_one_daemon(daemon: Daemon, place: Place) -> None:
    command = [sys.executable, "-m", "ignisd", *place.flags, "--server-bind", "127.0.0.1:0"]
    got = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert got.returncode == 2
    assert "belongs to another ignisd" in got.stderr
    assert "--kv-disk-path" in got.stderr
    assert "Traceback" not in got.stderr
    assert told_from_files(ask(daemon, "What is a harbour?", "ember"))


def test_it_ends_well_while_a_request_waits_for_a_model(daemon: Daemon) -> None:
    """Unloaded, then waking: the end comes at once, and with status 0."""
    unload_after(daemon, 0.2)
    wait_for(daemon, "unloaded")
    body = json.dumps(chat("Still there?", "ember"))
    url = f"{daemon.url}/v1/chat/completions"
    waiting = subprocess.Popen(
        ["curl", "-s", "-H", "content-type: application/json", "-d", body, url],
        stdout=subprocess.PIPE,
    )
    wait_for(daemon, "waking")
    assert daemon.stop() == 0
    told, _ = waiting.communicate(timeout=30)
    assert json.loads(told)["error"]["code"] == "draining"
    assert "Traceback" not in daemon.log.read_text()


def test_after_a_restart_it_goes_on_from_the_files_and_a_second_signal_ends_it_at_once(
    place: Place, tmp_path: Path
) -> None:
    with running(tmp_path, *place.flags, "--model", "tiny", "--server-drain-timeout", "600") as new:
        assert told_from_files(ask(new, "What is an anchor?", "tiny"))
        body = chat("Go on.", "tiny", max_tokens=700, stream=True, ignore_eos=True)
        url = f"{new.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=60) as answer:
            assert answer.status_code == 200
            new.process.send_signal(signal.SIGTERM)
            while "draining" not in new.log.read_text():
                time.sleep(0.02)
            new.process.send_signal(signal.SIGTERM)
            assert new.process.wait(20) == -signal.SIGTERM


@pytest.mark.parametrize("hangs", ["fetch", "store"])
def test_it_ends_well_while_a_file_is_read_or_written_that_never_ends(
    hangs: str, place: Place, tmp_path: Path
) -> None:
    """A state is being restored from a file, or written out at the end, and the disk hangs."""
    flags = ("--model", "tiny", "--server-drain-timeout", "0.5", "--kv-disk-drain-ms", "500")
    program = ("-m", "tests.daemon.stuck_files", hangs)
    with running(tmp_path, *place.flags, *flags, program=program) as daemon:
        if hangs == "store":
            ask(daemon, "What is a lighthouse?", "tiny", cache_salt="new")
            assert daemon.stop() == 0
        else:
            url = f"{daemon.url}/v1/chat/completions"
            body = chat("What is an anchor?", "tiny", stream=True)
            with httpx.stream("POST", url, json=body, timeout=60) as answer:
                assert daemon.stop() == 0
                assert '"code":"draining"' in answer.read().decode()
        assert "Traceback" not in daemon.log.read_text()
