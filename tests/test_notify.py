"""What the service manager hears, on a socket of its kind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from ignisd.engine.stats import Counters, EngineStats
from ignisd.http.service import Service
from ignisd.http.serving import Facts
from ignisd.notify import Notifier, keep_telling, status_line, words_for
from tests.chat.toy import toy_model
from tests.fakes import Script, ScriptedEngine

HEARD_S = 20.0
READY_S = 240.0


class Manager:
    """The receiving end of NOTIFY_SOCKET. `heard` is every assignment, in order of arrival."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        self._socket.settimeout(0.05)
        self.address = address
        self.heard: list[str] = []

    def listen(self) -> None:
        """Take in what has been sent."""
        while True:
            try:
                self.heard += self._socket.recv(4096).decode().split("\n")
            except TimeoutError:
                return

    def wait_for(self, word: str, *, within_s: float = HEARD_S) -> None:
        ends_s = time.monotonic() + within_s
        while word not in self.heard:
            assert time.monotonic() < ends_s, f"no {word} in {self.heard}"
            self.listen()

    def count(self, word: str) -> int:
        return self.heard.count(word)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.close()


class Scripted(ScriptedEngine):
    """A scripted engine whose stats can be dictated."""

    dictated: dict[str, object]

    def stats(self) -> EngineStats:
        return replace(super().stats(), **self.dictated)  # type: ignore[arg-type]


def ready_service(**dictated: object) -> Service:
    model = toy_model()
    engine = Scripted(Script())
    engine.dictated = dictated
    service = Service(model.name)
    service.set_ready(engine, model)
    return service


def words(service: Service, stalled_s: float = 0.0) -> tuple[str, ...]:
    return words_for(service, round_limit_ms=1000.0, stalled_s=stalled_s)


@pytest.mark.parametrize("name", ["file", "abstract"])
def test_each_message_is_one_datagram_of_lines(tmp_path: Path, name: str):
    address = str(tmp_path / "notify") if name == "file" else f"@ignisd-test-{os.getpid()}"
    manager = Manager(address)
    try:
        Notifier({"NOTIFY_SOCKET": address}).tell("READY=1", "STATUS=serving")
        manager.listen()
        assert manager.heard == ["READY=1", "STATUS=serving"]
    finally:
        manager.close()


def test_nobody_who_listens_and_nobody_there_stop_nothing(tmp_path: Path):
    Notifier({}).tell("READY=1")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell("READY=1")


def test_a_manager_that_reads_nothing_holds_the_daemon_up_for_a_moment_only(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ignisd.notify._SEND_S", 0.01)
    notifier = Notifier({"NOTIFY_SOCKET": manager.address})
    long_lines = ("x" * 1024,) * 4

    def tell_often() -> None:
        for _ in range(400):
            notifier.tell(*long_lines)

    telling = threading.Thread(target=tell_often)
    telling.start()
    telling.join(60)
    assert not telling.is_alive()


@pytest.mark.parametrize(
    ("environ", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_period_is_the_managers_if_it_means_this_process(
    environ: dict[str, str], watchdog_s: float | None
):
    notifier = Notifier(environ)
    assert notifier.watchdog_s == watchdog_s
    assert notifier.beat_s <= (watchdog_s or 5.0) / (2 if watchdog_s else 1)


def test_a_load_that_moves_asks_for_time_and_one_that_stands_still_does_not():
    service = Service("ember")
    service.report_progress(0.42)
    assert words(service) == ("STATUS=loading ember, 42%", "EXTEND_TIMEOUT_USEC=120000000")
    assert words(service, stalled_s=901.0) == ("STATUS=loading ember, 42%",)


@pytest.mark.parametrize(
    ("stats", "fed"),
    [
        ({"busy": False, "idle_ms": 1e9}, True),
        ({"busy": True, "idle_ms": 999.0}, True),
        ({"busy": True, "idle_ms": 1001.0}, False),
        ({"busy": False, "alive": False}, False),
    ],
)
def test_the_watchdog_is_fed_by_progress_and_by_rest(stats: dict[str, object], fed: bool):
    assert ("WATCHDOG=1" in words(ready_service(**stats))) is fed


def test_a_failed_service_feeds_nobody_and_says_why():
    service = ready_service()
    service.set_failed("the engine has died; see the log")
    assert words(service) == ("STATUS=the engine has died; see the log",)


def test_the_status_tells_what_was_reused():
    counters = Counters().add(computed_tokens=300, device_tokens=900)
    service = ready_service(counters=counters, num_decoding=2, num_prefilling=1, num_queued=4)
    assert service.engine is not None
    line = status_line(service, service.engine.stats())
    assert line == "ready toy: 3 running, 4 waiting, 75% of 1200 prompt tokens reused"
    service.set_draining()
    assert status_line(service, service.engine.stats()).startswith("draining toy")
    fresh = ready_service()
    assert fresh.engine is not None
    assert status_line(fresh, fresh.engine.stats()) == "ready toy: 0 running, 0 waiting"


def test_the_status_tells_what_does_not_work_as_it_should():
    service = ready_service(skipped_in_row=3)
    assert service.engine is not None
    stats = service.engine.stats()
    assert status_line(service, stats) == "ready toy: 0 running, 0 waiting, degraded: reuse"
    service.set_ready(service.engine, toy_model(), Facts(inexact=("sums",)))
    assert status_line(service, stats).endswith("degraded: reuse, exact off")


async def test_it_keeps_telling_at_the_beat_of_the_watchdog(manager: Manager):
    environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "25000"}
    telling = asyncio.create_task(keep_telling(Notifier(environ), ready_service(), 1000.0))
    await asyncio.sleep(0.3)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    manager.listen()
    assert manager.count("WATCHDOG=1") >= 3


async def test_where_nobody_listens_there_is_nothing_to_keep_doing():
    await asyncio.wait_for(keep_telling(Notifier({}), ready_service(), 1000.0), 5)


def test_the_end_asks_for_the_time_that_draining_may_take(manager: Manager):
    Notifier({"NOTIFY_SOCKET": manager.address}).tell_stopping(30.0)
    manager.listen()
    assert manager.heard == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=60000000"]


def test_a_daemon_says_when_it_is_ready_that_it_lives_and_that_it_leaves(
    tmp_path: Path, manager: Manager
):
    cache = str(Path.cwd() / ".pytest_cache" / "ignisd")
    # The manager opens the port too, as number 3, and an early caller waits in its queue.
    listener = socket.create_server(("127.0.0.1", 0))
    bind = f"127.0.0.1:{listener.getsockname()[1]}"
    flags = ["--server-bind", bind, "--compile-cache-dir", cache]
    script = f'exec 3<&{listener.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
    with listener, (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", sys.executable, "-m", "ignisd", *flags],
            pass_fds=[listener.fileno()],
            stderr=log,
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "NOTIFY_SOCKET": manager.address,
                "WATCHDOG_USEC": "2000000",
            },
        )
    try:
        manager.wait_for("READY=1", within_s=READY_S)
        assert "EXTEND_TIMEOUT_USEC=120000000" in manager.heard
        assert any(word.startswith("STATUS=loading ember, ") for word in manager.heard)
        manager.wait_for("WATCHDOG=1")
        assert manager.heard.index("WATCHDOG=1") > manager.heard.index("READY=1")
        manager.wait_for("STATUS=ready ember: 0 running, 0 waiting")
        assert "STOPPING=1" not in manager.heard
        assert httpx.get(f"http://{bind}/health", timeout=30).json()["status"] == "ready"
        process.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        assert process.wait(60) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
