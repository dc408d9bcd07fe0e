"""The agent's conversation against a running daemon, and against daemons with a fault."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import openai
import pytest

from tests.bench.agent_client import Talker
from tests.bench.agent_story import opening, results, user_text
from tests.bench.agents import Plan, play, report
from tests.daemon.running import Daemon, running

CACHE = ("--compile-cache-dir", str(Path.cwd() / ".pytest_cache" / "ignisd"))
SMALL = Plan.of(turns=6, agents=3)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("agents"), "--check", "on", *CACHE) as started:
        yield started
        assert "Traceback" not in started.log.read_text()


def test_every_request_of_an_agent_has_what_the_policy_promises(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    with Talker(daemon.url) as talker:
        play(talker, SMALL, "small")
        status = report(talker, "small")
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "every promise was kept" in shown
    rows = talker.rows
    assert {row.kind for row in rows} == {None, "prefix", "turn_open", "checkpoint", "junction"}
    assert {row.what for row in rows} >= {"burst", "return", "regenerate", "cancelled", "fork"}
    assert sum(row.same is True for row in rows) >= 5
    # Vacuous promises would be kept by anybody.
    assert sum(row.promise.firm > 0 for row in rows) >= len(rows) - 2
    assert sum(row.promise.ample for row in rows) > sum(row.prompt for row in rows) * 0.7


def test_requests_that_reuse_nothing_break_their_promise(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    with Talker(daemon.url, fields={"reuse": False}) as talker:
        play(talker, Plan.of(turns=2, agents=2), "without")
        assert report(talker, "without") == 1
    assert "reuse_off" in capsys.readouterr().out


@pytest.mark.slow
def test_the_readme_shows_what_the_command_prints() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    part = text.split("<!-- begin: agents -->\n```\n")[1].split("```\n<!-- end: agents -->")[0]
    command = [sys.executable, "-m", "tests.bench.agents"]
    got = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert got.stdout.endswith(part)


@pytest.mark.slow
def test_thirty_turns_and_eight_subagents_at_the_slots_of_a_large_model(tmp_path: Path) -> None:
    """Sixteen slots hold the states of full rank, and hardly any others."""
    with running(tmp_path, "--reuse-retained-host", "16", *CACHE) as started:
        with Talker(started.url) as talker:
            play(talker, Plan.of(turns=30, agents=8), "large")
            assert report(talker, "large") == 0
        main = [row for row in talker.rows if row.who == "main"]
        assert all(row.cached == row.promise.ample for row in main)
        assert started.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        "no-prefix-cut",
        "no-opener-cut",
        "no-junctions",
        "everybody-leads",
        "claim-consumes",
        "longer-replaces-shorter",
        "cancel-flushes",
        "hits-are-thrown-away",
        "cached-is-what-matched",
        "image-of-the-page-before",
    ],
)
def test_a_fault_of_the_daemon_is_seen_from_outside(fault: str, tmp_path: Path) -> None:
    assert _sees(fault, SMALL, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "status"), [("none", 0), ("no-turn-open-cut", 1)])
def test_the_opening_of_a_turn_outlives_its_tool_calls(
    fault: str, status: int, tmp_path: Path
) -> None:
    """More calls than slots: what is not of full rank has given way when the next turn comes."""
    few = ("--reuse-retained-host", "8", "--reuse-kv-host-pool-bytes", "0")
    with (
        daemon_with(fault, tmp_path, *few) as started,
        Talker(started.url) as talker,
    ):
        chat = opening("opening")
        for turn in (1, 2):
            chat.say(user_text("opening", turn))
            for step in range(12):
                talker.ask(chat, "tool loop")
                chat.loop(f"opening {turn} {step}", results("opening", turn, step))
            chat.close(f"opening {turn}", talker.ask(chat, "tool loop"))
        assert report(talker, "opening") == status


def _sees(fault: str, plan: Plan, folder: Path) -> bool:
    """Whether a promise is broken, or the daemon breaks."""
    with daemon_with(fault, folder) as started:
        try:
            with Talker(started.url) as talker:
                play(talker, plan, "faulty")
                return report(talker, "faulty") == 1
        except openai.InternalServerError:
            return True


def daemon_with(fault: str, folder: Path, *flags: str) -> AbstractContextManager[Daemon]:
    program = ("-m", "ignisd") if fault == "none" else ("-m", "tests.bench.faulty", fault)
    return running(folder, *CACHE, *flags, program=program)
