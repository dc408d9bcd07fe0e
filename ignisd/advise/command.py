"""ignisd advise: a table of settings on a recorded trace, and the flags of the best."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ignisd import __version__
from ignisd.advise import arithmetic
from ignisd.advise.plot import draw
from ignisd.advise.send import Sender
from ignisd.advise.sweep import Checked, Row, check, recommended, settings_to_try, sweep
from ignisd.advise.trace import Session, read_trace
from ignisd.advise.traffic import SHAPES, generate
from ignisd.errors import ConfigError
from state.spec import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for."""

    trace: Path | None
    explain: bool
    as_json: bool
    plot: Path | None
    intervals: tuple[int, ...] | None
    slots: tuple[int, ...] | None
    send: str | None = None
    traffic: str = "chat"
    size: int = 8
    seed: int = 1
    model: str = "ember"
    speed: float = 1.0


def read_words(words: Sequence[str]) -> Wish:
    """The command line.

    Raises:
        ConfigError: a word is wrong, or there is neither a trace nor --explain.
    """
    parser = argparse.ArgumentParser(
        prog="ignisd advise",
        description="Chooses a retention interval from a trace (--trace-path of the daemon).",
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument("trace", nargs="?", type=Path, metavar="FILE", help="the trace")
    parser.add_argument("--explain", action="store_true", help="print the arithmetic of retention")
    parser.add_argument("--json", action="store_true", help="print numbers for a program")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the trade with matplotlib")
    parser.add_argument("--intervals", metavar="N,...", help="intervals to try, multiples of 64")
    parser.add_argument("--slots", metavar="N,...", help="numbers of host slots to try")
    sending = parser.add_argument_group("to make traffic for a daemon that records")
    sending.add_argument("--send", metavar="URL", help="send generated traffic to a daemon")
    sending.add_argument("--traffic", choices=sorted(SHAPES), default="chat", help="its shape")
    sending.add_argument("--size", type=int, default=8, help="turns or agents")
    sending.add_argument("--seed", type=int, default=1, help="another one sends other words")
    sending.add_argument("--model", default="ember", help="that requests name")
    sending.add_argument("--speed", type=float, default=1.0, help="so many times faster")
    try:
        known, strange = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(f"ignisd advise: {error}.") from None
    if strange:
        raise ConfigError(f"ignisd advise takes one trace and no {strange[0]}; see --help.")
    if known.trace is None and not known.explain and known.send is None:
        raise ConfigError(
            "ignisd advise needs a trace FILE (see --trace-path), --send URL or --explain."
        )
    if known.size < 1 or not 0 < known.speed < float("inf"):
        raise ConfigError(
            f"--size must be 1 or more and --speed more than 0; had {known.size} and {known.speed}."
        )
    return Wish(
        known.trace,
        known.explain,
        known.json,
        known.plot,
        _numbers("--intervals", known.intervals, PAGE_TOKENS),
        _numbers("--slots", known.slots, 1),
        known.send,
        known.traffic,
        known.size,
        known.seed,
        known.model,
        known.speed,
    )


def run(wish: Wish, key: str | None = None) -> Iterator[str]:
    """The lines to print.

    Args:
        wish: what was asked for.
        key: for a daemon that traffic is sent to.

    Raises:
        ConfigError: the trace cannot be read, or nothing can draw.
    """
    if wish.explain:
        yield from arithmetic.explanation()
    if wish.send is not None:
        yield from _sent(wish, key)
    if wish.trace is None:
        return
    session = read_trace(wish.trace)
    rows = sweep(session, list(settings_to_try(session, wish.intervals, wish.slots)))
    checked, best = check(session), recommended(rows)
    if wish.plot is not None:
        draw(rows, best, wish.plot)
    yield from (
        _json(session, rows, best, checked) if wish.as_json else _text(session, rows, best, checked)
    )


def _sent(wish: Wish, key: str | None) -> Iterator[str]:
    assert wish.send is not None
    calls = generate(wish.traffic, wish.size, wish.seed)
    sent = Sender(wish.send, wish.model, key, wish.speed).send(calls)
    for call, one in zip(calls, sent, strict=True):
        yield (
            f"{call.at_ms:>10.0f} ms  talk {call.talk:<3} status {one.status}  prompt "
            f"{one.prompt_tokens:>6}  cached {one.cached_tokens:>6}  {one.took_s:>7.2f} s"
        )
    cached, prompt = (
        sum(one.cached_tokens for one in sent),
        sum(one.prompt_tokens for one in sent),
    )
    yield f"{len(sent)} requests, {prompt} prompt tokens, {cached} cached"


def flags_of(row: Row) -> str:
    """A setting as flags to paste."""
    setting = row.setting
    return (
        f"--reuse-retention-interval {setting.interval_tokens} "
        f"--reuse-retained-host {setting.host_slots}"
    )


def _numbers(flag: str, text: str | None, grid: int) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = text.split(",")
    if not all(word.isdecimal() and int(word) % grid == 0 for word in words):
        wants = "whole numbers" if grid == 1 else f"0 or multiples of {grid}"
        raise ConfigError(f"{flag} must be {wants} with commas between; had {text!r}.")
    return tuple(int(word) for word in words)


def _json(
    session: Session, rows: Sequence[Row], best: Row, checked: Checked | None
) -> Iterator[str]:
    told = {
        "version": __version__,
        "recorded": {
            "version": session.head.version,
            "model": session.head.model,
            "interval_tokens": session.head.interval_tokens,
            "host_slots": session.head.host_slots,
        },
        "rows": [row.as_json() for row in rows],
        "recommended": {**best.as_json(), "flags": flags_of(best)},
        "check": None
        if checked is None
        else {
            "requests": checked.requests,
            "differing": list(checked.differing),
            "predicted_cached_tokens": checked.predicted,
            "live_cached_tokens": checked.live,
        },
    }
    yield json.dumps(told, indent=2)


def _text(
    session: Session, rows: Sequence[Row], best: Row, checked: Checked | None
) -> Iterator[str]:
    head = session.head
    yield (
        f"{len(session.requests)} requests of {head.model}, recorded by ignisd {head.version} with "
        f"interval {head.interval_tokens} and {head.host_slots} host slots; advice of {__version__}"
    )
    if head.has_disk:
        yield "kv_disk is not replayed: what it restored counts as computed below."
    yield (
        f"{'interval':>9} {'slots':>6} {'points':>7} {'linear MiB':>11} {'full MiB':>9} "
        f"{'cached':>9} {'matched':>9} {'recomputed':>10} {'evicted':>8} {'lookup us':>10} "
        f"{'ttft ms':>9} {'p95 ms':>9} {'saved ms/MiB':>13}"
    )
    for row in rows:
        mark = "  <" if row is best else ""
        yield (
            f"{row.setting.interval_tokens:>9} {row.setting.host_slots:>6} {row.points:>7} "
            f"{row.image_bytes / (1 << 20):>11.1f} {row.page_bytes / (1 << 20):>9.1f} "
            f"{row.cached:>9} {row.matched:>9} {row.recomputed:>10} {row.evictions:>8} "
            f"{row.lookup_us:>10.1f} {row.ttft_ms:>9.1f} {row.ttft_p95_ms:>9.1f} "
            f"{row.saved_ms_per_mib:>13.2f}{mark}"
        )
    if checked is None:
        yield "The file does not hold every turn, so the recording could not be followed."
    else:
        yield (
            f"Followed turn by turn, {checked.requests - len(checked.differing)} of "
            f"{checked.requests} requests reuse what they did live: {checked.predicted} tokens "
            f"predicted, {checked.live} live."
        )
    yield f"Recommended: {flags_of(best)}"
