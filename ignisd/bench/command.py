"""`ignisd bench`: measures what the plan says, and shows it if it is sound."""

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TextIO

from ignisd.bench import report
from ignisd.bench.contender import Contender, prepare
from ignisd.bench.machine import machine_block
from ignisd.bench.plan import COMPARE, REUSE, STDOUT, TIERS, Plan
from ignisd.bench.reuse import ReuseRun, measure_reuse
from ignisd.bench.server import ServerTarget
from ignisd.bench.speed import SpeedRun, measure_speed
from ignisd.bench.target import BenchError, Target
from ignisd.errors import ConfigError, IgnisError
from ignisd.resolve import Resolved
from ignisd.settings import Settings

_UNSOUND = 1
"""Exit status of a run whose numbers are not shown, or of tiers slower than they are to be."""
_INTERRUPTED = 130
"""What a shell makes of an interrupt."""


def run(
    plan: Plan, resolved: Resolved, environ: Mapping[str, str], out: TextIO | None = None
) -> int:
    """Measure and show; the exit status.

    Args:
        out: where tables go; the standard output by default.

    Raises:
        ConfigError: the model or the file for JSON lines cannot be used.
    """
    out = out or sys.stdout
    _require_writable(plan)
    for warning in resolved.warnings:
        _say(warning)
    facts: dict[str, object] = {"type": "machine", **machine_block(), "what": plan.what}
    facts |= {"seed": plan.seed, "repetitions": plan.repetitions, "settle_s": plan.settle_s}
    facts["tolerated"] = sorted(plan.tolerated)
    if plan.own:
        facts["settings"] = {flag.key: value for flag, value, _ in resolved.lines()}
    if plan.what == TIERS:
        return _run_tiers(plan, resolved.settings, environ, facts, out)
    try:
        with ExitStack() as held:
            targets = _targets(plan, resolved, environ, held)
            contenders = [prepare(target, plan.seed) for target in targets]
            facts["targets"] = [_facts(contender) for contender in contenders]
            reuse_runs, speed_runs = _measure(plan, contenders)
    except ConfigError:
        raise
    except (KeyboardInterrupt, IgnisError) as error:
        return _nothing_shown(plan, facts, error, out)
    rows = report.reuse_rows(reuse_runs), report.speed_rows(speed_runs)
    facts["load_1m_after"] = machine_block()["load_1m"]
    records = [facts, *map(report.run_record, reuse_runs), *map(report.run_record, speed_runs)]
    records += [*map(report.row_record, rows[0]), *map(report.row_record, rows[1])]
    _write(plan, records, out)
    if plan.json_path != STDOUT:
        tables = [report.reuse_table(rows[0])] if rows[0] else []
        tables += [report.speed_table(rows[1])] if rows[1] else []
        out.write("\n\n".join([_head(facts, contenders), *tables]) + "\n")
    return 0


def _run_tiers(
    plan: Plan,
    settings: Settings,
    environ: Mapping[str, str],
    facts: dict[str, object],
    out: TextIO,
) -> int:
    """Measure what moves between tiers, and show it even where a claim fails."""
    from ignisd.bench.tiers import TierBench  # brings jax

    _say(f"loading {settings.model}")
    try:
        with (
            tempfile.TemporaryDirectory(
                prefix="ignisd-bench-", dir=settings.kv_disk_path
            ) as folder,
            closing(TierBench(settings, environ, Path(folder))) as bench,
        ):
            facts |= bench.facts
            moves = bench.measure(plan.repetitions, _say)
    except OSError as error:
        raise ConfigError(f"bench tiers: --kv-disk-path cannot be used: {error}") from error
    except (KeyboardInterrupt, BenchError) as error:
        return _nothing_shown(plan, facts, error, out)
    facts["load_1m_after"] = machine_block()["load_1m"]
    _write(plan, [facts, *map(report.move_record, moves)], out)
    if plan.json_path != STDOUT:
        told = f"a state of {facts['state_tokens']} tokens in pages of {facts['page_bytes']} bytes"
        out.write(f"{_machine(facts)}\n{told}\n\n{report.tier_table(moves)}\n")
    failed = [move for move in moves if not move.holds]
    for move in failed:
        _say(
            f"FAILED: {move.name} reaches {move.share:.0%} of {move.against}, not {move.least:.0%}"
        )
    return _UNSOUND if failed else 0


def _nothing_shown(
    plan: Plan, facts: dict[str, object], error: KeyboardInterrupt | IgnisError, out: TextIO
) -> int:
    """Say why a measurement has no result; the exit status."""
    if isinstance(error, KeyboardInterrupt):
        _say("bench: interrupted; nothing is shown")
        return _INTERRUPTED
    _say(f"bench: {error.message}")
    _write(plan, [facts, {"type": "refused", "message": error.message}], out)
    return _UNSOUND


def _targets(
    plan: Plan, resolved: Resolved, environ: Mapping[str, str], held: ExitStack
) -> list[Target]:
    targets: list[Target] = []
    if plan.own:
        from ignisd.bench.own import OwnTarget  # brings jax

        _say(f"loading {resolved.settings.model}")
        own = held.enter_context(closing(OwnTarget(resolved.settings, environ)))
        for finding in own.inexact:
            _say(f"exact=off: {finding}")
        targets.append(own)
    for server in plan.servers:
        target = ServerTarget(server.name, server.url, server.extra, server.key)
        targets.append(held.enter_context(closing(target)))
    return targets


def _measure(plan: Plan, contenders: Sequence[Contender]) -> tuple[list[ReuseRun], list[SpeedRun]]:
    def settle() -> None:
        time.sleep(plan.settle_s)

    reuse_runs: list[ReuseRun] = []
    if plan.what in (REUSE, COMPARE):
        reuse_runs += measure_reuse(
            contenders,
            plan.reuse,
            seed=plan.seed,
            repetitions=plan.repetitions,
            tolerated=plan.tolerated,
            settle=settle,
            report=_say,
        )
    speed_runs: list[SpeedRun] = []
    if plan.loads:
        speed_runs += measure_speed(
            contenders,
            plan.loads,
            answer_tokens=plan.answer_tokens,
            seed=plan.seed,
            repetitions=plan.repetitions,
            tolerated=plan.tolerated,
            settle=settle,
            report=_say,
        )
    return reuse_runs, speed_runs


def _facts(contender: Contender) -> dict[str, object]:
    return {
        "name": contender.name,
        "tokens_per_word": round(contender.tokens_per_word, 3),
        "answers_cold": contender.answers_cold,
    }


def _head(facts: Mapping[str, object], contenders: Sequence[Contender]) -> str:
    """What was measured on, and how far answers were compared."""
    lines = [f"{_machine(facts)}, seed {facts['seed']}"]
    for contender in contenders:
        against = "cold answers" if contender.answers_cold else "the first answer, repeats only"
        lines.append(f"{contender.name}: compared with {against}")
    return "\n".join(lines)


def _machine(facts: Mapping[str, object]) -> str:
    return (
        f"{facts['cpu']}, {facts['usable_cpus']} CPUs, {facts['system']}; load "
        f"{facts['load_1m']} before, {facts['load_1m_after']} after; "
        f"{facts['repetitions']} repetitions"
    )


def _require_writable(plan: Plan) -> None:
    """Find out before the measurement, which may take an hour."""
    if plan.json_path not in (None, STDOUT):
        try:
            Path(plan.json_path).touch()
        except OSError as error:
            raise ConfigError(
                f"bench: --json {plan.json_path} cannot be written: {error.strerror}."
            ) from error


def _write(plan: Plan, records: Sequence[Mapping[str, object]], out: TextIO) -> None:
    if plan.json_path == STDOUT:
        report.write_lines(out, records)
    elif plan.json_path is not None:
        with Path(plan.json_path).open("w", encoding="utf-8") as file:
            report.write_lines(file, records)


def _say(text: str) -> None:
    """To whoever waits; the standard output is for results alone."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
