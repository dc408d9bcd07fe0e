"""The command line: help without jax, hints for wrong words, a config that can be read back."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ignisd import __version__, cli
from ignisd.resolve import resolve
from ignisd.settings import FLAGS

ROOT = Path(cli.__file__).parent.parent
HEAVY = ("jax", "numpy", "flax", "starlette", "hypercorn", "tokenizers")


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ignisd", *words],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stderr.split()) & set(HEAVY)


def test_help_and_refusals_load_nothing_heavy():
    caught = "try:\n  cli.main(['--help'])\nexcept SystemExit: pass"
    assert loaded_by(f"from ignisd import cli\n{caught}") == set()
    assert loaded_by("from ignisd import cli\ncli.main(['--server-queue', '0'])") == set()
    assert loaded_by("import jax") != set()


def test_help_names_every_flag_with_its_default_unit_and_variable():
    help_text = " ".join(cli.build_parser().format_help().split())
    for flag in FLAGS:
        start = help_text.index(f" {flag.option} ")
        line = help_text[start : help_text.index(f"{flag.variable}]", start)]
        assert f"default {flag.show(flag.default)}" in line
        assert flag.unit in line
        assert line.count(" [default ") == 1


def test_help_lists_flags_under_their_chapters():
    lines = cli.build_parser().format_help().splitlines()
    chapters = {flag.chapter for flag in FLAGS}
    where = {}
    current = ""
    for line in lines:
        if line.rstrip(":") in chapters:
            current = line.rstrip(":")
        if line.startswith("  --"):
            where[line.split()[0]] = current
    assert {flag.option: flag.chapter for flag in FLAGS}.items() <= where.items()
    assert max(map(len, lines)) <= 100


def test_the_module_is_the_command():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"ignisd {__version__}\n")
    assert run("--help").stdout == cli.build_parser().format_help()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--reuse-promt", "off"], "--reuse-promt is no flag; did you mean --reuse-prompt?"),
        (["--reuse-promt=off"], "--reuse-promt is no flag; did you mean --reuse-prompt?"),
        (["--reuse", "off"], "--reuse is no flag"),
        (["sevre"], "There is no command sevre; did you mean serve?"),
        (["serve", "stray"], "stray is no flag"),
        (["--server-queue"], "--server-queue: expected one argument"),
        (["--server-queue", "0"], "had '0', from the command line"),
        (["--server-bind", "0.0.0.0:1"], "can be reached from other machines"),
        (["--config", "/absent.toml"], "--config /absent.toml cannot be read"),
    ],
)
def test_a_wrong_word_is_refused_with_a_hint(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(words) == cli.REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ignisd: ")
    assert hint in err


def test_a_switch_alone_means_on(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["config", "--check", "--reuse-prompt", "off"]) == 0
    settings = tomllib.loads(capsys.readouterr().out)
    assert settings["check"] == "on"
    assert settings["reuse"]["prompt"] == "off"


def test_of_a_flag_given_twice_the_last_one_counts(capsys: pytest.CaptureFixture[str]):
    """So a wrapper's flags can be followed by one's own; the help says so."""
    words = ["--server-queue", "5", "--check", "--server-queue=6", "--check", "off"]
    assert cli.main(["config", *words]) == 0
    settings = tomllib.loads(capsys.readouterr().out)
    assert (settings["server"]["queue"], settings["check"]) == (6, "off")
    assert "given twice the last one counts" in " ".join(cli.build_parser().format_help().split())


def test_config_prints_a_file_that_gives_the_same_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["--server-queue", "7", "--model", "4", "--vram-budget-bytes", "3G"]
    words += ["--server-request-timeout", "1.25", "--server-bind", "[::1]:80"]
    assert cli.main(["config", "--show-origin", *words]) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "printed.toml"
    file.write_text(printed)
    options = vars(cli.build_parser().parse_args(words))
    assert resolve({"config": str(file)}, {}).settings == resolve(options, {}).settings
    assert "# the command line" in printed
    assert "# default" in printed


def test_config_hides_the_key_and_reports_stray_variables():
    done = run("config", IGNISD_SERVER_API_KEY="sesame", IGNISD_SERVER_QUEU="1")
    assert done.returncode == 0
    assert "sesame" not in done.stdout + done.stderr
    assert "did you mean IGNISD_SERVER_QUEUE?" in done.stderr
