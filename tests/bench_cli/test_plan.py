"""The words after `ignisd bench`."""

from pathlib import Path

import pytest

from ignisd import cli
from ignisd.bench.machine import machine_block
from ignisd.bench.plan import Server, build_parser, read_plan
from ignisd.bench.speed import Load
from tests.test_cli import loaded_by


def test_help_loads_nothing_heavy():
    caught = "try:\n  cli.main(['bench', '--help'])\nexcept SystemExit: pass"
    assert loaded_by(f"from ignisd import cli\n{caught}") <= {"numpy"}
    assert max(map(len, build_parser().format_help().splitlines())) <= 100


def test_the_plan_and_the_words_for_the_engine():
    plan, rest = read_plan(["reuse", "--model", "m", "--reps", "5", "--check"])
    assert rest == ["--model", "m", "--check"]
    assert (plan.own, plan.servers, plan.repetitions, plan.settle_s) == (True, (), 5, 0.0)
    assert plan.loads == ()
    assert plan.reuse.other == plan.reuse.shared + plan.reuse.user
    assert plan.seed != read_plan(["reuse"])[0].seed


def test_each_measurement_has_its_own_loads():
    words = ["--prefill", "100x1,200x2", "--decode", "8x4"]
    prefill = (Load("prefill", 100, 1), Load("prefill", 200, 2))
    decode = (Load("decode", 8, 4),)
    assert read_plan(["prefill", *words])[0].loads == prefill
    assert read_plan(["decode", *words])[0].loads == decode
    assert read_plan(["compare", "--own", "--url", "a=b", *words])[0].loads == prefill + decode


def test_servers_with_fields_of_their_own():
    words = ["reuse", "--url", "a=http://h:1", 'b=http://h:2,ignore_eos=true,api_key="s"']
    plan, _ = read_plan([*words, "--url", 'c=https://h/x,model="m"'])
    assert plan.servers == (
        Server("a", "http://h:1", {}, None),
        Server("b", "http://h:2", {"ignore_eos": True}, "s"),
        Server("c", "https://h/x", {"model": "m"}, None),
    )
    assert not plan.own
    assert plan.settle_s == 0.3
    assert read_plan(["reuse", "--own", "--url", "a=b", "--settle", "1.5"])[0].settle_s == 1.5


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "what is to be measured? Say prefill, decode, reuse, compare, tiers"),
        (["--reps", "2"], "what is to be measured?"),
        (["speed"], "invalid choice: 'speed'"),
        (["reuse", "--reps", "x"], "--reps: wanted a number, had x"),
        (["reuse", "--reps", "0"], "--reps: wanted at least 1, had 0"),
        (["reuse", "--repeats", "1"], "--repeats: wanted at least 2, had 1"),
        (["reuse", "--settle", "-1"], "--settle: wanted at least 0, had -1"),
        (["reuse", "--url", "http://h"], "wanted NAME=URL"),
        (["reuse", "--url", "a=b,x=y"], "x=y is not KEY=JSON"),
        (["reuse", "--url", "a=b", "a=c"], "two targets have one name"),
        (["reuse", "--own", "--url", "ignisd=b"], "two targets have one name"),
        (["reuse", "--url", "a=b", "--model", "m"], "--model sets nothing on a server"),
        (["reuse", "--tolerate", "a"], "--tolerate a is no target"),
        (["compare", "--url", "a=b"], "wanted two targets, had one, a;"),
        (["compare"], "wanted two targets, had one, ignisd;"),
        (["tiers", "--url", "a=b"], "cannot be measured behind --url"),
        (["tiers", "--own", "--kv-disk-path", "/absent/x"], "--kv-disk-path cannot be used"),
        (["decode", "--decode", "64x"], "64x is not TOKENSxLANES"),
        (["decode", "--decode", "64x0"], "64x0 is not TOKENSxLANES"),
        (["reuse", "--json", "/absent/x"], "--json /absent/x cannot be written: No such file"),
        (["reuse", "--modle", "m"], "--modle is no flag; did you mean --model?"),
    ],
)
def test_a_wrong_word_is_refused(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["bench", *words]) == cli.REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert hint in err


def test_the_machine_is_named(tmp_path: Path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nmodel name\t: Abacus 3\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:  1024 kB\n")
    block = machine_block(tmp_path)
    assert (block["cpu"], block["memory_bytes"]) == ("Abacus 3", 1 << 20)
    assert {"time", "usable_cpus", "python", "ignisd", "jax", "load_1m"} <= block.keys()
