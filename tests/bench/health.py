"""How long /health takes while every lane decodes and prompts are being read.

usage: python -m tests.bench.health CHECKPOINT [--seconds N]

Starts a daemon on the checkpoint, keeps more streams open than there are lanes, each with a prompt
that was never sent before, and asks /health twenty times a second. Prints percentiles.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

from tests.daemon.running import Daemon, running

NUM_CLIENTS = 6
PROMPT_WORDS = 1200
ANSWER_TOKENS = 150
INTERVAL_S = 0.05


def talk(daemon: Daemon, number: int, stop: threading.Event) -> None:
    """One stream after another until told to stop; the daemon may be gone before the stream."""
    turn = 0
    with httpx.Client(timeout=None) as session, contextlib.suppress(httpx.TransportError):
        while not stop.is_set():
            turn += 1
            text = f"client {number} turn {turn} " + f"word{number} and {turn} " * PROMPT_WORDS
            body = {
                "messages": [{"role": "user", "content": text[: 6 * PROMPT_WORDS]}],
                "max_tokens": ANSWER_TOKENS,
                "stream": True,
            }
            url = f"{daemon.url}/v1/chat/completions"
            with session.stream("POST", url, json=body) as answer:
                for _ in answer.iter_lines():
                    if stop.is_set():
                        return


def sample(daemon: Daemon, seconds: float) -> list[float]:
    """Seconds that /health took, one connection kept alive."""
    took = []
    ends_s = time.monotonic() + seconds
    with httpx.Client(timeout=30) as session:
        while time.monotonic() < ends_s:
            began_s = time.monotonic()
            answer = session.get(f"{daemon.url}/health")
            assert answer.status_code == 200, answer.text
            took.append(time.monotonic() - began_s)
            time.sleep(INTERVAL_S)
    return took


def main() -> int:
    """Read the arguments, load the daemon, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    flags = ("--model", str(arguments.checkpoint), "--model-max-context", "8192")
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), *flags) as daemon:
        stop = threading.Event()
        clients = [
            threading.Thread(target=talk, args=(daemon, number, stop), daemon=True)
            for number in range(NUM_CLIENTS)
        ]
        for each in clients:
            each.start()
        time.sleep(5.0)
        took = sample(daemon, arguments.seconds)
        stop.set()
        lines = daemon.get("/metrics").splitlines()
    cuts = statistics.quantiles(took, n=100)
    print(
        f"/health under load: {len(took)} samples, p50 {cuts[49] * 1e3:.1f} ms, "
        f"p99 {cuts[98] * 1e3:.1f} ms, max {max(took) * 1e3:.1f} ms"
    )
    for name in ("ignis_prefill_chunks_total", "ignis_decode_steps_total", "ignis_rounds_total"):
        print(next(line for line in lines if line.startswith(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
