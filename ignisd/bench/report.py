"""Numbers for people and for programs: medians over repetitions, tables, JSON lines."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TextIO

from ignisd.bench.moves import Move
from ignisd.bench.reuse import COLD, ReuseRun
from ignisd.bench.speed import Load, SpeedRun

_DIFFERS = " ≠"


@dataclass(frozen=True, slots=True)
class ReuseRow:
    """All repetitions of one case on one target.

    Args:
        prompt_tokens, cached_tokens: medians; cached None where the target does not say.
        ttft_s, lowest_s, highest_s: median and bounds of the time to first token.
        cold_s: median over cold answers to the same prompts; over the first prompt where the
            target cannot answer cold; None where neither is to compare with.
        same: whether answers agreed with cold ones; None where none could be compared.
    """

    target: str
    case: str
    prompt_tokens: float
    cached_tokens: float | None
    ttft_s: float
    lowest_s: float
    highest_s: float
    cold_s: float | None
    same: bool | None

    @property
    def ratio(self) -> float | None:
        """How many times as long a cold answer takes."""
        return None if self.cold_s is None or self.ttft_s <= 0 else self.cold_s / self.ttft_s


def reuse_rows(runs: Sequence[ReuseRun]) -> list[ReuseRow]:
    """A row for each target and case, in the order in which they were measured."""
    rows = []
    for target, case in dict.fromkeys((run.target, run.group) for run in runs):
        mine = [run for run in runs if (run.target, run.group) == (target, case)]
        times = [run.answer.ttft_s for run in mine]
        cached = [run.answer.cached_tokens for run in mine if run.answer.cached_tokens is not None]
        compared = [run.same for run in mine if run.same is not None]
        rows.append(
            ReuseRow(
                target=target,
                case=case,
                prompt_tokens=statistics.median(run.answer.prompt_tokens for run in mine),
                cached_tokens=statistics.median(cached) if cached else None,
                ttft_s=statistics.median(times),
                lowest_s=min(times),
                highest_s=max(times),
                cold_s=_cold_s(mine, [run for run in runs if run.target == target]),
                same=all(compared) if compared else None,
            )
        )
    return rows


def _cold_s(mine: Sequence[ReuseRun], all_runs: Sequence[ReuseRun]) -> float | None:
    own = [run.cold.ttft_s for run in mine if run.cold is not None]
    if own:
        return statistics.median(own)
    if mine[0].group == "others" or any(run.cold is not None for run in all_runs):
        return None
    return statistics.median(run.answer.ttft_s for run in all_runs if run.group == COLD)


def reuse_table(rows: Sequence[ReuseRow]) -> str:
    """One table a target and, for several, one of their times side by side."""
    parts = []
    targets = list(dict.fromkeys(row.target for row in rows))
    for target in targets:
        head = ("case", "prompt", "cached", "computed", "ttft ms", "min", "max", "cold ms", "ratio")
        lines = [_reuse_line(row) for row in rows if row.target == target]
        parts.append(f"{target}: time to first token\n{_table(head, lines)}")
    if len(targets) > 1:
        cells = {(row.target, row.case): row for row in rows}
        lines = []
        for case in dict.fromkeys(row.case for row in rows):
            times = [cells[target, case].ttft_s for target in targets]
            lines.append((case, *_against_first(times, [_ms(time) for time in times])))
        parts.append(f"ttft ms (x {targets[0]})\n{_table(('case', *targets), lines)}")
    return "\n\n".join(parts)


def _reuse_line(row: ReuseRow) -> tuple[str, ...]:
    computed = None if row.cached_tokens is None else row.prompt_tokens - row.cached_tokens
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    return (
        row.case + (_DIFFERS if row.same is False else ""),
        f"{row.prompt_tokens:.0f}",
        "-" if row.cached_tokens is None else f"{row.cached_tokens:.0f}",
        "-" if computed is None else f"{computed:.0f}",
        _ms(row.ttft_s),
        _ms(row.lowest_s),
        _ms(row.highest_s),
        "-" if row.cold_s is None else _ms(row.cold_s),
        ratio,
    )


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """All repetitions of one load on one target: median and bounds of tokens a second."""

    target: str
    load: Load
    rate: float | None
    lowest: float | None
    highest: float | None


def speed_rows(runs: Sequence[SpeedRun]) -> list[SpeedRow]:
    """A row for each target and load, in the order in which they were measured."""
    rows = []
    for target, load in dict.fromkeys((run.target, run.load) for run in runs):
        mine = (run.rate for run in runs if (run.target, run.load) == (target, load))
        rates = [rate for rate in mine if rate is not None]
        middle = statistics.median(rates) if rates else None
        rows.append(
            SpeedRow(target, load, middle, min(rates, default=None), max(rates, default=None))
        )
    return rows


def speed_table(rows: Sequence[SpeedRow]) -> str:
    """Tokens a second of all lanes together: median (lowest to highest)."""
    targets = list(dict.fromkeys(row.target for row in rows))
    cells = {(row.target, row.load): row for row in rows}
    lines = []
    for load in dict.fromkeys(row.load for row in rows):
        mine = [cells[target, load] for target in targets]
        shown = [
            "-" if row.rate is None else f"{row.rate:.1f} ({row.lowest:.1f} to {row.highest:.1f})"
            for row in mine
        ]
        cell = _against_first([row.rate for row in mine], shown)
        lines.append((load.kind, f"{load.num_tokens} x {load.lanes}", *cell))
    table = "tokens/s\n" + _table(("what", "tokens x lanes", *targets), lines)
    untold = sorted({row.target for row in rows if row.rate is None})
    if not untold:
        return table
    names = ", ".join(untold)
    return f"{table}\n-: answers of {names} ended before their full length, or the time is noise"


def tier_table(moves: Sequence[Move]) -> str:
    """A line for each kind of move: medians, and its rate against that of a plain copy."""
    head = ("what", "MiB", "ms", "GB/s", "against", "GB/s", "share", "claim")
    return _table(head, [_move_line(move) for move in moves])


def _move_line(move: Move) -> tuple[str, ...]:
    claim = "-"
    if move.least is not None:
        claim = f"{move.least:.0%} {'ok' if move.holds else 'FAILED'}"
    return (
        move.name,
        f"{move.num_bytes / 2**20:.2f}" if move.num_bytes else "-",
        _ms(statistics.median(move.spent_s)),
        _rate(move.num_bytes, move.spent_s),
        move.against or "-",
        _rate(move.num_bytes, move.base_s),
        "-" if move.share is None else f"{move.share:.0%}",
        claim,
    )


def _rate(num_bytes: int, spent_s: Sequence[float]) -> str:
    return f"{num_bytes / statistics.median(spent_s) / 1e9:.2f}" if num_bytes and spent_s else "-"


def move_record(move: Move) -> dict[str, object]:
    """All that was measured of a kind of move."""
    return {"type": "move", **asdict(move), "share": move.share, "holds": move.holds}


def _against_first(values: Sequence[float | None], shown: Sequence[str]) -> list[str]:
    """Each cell but the first with its multiple of the first."""
    base = values[0]
    cells = [shown[0]]
    for value, text in zip(values[1:], shown[1:], strict=True):
        cells.append(f"{text} ({value / base:.2f}x)" if base and value is not None else text)
    return cells


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        texts = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(texts).rstrip()

    return "\n".join([line(head), *map(line, lines)])


def write_lines(out: TextIO, records: Iterable[Mapping[str, object]]) -> None:
    """JSON, an object a line."""
    for record in records:
        out.write(json.dumps(record) + "\n")


def run_record(run: ReuseRun | SpeedRun) -> dict[str, object]:
    """One measurement; what was said is left out."""
    record = asdict(run)
    for name in ("answer", "cold"):
        if record.get(name):
            del record[name]["said"]
    if isinstance(run, SpeedRun):
        record["rate"] = run.rate
    return {"type": "reuse" if isinstance(run, ReuseRun) else "speed", **record}


def row_record(row: ReuseRow | SpeedRow) -> dict[str, object]:
    """One line of a table."""
    record = asdict(row)
    if isinstance(row, ReuseRow):
        record["ratio"] = row.ratio
    return {"type": "reuse_median" if isinstance(row, ReuseRow) else "speed_median", **record}
