"""A daemon as a user starts it: a process of its own, on a free port."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY_S = 240.0
STOP_S = 60.0


@dataclass(frozen=True)
class Daemon:
    """A running daemon and where its log goes."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> str:
        """The body of an answer."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def running(
    folder: Path, *flags: str, program: tuple[str, ...] = ("-m", "ignisd")
) -> Iterator[Daemon]:
    """A daemon that is ready; killed at the end if it still runs.

    Args:
        program: what Python runs; another one may plant a fault first.
    """
    port = free_port()
    log = folder / "ignisd.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, *program, "--server-bind", f"127.0.0.1:{port}", *flags],
            stdout=sink,
            stderr=sink,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
    daemon = Daemon(process, port, log)
    try:
        wait_until_ready(daemon)
        yield daemon
    finally:
        process.kill()
        process.wait()


def wait_until_ready(daemon: Daemon) -> None:
    """Asks /health until it says ready."""
    ends_s = time.monotonic() + READY_S
    while time.monotonic() < ends_s:
        assert daemon.process.poll() is None, daemon.log.read_text()
        try:
            if json.loads(daemon.get("/health"))["status"] == "ready":
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"not ready within {READY_S} s:\n{daemon.log.read_text()}")
