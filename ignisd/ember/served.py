"""The same probes through a daemon: cold, resumed, from each lower tier, after a restart.

A state that comes back is the right one when the answers are those of a cold prompt. Each pass
tells how many answers are as expected, how many equal the cold ones, and how many prompts were
resumed from the tier that the pass is about.
"""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ignisd.ember.probes import MOST_NEW_TOKENS, Probe
from ignisd.ember.talk import Message

READY_S = 600.0
_ANSWER_S = 600.0
_STOP_S = 120.0
_SERVING = re.compile(r" serving bind=(\S+)")
_SMALL_RAM = "4M"
_LARGE_RAM = "256M"

Ask = Callable[[Probe], "Said"]


@dataclass(frozen=True, slots=True)
class Said:
    """An answer of the daemon.

    Args:
        tier: what the prompt was resumed from; None if it was read anew.
    """

    content: str
    reasoning: str
    calls: tuple[tuple[str, Any], ...]
    tier: str | None

    def equals(self, expected: Message) -> bool:
        """Whether it is the expected message."""
        calls = [each["function"] for each in expected.get("tool_calls", ())]
        return (
            self.content == expected["content"]
            and self.reasoning == expected.get("reasoning_content", "")
            and self.calls == tuple((each["name"], each["arguments"]) for each in calls)
        )

    def same_as(self, other: "Said") -> bool:
        """Whether both say the same, wherever they come from."""
        return (self.content, self.reasoning, self.calls) == (
            other.content, other.reasoning, other.calls,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pass:
    """All probes asked once, in one way; `tier` is the one that they should be resumed from."""

    name: str
    tier: str | None
    said: tuple[Said, ...]


def body_of(probe: Probe, reuse: bool = True) -> dict[str, Any]:
    """The request as a client sends it: arguments of calls as text, results with the call's id."""
    messages = []
    for message in probe.messages:
        calls = [
            {
                "id": f"call_{index}",
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(call["function"]["arguments"]),
                },
            }
            for index, call in enumerate(message.get("tool_calls", ()))
        ]
        named = {"tool_call_id": "call_0"} if message["role"] == "tool" else {}
        messages.append(message | named | ({"tool_calls": calls} if calls else {}))
    body: dict[str, Any] = {
        "messages": messages,
        "temperature": 0,
        "max_tokens": MOST_NEW_TOKENS,
        "enable_thinking": probe.enable_thinking,
        "return_reuse": True,
        "reuse": reuse,
    }
    return body | ({"tools": list(probe.tools)} if probe.tools else {})


def completed(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The chat completion that a daemon makes of a body; raises OSError where it does not."""
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
        told: dict[str, Any] = json.load(answer)
    return told


def asked(url: str, probe: Probe, reuse: bool = True) -> Said:
    """Asks a daemon; raises OSError where it does not answer."""
    told = completed(url, body_of(probe, reuse))
    message = told["choices"][0]["message"]
    calls = tuple(
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    )
    return Said(
        message["content"] or "",
        message.get("reasoning_content") or "",
        calls,
        told["ignis_reuse"]["tier"],
    )


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[str]:
    """The URL of a daemon of its own process, which is told to end at the end.

    Raises:
        RuntimeError: it ended, or was not ready in time; with what it wrote.
    """
    log = folder / "ignisd.log"
    with log.open("wb") as sink:
        command = [sys.executable, "-m", "ignisd", "--server-bind", "127.0.0.1:0", *flags]
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:
        yield f"http://{_place(process, log)}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_S)


def _place(process: "subprocess.Popen[bytes]", log: Path) -> str:
    ends_s = time.monotonic() + READY_S
    while time.monotonic() < ends_s and process.poll() is None:
        found = _SERVING.search(log.read_text())
        if found is not None:
            return found[1]
        time.sleep(0.2)
    raise RuntimeError(f"the daemon is not ready:\n{log.read_text()[-4000:]}")


def passes(model: Path, probes: Sequence[Probe], folder: Path) -> Iterator[Pass]:
    """The passes, the cold one first.

    Few slots are left to the device, so that what is retained goes down: into a kv_ram that has
    room for everything, or through one that has room for a few states into files. What was asked
    last still lies higher up, so with few probes not all are resumed from where they should be.

    Args:
        folder: for logs and files, empty.
    """
    flags = (
        *("--model", str(model), "--reuse-retained-host", "2", "--reuse-kv-ram-floor", "64"),
        *("--compile-cache-dir", str(folder / "compiled")),
    )
    with running(folder, *flags, "--reuse-kv-host-pool-bytes", _LARGE_RAM) as url:
        yield Pass("cold", None, tuple(asked(url, each, reuse=False) for each in probes))
        first = [(asked(url, each), asked(url, each)) for each in probes]
        yield Pass("asked again", "device", tuple(again for _, again in first))
        yield Pass("from kv_ram", "kv_ram", tuple(asked(url, each) for each in probes))
    files = (
        *("--kv-disk-path", str(folder / "files"), "--kv-disk-bytes", "1G"),
        *("--kv-disk-floor", "64", "--reuse-kv-host-pool-bytes", _SMALL_RAM),
    )
    with running(folder, *flags, *files) as url:
        for each in probes:
            asked(url, each)
        yield Pass("from kv_disk", "kv_disk", tuple(asked(url, each) for each in probes))
    with running(folder, *flags, *files) as url:
        yield Pass("after a restart", "kv_disk", tuple(asked(url, each) for each in probes))


@dataclass(frozen=True, slots=True)
class Count:
    """What a pass came to."""

    name: str
    num_probes: int
    num_right: int
    num_as_cold: int
    num_resumed: int | None

    def line(self) -> str:
        """The line as it is printed."""
        resumed = "" if self.num_resumed is None else str(self.num_resumed)
        rate = self.num_right / self.num_probes
        return (
            f"{self.name:<28} {self.num_probes:>7} {rate:>8.1%} {self.num_as_cold:>8} {resumed:>8}"
        )


HEADING = f"{'through a daemon':<28} {'probes':>7} {'exact':>8} {'as cold':>8} {'resumed':>8}"


def counted(one: Pass, cold: Pass, probes: Sequence[Probe]) -> Count:
    """Compares a pass with what was expected and with the cold pass."""
    return Count(
        one.name,
        len(probes),
        sum(said.equals(probe.expected) for said, probe in zip(one.said, probes, strict=True)),
        sum(said.same_as(other) for said, other in zip(one.said, cold.said, strict=True)),
        None if one.tier is None else sum(said.tier == one.tier for said in one.said),
    )
