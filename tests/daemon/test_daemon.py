"""The daemon as its users meet it: from the README, over a socket, to the end."""

import concurrent.futures
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import ignisd.ember
from tests.daemon.running import Daemon, free_port, running

README = Path(__file__).parents[2] / "README.md"
TALKS = Path(ignisd.ember.__file__).parent / "TALKS.md"
SYSTEM = "You are a helpful assistant. Answer in one short sentence. " * 8


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    cache = str(Path.cwd() / ".pytest_cache" / "ignisd")
    with running(folder, "--check", "on", "--compile-cache-dir", cache) as started:
        yield started


def client(daemon: Daemon) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0)


def ask(daemon: Daemon, text: str, **fields: object) -> httpx.Response:
    body = {
        "model": "ember",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
        "max_tokens": 12,
        "temperature": 0,
        "return_reuse": True,
        **fields,
    }
    return httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=60)


def metric(daemon: Daemon, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", daemon.get("/metrics"), re.MULTILINE)
    assert found, f"no {name} in /metrics"
    return float(found[1])


def readme_block(name: str) -> tuple[str, str]:
    """The code and the output that the README shows between two marks."""
    text = README.read_text(encoding="utf-8")
    part = text.split(f"<!-- begin: {name} -->")[1].split(f"<!-- end: {name} -->")[0]
    blocks = re.findall(r"```\w*\n(.*?)```", part, re.DOTALL)
    assert len(blocks) == 2, f"{name}: wanted code and output, found {len(blocks)} blocks"
    return blocks[0], blocks[1]


def without_identity(answer: str) -> str:
    """An answer without what differs from run to run."""
    answer = re.sub(r'"id":\s*"[^"]*"', '"id": "…"', answer)
    answer = re.sub(r'"created":\s*\d+', '"created": 0', answer)
    return re.sub(r'"timings":\s*\{[^}]*\}', '"timings": {}', answer)


def test_the_curl_example_gives_what_the_readme_prints(daemon: Daemon) -> None:
    code, output = readme_block("curl")
    command = code.replace("http://127.0.0.1:8000", daemon.url)
    got = subprocess.run(["bash", "-c", command], capture_output=True, check=True, text=True)
    assert json.loads(without_identity(got.stdout)) == json.loads(without_identity(output))


def test_the_client_example_gives_what_the_readme_prints(daemon: Daemon) -> None:
    code, output = readme_block("client")
    code = code.replace("http://127.0.0.1:8000", daemon.url)
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert got.stdout == output


def test_the_ten_conversations_are_what_the_model_says(daemon: Daemon) -> None:
    command = [sys.executable, "-m", "ignisd.ember.talks", "--url", daemon.url]
    got = subprocess.run(command, capture_output=True, check=True, text=True)
    assert got.stdout == TALKS.read_text(encoding="utf-8")


def test_repeats_hit_and_equal_the_cold_answer(daemon: Daemon) -> None:
    """miss, hit, hit: and each answer is the one that a cold run gives."""
    text = f"Repeat after me: the harbour is quiet tonight. {time.time_ns()}"
    cold = ask(daemon, text, reuse=False).json()
    answers = [ask(daemon, text).json() for _ in range(3)]
    cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in answers]
    assert cold["ignis_reuse"]["miss_reason"] == "reuse_off"
    assert cached[1] == cached[2] > cached[0]
    assert {each["choices"][0]["message"]["content"] for each in (cold, *answers)} == {
        cold["choices"][0]["message"]["content"]
    }


def test_the_official_client_streams_what_it_gets_plain(daemon: Daemon) -> None:
    messages = [{"role": "user", "content": "Hello! My name is Ada."}]
    fields: dict[str, Any] = {"model": "ember", "messages": messages, "max_tokens": 16}
    fields["temperature"] = 0
    plain = client(daemon).chat.completions.create(**fields)
    chunks = list(
        client(daemon).chat.completions.create(
            **fields, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert text == plain.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens


def test_many_at_once_get_the_answers_they_get_alone(daemon: Daemon) -> None:
    texts = [f"Tell me about number {n}." for n in range(12)]
    alone = [ask(daemon, text, reuse=False).json() for text in texts]
    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        together = list(threads.map(lambda text: ask(daemon, text).json(), texts))
    contents = [
        [each["choices"][0]["message"]["content"] for each in answers]
        for answers in (alone, together)
    ]
    assert contents[0] == contents[1]


def test_a_seed_decides_the_answer(daemon: Daemon) -> None:
    fields: dict[str, Any] = {"temperature": 2.0, "top_p": 1.0, "seed": 7}
    texts = [
        ask(daemon, "Surprise me.", **fields).json()["choices"][0]["message"]["content"]
        for _ in range(2)
    ]
    other = ask(daemon, "Surprise me.", **{**fields, "seed": 8}).json()
    assert texts[0] == texts[1]
    assert other["choices"][0]["message"]["content"] != texts[0]


def test_vanishing_clients_leave_nothing_behind(daemon: Daemon) -> None:
    body = {
        "model": "ember",
        "messages": [{"role": "user", "content": "word " * 900}],
        "max_tokens": 400,
        "stream": True,
    }
    for wait_s in (0.0, 0.02, 0.1, 0.3):
        with (
            httpx.Client(timeout=60) as session,
            session.stream("POST", f"{daemon.url}/v1/chat/completions", json=body) as answer,
        ):
            assert answer.status_code == 200
            time.sleep(wait_s)
    ends_s = time.monotonic() + 20
    busy = 1.0
    while busy and time.monotonic() < ends_s:
        time.sleep(0.1)
        busy = sum(
            metric(daemon, f'ignis_requests{{state="{phase}"}}')
            for phase in ("queued", "prefilling", "decoding")
        )
    assert busy == 0
    assert ask(daemon, "Still there?").status_code == 200


def test_closed_connections_give_their_descriptors_back(daemon: Daemon) -> None:
    """Idle keep-alive connections end with their client, not with the keep-alive time."""
    held = Path(f"/proc/{daemon.process.pid}/fd")
    before = len(list(held.iterdir()))
    for _ in range(40):
        with socket.create_connection(("127.0.0.1", daemon.port)) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    ends_s = time.monotonic() + 10
    while len(list(held.iterdir())) > before + 5 and time.monotonic() < ends_s:
        time.sleep(0.1)
    assert len(list(held.iterdir())) <= before + 5


def test_what_it_reserved_and_measured_is_told(daemon: Daemon) -> None:
    told = json.loads(daemon.get("/v1/config"))
    (planned,) = [line["bytes"] for line in told["memory"] if line["name"] == "kv_ram"]
    kv_ram = told["kv_ram"]
    assert planned == kv_ram["bytes"] == kv_ram["cells"] * told["page_bytes"] > 0
    assert kv_ram["locked"] or "LimitMEMLOCK" in kv_ram["why_not_locked"]
    assert kv_ram["measured"]["prefill_tokens_s"] > 0
    settled = {key: one["settled"] for key, one in told["settings"].items() if "settled" in one}
    assert settled["reuse.kv-host-pool-bytes"] == planned
    assert 0 < settled["reuse.window-bytes"] <= 32 << 20
    assert settled["reuse.kv-ram-floor"] % 64 == 0
    log = daemon.log.read_text()
    assert f"kv_ram_bytes={planned} " in log
    assert f"window_bytes={settled['reuse.window-bytes']} " in log


def test_settings_can_be_changed_while_it_serves(daemon: Daemon) -> None:
    def patch(**changes: object) -> httpx.Response:
        body = {key.replace("__", "."): value for key, value in changes.items()}
        return httpx.patch(f"{daemon.url}/v1/config", json=body, timeout=60)

    text = "Is this read twice?"
    ask(daemon, text)
    assert patch(reuse__prompt="off", server__queue=1, log__level="debug").status_code == 200
    told = ask(daemon, text).json()["ignis_reuse"]
    assert (told["cached_tokens"], told["miss_reason"]) == (0, "reuse_off")
    assert metric(daemon, "ignis_queue_limit") == 1
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        answers = threads.map(lambda n: ask(daemon, f"{n}", max_tokens=60).status_code, range(16))
    assert 429 in answers
    assert patch(reuse__prompt="on", server__queue=256, log__level="info").status_code == 200
    assert ask(daemon, text).json()["ignis_reuse"]["cached_tokens"] > 0
    assert patch(server__queue=0, reuse__prompt="off").status_code == 400
    assert ask(daemon, text).json()["ignis_reuse"]["cached_tokens"] > 0
    waits = patch(vram__kv_pool_bytes="1G")
    assert waits.status_code == 400  # a key of the file has hyphens
    assert "did you mean vram.kv-pool-bytes?" in waits.json()["error"]["message"]


def test_several_answers_of_a_real_model_are_those_of_its_seeds(daemon: Daemon) -> None:
    fields: dict[str, Any] = {"temperature": 1.2, "top_p": 0.95}
    together = ask(daemon, "Surprise us.", n=3, seed=11, **fields).json()
    alone = [ask(daemon, "Surprise us.", seed=11 + n, **fields).json() for n in range(3)]
    contents = [each["message"]["content"] for each in together["choices"]]
    assert contents == [each["choices"][0]["message"]["content"] for each in alone]
    assert together["usage"]["completion_tokens"] == sum(
        each["usage"]["completion_tokens"] for each in alone
    )
    client_side = client(daemon).chat.completions.create(
        model="ember", messages=[{"role": "user", "content": "Hello!"}], n=2, max_tokens=4
    )
    assert [choice.index for choice in client_side.choices] == [0, 1]


def test_nothing_was_compiled_under_traffic_and_it_ends_well(daemon: Daemon) -> None:
    """Runs last in this file: it ends the daemon."""
    assert ask(daemon, "One more.").status_code == 200
    assert metric(daemon, "ignis_compiles_after_ready_total") == 0
    assert daemon.stop() == 0
    log = daemon.log.read_text()
    assert "exact=on" in log
    assert "Traceback" not in log


def test_it_can_be_stopped_while_it_loads(tmp_path: Path) -> None:
    """Compiling cannot be interrupted; the process leaves all the same."""
    port = free_port()
    flags = ["--server-bind", f"127.0.0.1:{port}", "--compile-cache-dir", str(tmp_path)]
    process = subprocess.Popen([sys.executable, "-m", "ignisd", *flags], stderr=subprocess.PIPE)
    try:
        ends_s = time.monotonic() + 120
        answer = None
        while answer is None and time.monotonic() < ends_s:
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=5)
            except httpx.TransportError:
                time.sleep(0.05)
        assert answer is not None
        assert answer.status_code == 503
        assert answer.json()["status"] == "loading"
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_model_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ignisd", "--model", str(tmp_path / "nothing")]
    got = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert got.returncode == 2
    assert "--model" in got.stderr
    assert "no config.json in" in got.stderr
    assert "Traceback" not in got.stderr


def test_a_cache_folder_that_cannot_be_made_is_refused_by_name() -> None:
    command = [sys.executable, "-m", "ignisd", "--compile-cache-dir", "/proc/nothing"]
    command += ["--server-bind", "127.0.0.1:0"]
    got = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert got.returncode == 2
    assert "--compile-cache-dir" in got.stderr
    assert "Traceback" not in got.stderr
