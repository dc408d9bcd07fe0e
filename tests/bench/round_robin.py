"""Thirty conversations take turns on two lanes: what each tier gives back, and how full it gets.

usage: python -m tests.bench.round_robin [--talks N] [--rounds N]

The device holds eight states, kv_ram those of a few more, kv_disk all. Each
visit asks once or twice, and some conversations come back after six others, so that what is wanted
was left just now, a while ago, or a round ago. Prints hits by tier and by kind, cached and computed
tokens, and the most bytes in each tier, sampled ten times a second. Ends with status 1 if an answer
is not the cold one, a tier gave nothing or was over its ceiling, a conversation found less than its
last state although that was not given up, more than a fifth was given up on the way down, or the
device has read other than the answers say.
"""

import argparse
import re
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.bench.press import bytes_of
from tests.bench.talks import (
    EVERYTHING_PAYS,
    SHAPE,
    TIMEOUT_S,
    Ask,
    Sizes,
    Told,
    ask,
    cold_answers,
)
from tests.daemon.running import Daemon, running

LANES = 2
PAGE = 64
RAM_BYTES = 8 << 20
DISK_BYTES = 96 << 20
MOST_LOST = 0.2
GAVE_WAY = ("evicted", "no_slot")
_SAMPLE_S = 0.1
_BACK = 6
_OPENER_TOKENS = 16
"""Between the last state of a prompt and its end: the opening of the answer."""
_SIZES = Sizes(system=60, user=80, answer_tokens=12)
_METRIC = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.M)


@dataclass(frozen=True, slots=True)
class Row:
    """One request.

    Args:
        promised: tokens that the last state of its conversation holds.
        same: whether the answer is the cold one.
    """

    one: Ask
    told: Told
    promised: int
    same: bool


@dataclass(slots=True)
class Levels:
    """How full the tiers were.

    Args:
        samples: how often that was asked.
        most, ceiling: bytes by tier.
        over: what was seen beyond a ceiling.
    """

    samples: int = 0
    most: Counter[str] = field(default_factory=Counter)
    ceiling: dict[str, int] = field(default_factory=dict)
    over: list[str] = field(default_factory=list)

    def note(self, tier: str, num_bytes: int, ceiling: int) -> None:
        """One sample of one tier."""
        self.most[tier] = max(self.most[tier], num_bytes)
        self.ceiling[tier] = ceiling
        if num_bytes > ceiling:
            self.over.append(f"{num_bytes} bytes in {tier}, whose ceiling is {ceiling}")


class Gauges(threading.Thread):
    """Asks a daemon ten times a second how full its tiers are, and adds up the files itself."""

    def __init__(self, daemon: Daemon, root: Path) -> None:
        super().__init__()
        self._daemon = daemon
        self._root = root
        self._ended = threading.Event()
        self.levels = Levels()

    def __enter__(self) -> Levels:
        self.start()
        return self.levels

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Sample until told to stop."""
        while not self._ended.wait(_SAMPLE_S):
            used: Counter[str] = Counter()
            total: Counter[str] = Counter()
            for labels, value in metrics(self._daemon)["ignis_tier_bytes"]:
                total[labels["tier"]] += int(value)
                used[labels["tier"]] += int(value) * (labels["owner"] != "free")
            for tier, num_bytes in total.items():
                self.levels.note(tier, used[tier], num_bytes)
            self.levels.note("files", bytes_of(self._root), DISK_BYTES)
            self.levels.samples += 1


def metrics(daemon: Daemon) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Every metric by its name: labels and value."""
    found = defaultdict(list)
    for name, labels, value in _METRIC.findall(daemon.get("/metrics")):
        found[name].append((dict(re.findall(r'(\w+)="(.*?)"', labels)), float(value)))
    return found


def device_read(daemon: Daemon) -> int:
    """Prompt tokens that the device has read."""
    [read] = [
        value
        for labels, value in metrics(daemon)["ignis_prompt_tokens_total"]
        if labels["source"] == "computed"
    ]
    return int(read)


def visits(num_talks: int, rounds: int) -> list[list[Ask]]:
    """What each conversation asks when its turn comes, and who comes back between."""
    turns: Counter[int] = Counter()
    told: list[list[Ask]] = []

    def visit(talk: int, requests: int) -> None:
        first = turns[talk]
        turns[talk] += requests
        told.append([Ask("round robin", talk, first + step, _SIZES) for step in range(requests)])

    for _ in range(rounds):
        for talk in range(num_talks):
            visit(talk, 1 + talk % 2)
            if talk >= _BACK and talk % 3 == 0:
                visit(talk - _BACK, 1)
    return told


def play(daemon: Daemon, num_talks: int, rounds: int) -> list[Row]:
    """All rounds, each conversation in turn, two at a time."""
    every = visits(num_talks, rounds)
    cold = cold_answers(daemon.url, [one for asks in every for one in asks], LANES)
    last: dict[int, int] = {}
    rows: list[Row] = []
    with httpx.Client(base_url=daemon.url, timeout=TIMEOUT_S) as client:

        def visit(asks: Sequence[Ask]) -> None:
            for one in asks:
                told = ask(client, one)
                same = told.said == cold[one.talk, one.turn].said
                rows.append(Row(one, told, last.get(one.talk, 0), same))
                last[one.talk] = max(told.prompt - _OPENER_TOKENS, 0) // PAGE * PAGE

        with ThreadPoolExecutor(LANES) as lanes:
            list(lanes.map(visit, every))
    return rows


def table(name: str, groups: Mapping[str, Sequence[Row]]) -> str:
    """Requests and tokens of each group, and of all."""
    head = (name, "requests", "prompt", "cached", "computed", "share cached")
    every = [row for rows in groups.values() for row in rows]
    lines: list[tuple[str, ...]] = [head]
    for label, rows in [*sorted(groups.items()), ("all", every)]:
        prompt = sum(row.told.prompt for row in rows)
        cached = sum(row.told.cached for row in rows)
        numbers = (len(rows), prompt, cached, prompt - cached)
        lines.append((label, *(f"{one:,}" for one in numbers), f"{cached / prompt:.1%}"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def report(rows: Sequence[Row], levels: Levels, read: int) -> int:
    """Print the tables; the exit status.

    Args:
        read: prompt tokens that the device read for these rows.
    """
    tiers, kinds = defaultdict(list), defaultdict(list)
    for row in rows:
        tiers[row.told.tier or "none"].append(row)
        kinds[row.told.kind or "none"].append(row)
    print(table("tier", tiers), table("kind", kinds), sep="\n\n", end="\n\n")
    for tier, most in sorted(levels.most.items()):
        ceiling = levels.ceiling[tier]
        print(f"{tier}: {most / 2**20:.1f} MiB at most, of {ceiling / 2**20:.1f}")
    print(f"sampled {levels.samples} times; {sum(row.same for row in rows)} of {len(rows)} equal")
    told = sum(row.told.prompt - row.told.cached for row in rows)
    print(f"the device read {read:,} prompt tokens; by the answers, {told:,}")
    wrong = list(dict.fromkeys(levels.over))
    if read != told:
        wrong.append("the device has read other than the answers say")
    used = {(row.told.tier or "").partition(" ")[0] for row in rows}
    missing = {"device", "kv_ram", "kv_disk"} - used
    wrong += [f"nothing was resumed from {tier}" for tier in sorted(missing)]
    short = [row for row in rows if row.told.cached < row.promised]
    left = sum(row.promised for row in rows)
    lost = sum(row.promised - row.told.cached for row in short)
    print(
        f"{left:,} tokens were left to those who came back; {len(short)} of them found {lost:,} "
        f"of these lost on the way down ({lost / left:.1%})"
    )
    if lost > MOST_LOST * left:
        wrong.append(f"more than {MOST_LOST:.0%} were lost")
    for row in rows:
        name = f"talk {row.one.talk}, turn {row.one.turn} ({row.told.tier}, {row.told.miss})"
        if not row.same:
            wrong.append(f"{name}: another answer than the cold one")
        if row.told.cached < row.promised and row.told.miss not in GAVE_WAY:
            wrong.append(f"{name}: {row.told.cached} tokens cached, {row.promised} were left")
    print("\n".join(f"FAILED: {text}" for text in wrong) or "nothing was wrong")
    return 1 if wrong else 0


def flags(folder: Path) -> tuple[str, ...]:
    """Of the daemon."""
    return (
        *SHAPE,
        *EVERYTHING_PAYS,
        *("--reuse-retained-host", "7", "--reuse-window-bytes", "4M"),
        *("--reuse-kv-host-pool-bytes", str(RAM_BYTES)),
        *("--kv-disk-path", str(folder / "kv"), "--kv-disk-bytes", str(DISK_BYTES)),
    )


def run(
    folder: Path,
    num_talks: int,
    rounds: int,
    *more: str,
    program: tuple[str, ...] = ("-m", "ignisd"),
) -> int:
    """Start a daemon, play, report."""
    with running(folder, *flags(folder), *more, program=program) as daemon:
        with Gauges(daemon, folder / "kv") as levels:
            rows = play(daemon, num_talks, rounds)
        cold = sum(row.told.prompt for row in rows)
        return report(rows, levels, device_read(daemon) - cold)


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--talks", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder), arguments.talks, arguments.rounds)


if __name__ == "__main__":
    sys.exit(main())
