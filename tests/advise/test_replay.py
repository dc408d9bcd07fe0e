"""A recorded trace is followed request by request, and other settings are tried on it."""

import asyncio
import io
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ignisd.advise.command import read_words, run
from ignisd.advise.record import Recorder, open_trace
from ignisd.advise.replay import recorded, simulate
from ignisd.advise.sweep import check, recommended, settings_to_try, sweep
from ignisd.advise.trace import Session, read_trace
from ignisd.engine.loop import Engine
from ignisd.engine.types import FinishReason, Request, SamplingParams
from ignisd.engine.world import Limits, new_world
from ignisd.errors import ConfigError
from ignisd.load import load_model
from ignisd.settings import Settings
from state.chain import chain_of
from state.retention import Marks, RetentionPolicy
from state.spec import Class
from tests.engine.harness import FINGERPRINT, Harness, words
from tests.fake_device import FakeDevice
from tests.planting import catches

SECRET = 4242


class Clock:
    """Every look at it takes a little."""

    def __init__(self) -> None:
        self.now_ms = 1000.0

    def __call__(self) -> float:
        self.now_ms += 0.37
        return self.now_ms


def record(
    path: Path,
    seed: int,
    *,
    interval: int = 0,
    slots: int = 6,
    num: int = 24,
    num_pages: int = 120,
) -> Session:
    """Serve random traffic, some of it cancelled, with a recorder; the trace as it is read."""
    rng = random.Random(seed)
    limits = Limits(num_lanes=rng.randint(1, 3), max_context=4096, chunk_tokens=256)
    world = new_world(
        limits,
        RetentionPolicy(interval),
        FINGERPRINT,
        num_pages=num_pages,
        num_device_slots=0,
        num_host_slots=slots,
    )
    clock = Clock()
    recorder = Recorder(open_trace(path), "fake", 1000, 5000, {})

    async def serve() -> None:
        engine = Engine(
            world,
            FakeDevice(num_pages, limits.num_lanes, slots, limits.chunk_tokens),
            clock=clock,
            watch=recorder,
            on_finish=recorder.ended,
        )
        turning = asyncio.create_task(engine.run())
        prompts = [words(400, seed)]
        clients = []
        for id in range(1, num + 1):
            known = rng.choice(prompts)
            kept = known[: rng.randint(0, len(known))]
            prompt = [*kept, *words(rng.randint(20, 700), 100 * seed + id)][:3000]
            prompts.append(prompt)
            request = Request(
                id=id,
                name=f"r{id}",
                chain=chain_of([SECRET, *prompt]),
                marks=Marks(opener=rng.choice((None, len(prompt)))),
                sampling=SamplingParams(),
                max_tokens=rng.randint(0, 12),
                stop_ids=frozenset(range(0, 509, 9)),
                cls=rng.choice((Class.INTERACTIVE, Class.AGENT)),
                reuse=rng.random() > 0.1,
                arrival_ms=clock(),
            )
            stream = engine.submit(request)
            clients.append(asyncio.create_task(_read(stream, leaves=rng.random() < 0.15)))
            for _ in range(rng.choice((0, 1, 5, 200))):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                await asyncio.gather(*clients)
        await asyncio.gather(*clients)
        await engine.stop()
        await turning

    asyncio.run(serve())
    recorder.close()
    assert recorder.failed is None
    return read_trace(path)


async def _read(stream: object, *, leaves: bool) -> None:
    async with stream as events:  # type: ignore[attr-defined]
        async for _ in events:
            if leaves:
                return


@catches(
    "who-left-is-not-recorded", "commits-are-not-recorded", "the-recorded-setting-is-not-followed"
)
def test_on_the_recorded_settings_every_request_reuses_what_it_did() -> None:
    for seed, interval, slots in ((1, 0, 6), (2, 128, 10), (3, 256, 3)):
        with TemporaryDirectory() as folder:
            session = record(Path(folder) / "trace", seed, interval=interval, slots=slots)
        assert len(session.requests) == 24
        assert session.complete
        checked = check(session)
        assert checked is not None
        assert checked.live > 500
        assert checked.differing == ()
        assert checked.predicted == checked.live


@catches("pages-are-named-by-themselves")
def test_a_trace_holds_no_token_and_no_digest() -> None:
    with TemporaryDirectory() as folder:
        _check_names(Path(folder))


def _check_names(tmp_path: Path) -> None:
    session = record(tmp_path / "trace", 4, num=4)
    text = (tmp_path / "trace").read_text()
    assert (tmp_path / "trace").stat().st_mode & 0o077 == 0
    assert str(SECRET) not in text
    again = record(tmp_path / "again", 4, num=4)
    assert session.requests[0].pages
    # The same prompts under another key: no name is equal, so no prompt can be tried.
    names = {name for one in session.requests for name in one.pages}
    assert names.isdisjoint(name for one in again.requests for name in one.pages)


def test_other_settings_are_tried_and_the_coarsest_good_one_is_recommended(tmp_path: Path) -> None:
    session = record(tmp_path / "trace", 5, interval=0, slots=16, num_pages=900)
    settings = list(settings_to_try(session, (0, 64, 1024), (16, 400)))
    assert recorded(session.head) in settings
    rows = sweep(session, settings)
    assert len(rows) == len(set(settings)) == 6
    by_setting = {(row.setting.interval_tokens, row.setting.host_slots): row for row in rows}
    # With room for all of it, a state at every page leaves nothing that matches to be read again.
    assert by_setting[64, 400].recomputed < by_setting[0, 400].recomputed
    assert by_setting[64, 400].points > by_setting[0, 400].points
    assert by_setting[64, 16].points == 16
    best = recommended(rows)
    assert best.saved_ms >= 0.98 * max(row.saved_ms for row in rows)
    finer = [row for row in rows if row.saved_ms >= best.saved_ms]
    assert best.retained_bytes <= min(row.retained_bytes for row in finer)
    for row in rows:
        assert row.cached + row.recomputed <= row.prompt_tokens
        assert row.ttft_ms > 0
    seen = simulate(session, recorded(session.head))
    ended = {FinishReason.STOP, FinishReason.LENGTH}
    assert {one.reason for one in seen.finishes.values()} <= ended
    assert len(seen.finishes) == len(session.requests)


def test_the_command_prints_a_table_and_json(tmp_path: Path) -> None:
    record(tmp_path / "trace", 6, num=10)
    lines = list(run(read_words([str(tmp_path / "trace"), "--intervals", "0,128"])))
    assert lines[-1].startswith("Recommended: --reuse-retention-interval ")
    assert "10 of 10 requests reuse what they did live" in lines[-2]
    text = "\n".join(run(read_words([str(tmp_path / "trace"), "--json", "--intervals", "0"])))
    told = json.loads(text)
    assert told["check"]["differing"] == []
    assert told["recommended"]["flags"].startswith("--reuse-retention-interval 0 ")
    assert len(told["rows"]) == 1
    assert list(run(read_words(["--explain"])))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "needs a trace FILE"),
        (["a", "--intervals", "100"], "--intervals must be 0 or multiples of 64"),
        (["a", "--slots", "x"], "--slots must be whole numbers"),
        (["a", "--fast"], "no --fast"),
    ],
)
def test_wrong_words_are_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_words(arguments)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no request"),
        ("hello\n", "is no trace: line 1"),
        ('{"line":"turns","turns":[]}\n', "comes before a head"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "trace").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_trace(tmp_path / "trace")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "absent")


def test_a_trace_that_cannot_be_written_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    settings = Settings(trace_path=tmp_path)
    with pytest.raises(ConfigError, match=r"--trace-path .* cannot be written: Is a directory"):
        load_model(settings, {}, lambda: datetime.now(UTC), lambda done: None)


def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path) -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    recorder = Recorder(Full(), "fake", 1000, 5000, {})
    recorder.planning(Harness().world, 1.0)
    assert recorder.failed == "No space left on device"
    recorder.committing(2.0)
    recorder.close()


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    whole = record(path, 8, num=6)
    raw = path.read_bytes()
    path.write_bytes(raw[:-30])
    cut = read_trace(path)
    assert cut.requests == whole.requests
    assert len(cut.turns) < len(whole.turns)
