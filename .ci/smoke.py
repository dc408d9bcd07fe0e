"""Starts the installed `ignisd` with its embedded model and asks it the same thing twice.

usage: smoke.py SCRATCH_FOLDER
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

READY_S = 120
ANSWER_S = 120
STOP_S = 60
SYSTEM = "You are a careful assistant. " + "Remember what you are told, and answer briefly. " * 12


def main() -> int:
    """Exit status 0 when every answer is as it should be."""
    scratch = Path(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    # Away from the checkout, so that the installed packages are the ones that run.
    daemon = subprocess.Popen(
        [Path(sys.executable).parent / "ignisd", "--server-bind", f"127.0.0.1:{port}"],
        cwd=scratch,
        env={**os.environ, "XDG_CACHE_HOME": str(scratch / "cache")},
    )
    try:
        print(f"ready after {wait_until_ready(daemon, base):.1f} s")
        check(base)
        daemon.send_signal(signal.SIGTERM)
        status = daemon.wait(STOP_S)
    finally:
        daemon.kill()
    if status != 0:
        sys.exit(f"ignisd ended with status {status} after SIGTERM; wanted 0")
    return 0


def wait_until_ready(daemon: subprocess.Popen[bytes], base: str) -> float:
    """Seconds until /health answers 200."""
    start = time.monotonic()
    while time.monotonic() - start < READY_S:
        if daemon.poll() is not None:
            sys.exit(f"ignisd ended with status {daemon.returncode} before it was ready")
        try:
            call(base + "/health")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
        else:
            return time.monotonic() - start
    sys.exit(f"ignisd was not ready within {READY_S} s")


def check(base: str) -> None:
    """Ask for the models, the same answer twice, and the metrics."""
    models = [model["id"] for model in json.loads(call(base + "/v1/models"))["data"]]
    body = {
        "model": models[0],
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "Say hello."},
        ],
        "temperature": 0,
        "max_tokens": 16,
    }
    cold, warm = (json.loads(call(base + "/v1/chat/completions", body)) for _ in range(2))
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (cold, warm)]
    texts = [answer["choices"][0]["message"]["content"] for answer in (cold, warm)]
    print(f"{models[0]} said {texts[0]!r}; cached_tokens {cached[0]}, then {cached[1]}")
    assert cached[0] == 0 < cached[1], cached
    assert texts[0] == texts[1], texts
    assert "ignis_" in call(base + "/metrics")


def call(url: str, body: object = None) -> str:
    """The body of a 200 answer; a POST when there is a body to send."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        text: str = answer.read().decode()
        return text


if __name__ == "__main__":
    sys.exit(main())
