"""Log lines: one per event whatever a value holds, and a `done` line with numbers alone."""

import io
import json
import logging
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignisd import log
from ignisd.engine.types import Finish, FinishReason, Notice, Place, Reuse, Tier, Timings
from state.retained import Kind
from state.reuse import Miss, MissReason
from state.spec import Class


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch):
    """Configure logging into a buffer; undone afterwards. Yields a function of the settings."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def start(line_format: str = "text", level: str = "info", **options: bool) -> io.StringIO:
        stream = io.StringIO()
        log.configure(level, line_format, stream=stream, **options)
        return stream

    yield start
    root.handlers[:] = handlers
    root.setLevel(level)


def finish(**changes) -> Finish:
    facts = {
        "request_id": 7,
        "name": "chatcmpl-7",
        "cls": Class.INTERACTIVE,
        "reason": FinishReason.STOP,
        "prompt_tokens": 200,
        "generated_tokens": 11,
        "lane": 2,
        "evictions": 1,
        "reuse": Reuse(128, 150, Kind.CHECKPOINT, Tier.DEVICE, Place.HOST),
        "timings": Timings(1000.0, 1001.0, 1040.04, 1540.04, 80.0, 1541.0),
    }
    return Finish(**{**facts, **changes})


def test_the_done_line_of_a_hit_names_tier_kind_and_rates(lines):
    stream = lines()
    log.done(finish())
    time, level, logger, event, *pairs = stream.getvalue().split()
    assert time.endswith("+00:00")
    assert (level, logger, event) == ("info", "ignisd.done", "done")
    assert dict(pair.split("=") for pair in pairs) == {
        "id": "chatcmpl-7",
        "class": "interactive",
        "lane": "2",
        "prompt_tokens": "200",
        "generated_tokens": "11",
        "cached_tokens": "128",
        "matched_tokens": "150",
        "tier": "device",
        "slot": "host",
        "kind": "checkpoint",
        "ttft_ms": "40.0",
        "tokens_per_s": "20.0",
        "gap_mean_ms": "50.0",
        "gap_max_ms": "80.0",
        "restore_ms": "0.0",
        "evictions": "1",
        "recomputed": "0",
        "finish": "stop",
    }


def test_the_done_line_of_a_miss_says_why(lines):
    stream = lines("json")
    miss = Miss(MissReason.DIVERGED, 64, 70)
    log.done(finish(reuse=Reuse(matched_tokens=64, miss=miss), generated_tokens=1))
    line = json.loads(stream.getvalue())
    assert (line["event"], line["cached_tokens"], line["tier"], line["kind"]) == (
        "done",
        0,
        "none",
        "none",
    )
    assert (line["miss"], line["diverged_at"]) == ("diverged", 70)
    assert "tokens_per_s" not in line


def test_where_a_prompt_parted_and_what_the_operator_is_warned_of(lines):
    stream = lines("json")
    parted = Reuse(128, 192, diverged_at=200, segment="message 2", volatile_at=31)
    log.done(finish(reuse=parted))
    log.warn(Notice("volatile system prompt", {"id": "chatcmpl-1", "offset": 31, "in_a_row": 5}))
    done, warned = map(json.loads, stream.getvalue().splitlines())
    assert (done["diverged_at"], done["segment"], done["volatile_at"]) == (200, "message 2", 31)
    assert (warned["level"], warned["logger"]) == ("warning", "ignisd.engine")
    assert (warned["event"], warned["offset"]) == ("volatile system prompt", 31)


def test_a_request_that_never_ran_leaves_a_line_too(lines):
    stream = lines("json")
    log.done(
        finish(
            reason=FinishReason.ERROR,
            generated_tokens=0,
            lane=None,
            reuse=Reuse(),
            timings=Timings(5.0, finished_ms=9.0),
            message="device lost",
        )
    )
    line = json.loads(stream.getvalue())
    assert (line["level"], line["finish"], line["error"]) == ("error", "error", "device lost")
    assert not {"lane", "ttft_ms", "gap_mean_ms"} & line.keys()


@given(st.text())
def test_no_value_can_forge_a_line_or_a_field(text: str):
    record = logging.LogRecord("ignisd", logging.INFO, "", 0, "event", (), None)
    record.fields = {"id": text, "after": 1}
    line = log.TextFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert line.endswith(" after=1")
    parts = shlex.split(line)
    assert len(parts) == 6
    assert [part for part in parts if part.startswith("after=")] == ["after=1"]
    assert json.loads(log.JsonFormatter().format(record))["id"] == text


def test_a_message_with_line_breaks_stays_on_one_line(lines):
    stream = lines()
    logging.getLogger("other").warning("one\ntwo\r\u2028three")
    assert len(stream.getvalue().splitlines()) == 1


def test_below_the_level_nothing_is_written(lines):
    stream = lines(level="warning")
    log.done(finish())
    assert stream.getvalue() == ""


def test_the_journal_gets_a_priority_on_every_line_and_no_time(lines):
    stream = lines(journal=True)
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logging.getLogger("ignisd").exception("engine died")
    written = stream.getvalue().splitlines()
    assert written[0] == "<3>error ignisd engine died"
    assert len(written) > 2
    assert all(line.startswith("<3>") for line in written)
