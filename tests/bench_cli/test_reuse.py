"""The order of a reuse run, what it refuses, and that refused numbers are shown nowhere."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from ignisd import cli
from ignisd.bench.contender import Contender, prepare, text_of
from ignisd.bench.reuse import NUM_OTHERS, ReuseSizes, cases
from ignisd.bench.server import ServerTarget
from tests.bench_cli.scripted import Scripted, serving

SMALL = ["--shared", "60", "--user", "40"]
CASES = 1 + 2 + 2 + 2 + NUM_OTHERS + 3


def bench(*words: str, servers: list[Scripted]) -> int:
    return bench_words("reuse", *SMALL, *words, servers=servers)


def bench_words(what: str, *words: str, servers: list[Scripted]) -> int:
    urls = [f"{each.name}={each.url}" for each in servers]
    return cli.main(["bench", what, "--reps", "2", "--settle", "0", *words, "--url", *urls])


def measured(log: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """Without what came before: one-token questions of length and of the cold word."""
    return [entry for entry in log if entry[1]["max_tokens"] > 1]


def test_cases_share_what_they_should_and_no_more():
    sizes = ReuseSizes(shared=60, user=40, other=100, repeats=3, max_tokens=16)
    chats = {case.name: case.chat for case in cases(words(), "seed", sizes)}
    first = chats["cold"]
    assert chats["repeat 1"] == chats["repeat 2"] == chats["repeat 3"] == first
    for earlier, later in (("cold", "turn 2"), ("turn 2", "turn 3"), ("turn 3", "return")):
        length = len(chats[earlier])
        assert chats[later][:length] == chats[earlier]
        assert [message.role for message in chats[later][length:]] == ["assistant", "user"]
    siblings = [chats[name] for name in ("sibling 1", "sibling 2", "late sibling")]
    assert all(chat[0] == first[0] for chat in siblings)
    assert len({chat[1].content.split()[0] for chat in siblings} | {first[1].content}) == 4
    others = [chats[f"other {number}"] for number in range(1, NUM_OTHERS + 1)]
    assert len({chat[0] for chat in others} | {first[0]}) == NUM_OTHERS + 1
    fork, whole = chats["mid-message fork"][1].content.split(), first[1].content.split()
    assert chats["mid-message fork"][0] == first[0]
    shared = next(place for place, word in enumerate(fork) if word != whole[place])
    assert len(whole) // 3 <= shared <= len(whole) * 2 // 3
    again = {case.name: case.chat for case in cases(words(), "other seed", sizes)}
    assert again["cold"][0].content.split()[:8] != first[0].content.split()[:8]


def words() -> Contender:
    return Contender(target=None, tokens_per_word=1.0, answers_cold=False)  # type: ignore[arg-type]


def test_a_text_has_the_wanted_length_in_tokens():
    scripted = Scripted()
    with serving(scripted):
        contender = prepare(ServerTarget("it", scripted.url, {}), "seed")
    assert contender.tokens_per_word == 1.0
    assert len(contender.text("a", 300).split()) == 300
    assert text_of("a", 20) != text_of("b", 20)


@pytest.mark.parametrize(
    ("behaviour", "cold"),
    [
        ({}, True),
        ({"remembers_after": 2}, True),
        ({"cold_word": False}, False),
        ({"tells": False}, False),
        ({"remembers": False}, False),
    ],
)
def test_who_can_answer_cold_is_found_out(behaviour: dict[str, Any], cold: bool):
    scripted = Scripted(**behaviour)
    with serving(scripted):
        assert prepare(ServerTarget("it", scripted.url, {}), "seed").answers_cold is cold


def test_a_table_with_cold_answers_beside_reused_ones(capsys: pytest.CaptureFixture[str]):
    scripted = Scripted("one")
    with serving(scripted):
        assert bench(servers=[scripted]) == 0
    out, err = capsys.readouterr()
    lines = {line.split("  ")[0]: line.split() for line in out.splitlines()}
    assert lines["cold"][2] == "0"
    for case in ("repeat 1", "repeat 2", "turn 2", "turn 3", "sibling 1", "return"):
        assert int(lines[case][-7]) > 50, case  # cached
    assert "one: compared with cold answers" in out
    assert "repetition 2: mid-message fork" in err
    asked = [body.get("reuse", True) for _, body in measured(scripted.log)]
    assert len(asked) == 2 * (CASES + CASES - NUM_OTHERS)
    assert asked.count(False) == 2 * (CASES - NUM_OTHERS)


def test_a_server_without_the_word_is_asked_for_nothing_more(capsys: pytest.CaptureFixture[str]):
    scripted = Scripted("one", cold_word=False)
    with serving(scripted):
        assert bench(servers=[scripted]) == 0
    bodies = [body for _, body in measured(scripted.log)]
    assert len(bodies) == 2 * CASES
    assert not any("reuse" in body for body in bodies)
    assert "one: compared with the first answer, repeats only" in capsys.readouterr().out


def test_servers_are_asked_in_turn_and_nobody_always_first():
    log: list[tuple[str, dict[str, Any]]] = []
    servers = [Scripted(name, log, cold_word=False) for name in ("one", "two")]
    with serving(*servers):
        assert bench(servers=servers) == 0
    names = [name for name, _ in measured(log)]
    pairs = list(zip(names[::2], names[1::2], strict=True))
    assert set(pairs) == {("one", "two"), ("two", "one")}
    bodies = [body for _, body in measured(log)]
    for mine, theirs in zip(bodies[::2], bodies[1::2], strict=True):
        assert mine["messages"] == theirs["messages"]


def test_prompts_differ_from_run_to_run():
    scripted = Scripted("one")
    with serving(scripted):
        assert bench(servers=[scripted]) == 0
        assert bench(servers=[scripted]) == 0


@pytest.mark.parametrize("behaviour", [{"wrong": True}, {"wrong": True, "cold_word": False}])
def test_wrong_answers_are_not_timed(
    behaviour: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    scripted, path = Scripted("one", **behaviour), tmp_path / "out.jsonl"
    with serving(scripted):
        assert bench("--json", str(path), servers=[scripted]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "one: the greedy answer to repeat 1, repetition 1, differs" in err
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["type"] for record in records] == ["machine", "refused"]


def test_wrong_answers_that_are_tolerated_are_marked(capsys: pytest.CaptureFixture[str]):
    wrong, right = Scripted("one", wrong=True), Scripted("two")
    with serving(wrong, right):
        assert bench("--tolerate", "one", servers=[wrong, right]) == 0
        out = capsys.readouterr().out
        ones, twos = out.split("two: time to first token")
        assert "repeat 1 ≠" in ones
        assert "cold ≠" not in ones
        assert "≠" not in twos
        assert bench("--tolerate", "two", servers=[wrong, right]) == 1
    assert capsys.readouterr().out == ""


def test_a_prompt_that_was_seen_is_not_called_cold(capsys: pytest.CaptureFixture[str]):
    scripted = Scripted("one", seen_all=True)
    with serving(scripted):
        assert bench(servers=[scripted]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "a prompt that was meant to be new (cold)" in err


def test_json_lines_take_the_place_of_the_table(capsys: pytest.CaptureFixture[str]):
    scripted = Scripted("one")
    with serving(scripted):
        assert bench("--json", "--seed", "abc", servers=[scripted]) == 0
    records = [json.loads(line) for line in io.StringIO(capsys.readouterr().out)]
    machine = records[0]
    assert machine["type"] == "machine"
    assert machine["usable_cpus"] >= 1
    assert machine["memory_bytes"] > 0
    assert machine["seed"] == "abc"
    assert machine["targets"][0] == {"name": "one", "tokens_per_word": 1.0, "answers_cold": True}
    kinds = [record["type"] for record in records[1:]]
    assert kinds == ["reuse"] * (2 * CASES) + ["reuse_median"] * (CASES - NUM_OTHERS + 1)
    first = records[1]
    assert (first["target"], first["case"], first["same"]) == ("one", "cold", True)
    assert "said" not in first["answer"]
    medians = {record["case"]: record for record in records if record["type"] == "reuse_median"}
    assert medians["others"]["same"] is None
    repeat = medians["repeat 1"]
    assert repeat["ratio"] == pytest.approx(repeat["cold_s"] / repeat["ttft_s"])
