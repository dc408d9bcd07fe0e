"""Rates from what targets answer: whose tokens, in what time, and when they are not to be shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from ignisd.bench import command
from ignisd.bench.contender import Contender
from ignisd.bench.speed import DECODE, PREFILL, Load, SpeedRun, measure_speed
from ignisd.bench.target import Answer, BenchError, Chat
from tests.bench_cli.scripted import Scripted, serving
from tests.bench_cli.test_reuse import bench_words


@dataclass
class Paced:
    """Reads a prompt token in 1 ms and writes one in 10 ms, on a clock of its own.

    `said` makes the text of an answer from the chat and its length.
    """

    said: Callable[[Chat, int], str] = lambda chat, length: "x" * length
    cached: int | None = 0
    name: str = "paced"
    log: list[tuple[Chat, int, bool]] = field(default_factory=list)

    def ask(self, chat: Chat, max_tokens: int, *, reuse: bool = True) -> Answer:
        self.log.append((chat, max_tokens, reuse))
        length = len(chat[-1].content.split())
        ttft_s = length / 1000
        return Answer(
            began_s=100.0,
            ttft_s=ttft_s,
            total_s=ttft_s + max_tokens / 100,
            prompt_tokens=length,
            cached_tokens=self.cached,
            completion_tokens=max_tokens,
            said=self.said(chat, max_tokens),
        )

    def close(self) -> None:
        """Holds nothing."""


def measure(
    target: Paced, *loads: Load, cold: bool = True, tolerated: Sequence[str] = ()
) -> list[SpeedRun]:
    contender = Contender(target, tokens_per_word=1.0, answers_cold=cold)
    runs = measure_speed(
        [contender],
        loads,
        answer_tokens=40,
        seed="seed",
        repetitions=1,
        tolerated=frozenset(tolerated),
        settle=lambda: None,
        report=lambda text: None,
    )
    return list(runs)


def test_prefill_counts_what_was_read_of_all_prompts_until_the_last_first_token():
    target = Paced(cached=4)
    (run,) = measure(target, Load(PREFILL, 200, 3))
    assert run.tokens == 3 * (200 - 4)
    assert run.seconds == pytest.approx(0.2)
    assert run.rate == pytest.approx(2940)
    prompts = [chat for chat, length, _ in target.log if length == 1]
    assert len(set(prompts)) == 3


def test_decode_is_the_difference_of_a_long_and_a_short_run():
    (run,) = measure(Paced(), Load(DECODE, 50, 2))
    assert run.tokens == 2 * 40
    assert run.rate == pytest.approx(200)
    assert run.prompt_tokens == 50


def test_a_difference_that_says_nothing_has_no_rate():
    load = Load(DECODE, 1, 1)
    assert SpeedRun("it", 0, load, tokens=0, seconds=1.0, prompt_tokens=1).rate is None
    assert SpeedRun("it", 0, load, tokens=5, seconds=-0.1, prompt_tokens=1).rate is None


def test_a_prompt_that_was_seen_has_no_rate():
    with pytest.raises(BenchError, match="meant to be new"):
        measure(Paced(cached=100), Load(PREFILL, 200, 1))


def test_answers_are_checked_before_anything_is_timed():
    target = Paced()
    target.said = lambda chat, length: str(len(target.log))
    with pytest.raises(BenchError, match="4 different greedy answers"):
        measure(target, Load(PREFILL, 200, 1))
    assert {length for _, length, _ in target.log} == {16}
    assert [reuse for _, _, reuse in target.log] == [True, True, True, False]
    assert measure(target, Load(PREFILL, 200, 1), tolerated=["paced"])


def test_a_target_without_cold_answers_is_not_asked_for_them():
    target = Paced()
    measure(target, Load(PREFILL, 200, 1), cold=False)
    assert all(reuse for _, _, reuse in target.log)


def test_lanes_must_answer_together_as_they_do_alone(capsys: pytest.CaptureFixture[str]):
    scripted = Scripted("one", wrong_together=True, delay_s=0.05)
    with serving(scripted):
        assert bench_words("decode", "--decode", "64x4", servers=[scripted]) == 1
        assert bench_words("decode", "--decode", "64x1", servers=[scripted]) == 0
    out, err = capsys.readouterr()
    assert "one answers 4 prompts together otherwise than one by one" in err
    assert "64 x 4" not in out
    assert "64 x 1" in out


def test_compare_measures_all_of_it_on_all_of_them(capsys: pytest.CaptureFixture[str]):
    servers = [Scripted("one"), Scripted("two")]
    sizes = ["--prefill", "100x1,50x2", "--decode", "50x1", "--decode-tokens", "4"]
    sizes += ["--shared", "60", "--user", "40"]
    with serving(*servers):
        assert bench_words("compare", *sizes, servers=servers) == 0
    out = capsys.readouterr().out
    assert "one: time to first token" in out
    assert "two: time to first token" in out
    assert "ttft ms (x one)" in out
    speeds = out.split("tokens/s\n")[1].splitlines()
    assert speeds[0].split() == ["what", "tokens", "x", "lanes", "one", "two"]
    assert [line.split()[0] for line in speeds[1:4]] == ["prefill", "prefill", "decode"]


def test_an_interrupt_ends_it_without_numbers_or_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "prepare", interrupted)
    scripted = Scripted("one")
    with serving(scripted):
        assert bench_words("decode", servers=[scripted]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "bench: interrupted; nothing is shown\n"
