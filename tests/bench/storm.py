"""Hundreds of clients that leave at any moment: afterwards everything is as it was before.

usage: python -m tests.bench.storm [--requests N] [--seed N]

Requests of both classes press a daemon with little room, so that sequences wait, are evicted and
restored. Each is dropped at a random moment: while its body is sent, while it waits, is rendered,
read or decoded, or while its answer is read; streamed or plain; by a reset or by an orderly end.
Two clients that stay ask meanwhile, and their answers must be the cold ones. When all is quiet and
flushed, what the daemon holds must be what it held before: pages, slots, cells, lanes, files,
tasks, threads, descriptors, and its memory within a few MiB. Prints where requests were when they
were dropped. Ends with status 1 if anything was left, or answered otherwise than before.
"""

import argparse
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.bench.press import Press
from tests.bench.talks import (
    EVERYTHING_PAYS,
    PATH,
    SHAPE,
    TIMEOUT_S,
    Ask,
    Sizes,
    Told,
    ask,
    cold_answers,
)
from tests.daemon.running import Daemon, running

AT_ONCE = 24
WARM_UP = 100
"""Requests that are dropped before what is held is noted: memory that is used once stays."""
MOST_MORE_MIB = 8.0
_QUIET_S = 60.0
_SIZES = Sizes(system=60, user=120, answer_tokens=48)
_RESET = b"\x01\0\0\0\0\0\0\0"
"""SO_LINGER of no time: closing resets the connection."""


@dataclass(frozen=True, slots=True)
class Drop:
    """How a request is dropped.

    Args:
        part: of its body that is sent, 1 for all of it.
        pieces: of the answer that are read first; 0 for none.
        after_s: how long it is then waited.
        stream: whether the answer is streamed.
        reset: by a reset, or by an orderly end.
    """

    part: float
    pieces: int
    after_s: float
    stream: bool
    reset: bool

    @staticmethod
    def drawn(rng: random.Random) -> "Drop":
        """Any of them."""
        stream = rng.random() < 0.6
        return Drop(
            part=rng.random() if rng.random() < 0.08 else 1.0,
            pieces=rng.randrange(1, 20) if stream and rng.random() < 0.5 else 0,
            after_s=rng.choice((0.0, 0.002, 0.02, rng.uniform(0, 0.3), rng.expovariate(1.0))),
            stream=stream,
            reset=rng.random() < 0.5,
        )


@dataclass(slots=True)
class Storm:
    """What came of it.

    Args:
        before, after: what was held.
        ends: where requests were when they ended, by the daemon's own log.
        counters: of what happened inside.
        wrong: everything that should not have been.
    """

    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    counters: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def compare(self) -> None:
        """What is held after and was not before is wrong."""
        before, after = self.before, self.after
        self.wrong += [
            f"{name}: {before[name]:g} before, {after[name]:g} after"
            for name in before
            if name != "MiB" and before[name] != after[name]
        ]
        if after["MiB"] > before["MiB"] + MOST_MORE_MIB:
            self.wrong.append(f"{before['MiB']} MiB before, {after['MiB']} after")


def dropped(port: int, one: Ask, drop: Drop) -> None:
    """Send a request and leave."""
    content = json.dumps(one.body(stream=drop.stream)).encode()
    head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
    whole = head.encode() + content
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as raw:
        raw.sendall(whole[: int(len(whole) * drop.part)])
        for _ in range(drop.pieces):
            if not raw.recv(512):
                break
        time.sleep(drop.after_s)
        if drop.reset:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class Bench:
    """A storm over one daemon.

    Args:
        folder: for the daemon's files.
        requests: that are dropped.
        flags: for the daemon, in addition.
        fault: that is planted in the daemon; `none` for none.
    """

    def __init__(
        self,
        folder: Path,
        requests: int,
        seed: int = 1,
        flags: Sequence[str] = (),
        fault: str = "none",
    ) -> None:
        self._folder = folder
        self._requests = requests
        self._seed = seed
        self._told = folder / "held.json"
        self._program = ("-m", "tests.bench.watched", str(self._told), fault)
        self._flags = (
            *SHAPE,
            *EVERYTHING_PAYS,
            *("--reuse-kv-host-pool-bytes", "6M", "--reuse-window-bytes", "128K"),
            *("--kv-disk-path", str(folder / "kv"), "--kv-disk-bytes", "24M"),
            *("--log-format", "json"),
            *flags,
        )
        self._asks = [
            Ask(f"storm {seed}", talk, turn, _SIZES, "agent" if talk % 2 else "interactive")
            for talk in range(16)
            for turn in range(3)
        ]

    def run(self) -> Storm:
        """Warm up, note what is held, storm, and note it again."""
        storm = Storm()
        with running(self._folder, *self._flags, program=self._program) as daemon:
            cold = cold_answers(daemon.url, self._asks)
            self._blow(daemon, max(WARM_UP, self._requests // 2), cold, storm)
            storm.before = self._held(daemon)
            began = len(daemon.log.read_text().splitlines())
            self._blow(daemon, self._requests, cold, storm)
            storm.after = self._held(daemon)
            storm.compare()
            self._asks_again(daemon, cold, storm)
            storm.counters = _counters(daemon)
            storm.ends = _ends(daemon.log.read_text().splitlines()[began:])
            storm.wrong += ["a traceback in the log"] * ("Traceback" in daemon.log.read_text())
        return storm

    def _blow(
        self, daemon: Daemon, requests: int, cold: Mapping[tuple[int, int], Told], storm: Storm
    ) -> None:
        """So many requests that are dropped, beside some that are not."""
        rng = random.Random(f"{self._seed} {requests}")
        drops = [(rng.choice(self._asks), Drop.drawn(rng)) for _ in range(requests)]
        staying = Press(daemon.url, self._asks, cold, f"{self._seed} stays", clients=2)
        staying.start()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(lambda pair: dropped(daemon.port, *pair), drops))
        staying.stop()
        storm.wrong += staying.wrong
        if not staying.tiers:
            storm.wrong.append("nobody was answered meanwhile")

    def _held(self, daemon: Daemon) -> dict[str, float]:
        """What is held once all is quiet and flushed."""
        ends_s = time.monotonic() + _QUIET_S
        while time.monotonic() < ends_s:
            told = self._asked(daemon)
            busy = ("sequences", "streams", "captures under way", "files under way")
            if not any(told[name] for name in busy):
                break
            time.sleep(0.2)
        httpx.post(f"{daemon.url}/v1/reuse/flush", timeout=TIMEOUT_S).raise_for_status()
        told = self._asked(daemon)
        while (again := self._asked(daemon)) != told and time.monotonic() < ends_s:
            told = again
        return {**told, **_of_process(daemon.process.pid)}

    def _asked(self, daemon: Daemon) -> dict[str, float]:
        """What the daemon says that it holds, a moment after all connections were closed."""
        time.sleep(1.0)
        self._told.unlink(missing_ok=True)
        daemon.process.send_signal(signal.SIGUSR2)
        ends_s = time.monotonic() + _QUIET_S
        while not self._told.exists():
            assert time.monotonic() < ends_s, "the daemon does not tell what it holds"
            time.sleep(0.05)
        told: dict[str, float] = json.loads(self._told.read_text())
        return told

    def _asks_again(
        self, daemon: Daemon, cold: Mapping[tuple[int, int], Told], storm: Storm
    ) -> None:
        with httpx.Client(base_url=daemon.url, timeout=TIMEOUT_S) as client:
            for one in self._asks[::5]:
                if ask(client, one).said != cold[one.talk, one.turn].said:
                    storm.wrong.append(f"talk {one.talk}, turn {one.turn}: another answer after it")


def _of_process(pid: int) -> dict[str, float]:
    """Descriptors, and memory in MiB."""
    proc = Path("/proc") / str(pid)
    resident = int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {"descriptors": len(list((proc / "fd").iterdir())), "MiB": round(resident / 2**20, 1)}


def _counters(daemon: Daemon) -> dict[str, float]:
    """Totals of what happened inside, as far as they are told."""
    found: dict[str, float] = {}
    for line in daemon.get("/metrics").splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(("ignis_evict", "ignis_resum", "ignis_restor", "ignis_recomput")):
            found[name] = float(value)
    return {name: value for name, value in found.items() if value and "_bucket" not in name}


def _ends(lines: Sequence[str]) -> Counter[str]:
    """Where requests were when they ended: one line of the log each."""
    ends: Counter[str] = Counter()
    for line in lines:
        told = json.loads(line) if line.startswith("{") else {}
        if told.get("event") != "done":
            continue
        if told["finish"] != "cancelled":
            ends[f"answered ({told['finish']})"] += 1
        elif "lane" not in told and not told["evictions"]:
            ends["dropped while waiting"] += 1
        elif told["generated_tokens"]:
            ends["dropped while decoding"] += 1
        else:
            ends["dropped while restoring or reading"] += 1
        if told["evictions"]:
            ends["of all, had been evicted"] += 1
        if told["tier"] in ("kv_ram", "kv_disk"):
            ends[f"of all, resumed from {told['tier']}"] += 1
    return ends


def report(storm: Storm, requests: int) -> int:
    """What came of it; the exit status."""
    print(f"{requests} requests dropped; by the daemon's log:")
    for name, count in sorted(storm.ends.items()):
        print(f"  {name}: {count}")
    in_engine = sum(count for name, count in storm.ends.items() if name.startswith("dropped"))
    print(f"  dropped before they came to the engine, or as they ended: {requests - in_engine}")
    for name, value in sorted(storm.counters.items()):
        print(f"  {name}: {value:g}")
    print("held before and after:")
    for name, value in storm.before.items():
        print(f"  {name}: {value:g} {storm.after[name]:g}")
    print("\n".join(f"FAILED: {text}" for text in storm.wrong) or "nothing was left")
    return 1 if storm.wrong else 0


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        storm = Bench(Path(folder), arguments.requests, arguments.seed).run()
    return report(storm, arguments.requests)


if __name__ == "__main__":
    sys.exit(main())
