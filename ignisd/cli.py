"""The command line: reads the environment, picks the command, and answers a wrong word with a hint.

Nothing imported here imports jax, so that the help and a refused flag come at once; a command
imports what it needs when it runs.
"""

import argparse
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ignisd import __version__
from ignisd.errors import ConfigError
from ignisd.flags import Flag
from ignisd.kinds import Count, Switch
from ignisd.resolve import CONFIG_OPTION, CONFIG_VARIABLE, Resolved, Source, resolve, suggestion
from ignisd.settings import FLAGS

REFUSED = 2
"""Exit status of a start that was refused for its settings; trying again will not help."""

DAMAGED = 1
"""Exit status of an inspection that found something bad."""

_WIDTH = 100
_SHOW_ORIGIN = "--show-origin"
_JSON = "--json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (default: the process's own) asks for; its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words.pop(0) if words and not words[0].startswith("-") else "serve"
    try:
        if name not in _COMMANDS:
            raise ConfigError(f"There is no command {name}{suggestion(name, _COMMANDS)}")
        return _COMMANDS[name].run(words, os.environ)
    except ConfigError as error:
        print(f"ignisd: {error.message}", file=sys.stderr)
        return REFUSED


def build_parser() -> argparse.ArgumentParser:
    """The parser of every flag; it keeps text as text, and yields only what was given."""
    parser = argparse.ArgumentParser(
        prog="ignisd",
        usage="ignisd [COMMAND] [FLAG VALUE]...",
        description=_description(),
        epilog=_epilog(),
        formatter_class=_formatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        add_help=False,
        exit_on_error=False,
    )
    general = parser.add_argument_group("General")
    general.add_argument("-h", "--help", action="help", help="show this help and exit")
    general.add_argument(
        "--version",
        action="version",
        version=f"ignisd {__version__}",
        help="show the version and exit",
    )
    general.add_argument(
        CONFIG_OPTION, metavar="FILE", help=f"read settings from a TOML file [{CONFIG_VARIABLE}]"
    )
    chapters = {flag.chapter: None for flag in FLAGS}
    groups = {chapter: parser.add_argument_group(chapter) for chapter in chapters}
    for flag in FLAGS:
        add = groups[flag.chapter].add_argument
        text = _help_text(flag)
        if isinstance(flag.kind, Switch):  # alone, it means on
            add(flag.option, dest=flag.field, metavar=flag.meta, help=text, nargs="?", const="on")
        else:
            add(flag.option, dest=flag.field, metavar=flag.meta, help=text)
    return parser


def _resolve(words: Sequence[str], environ: Mapping[str, str]) -> Resolved:
    try:
        known, strange = build_parser().parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error}.") from None
    if strange:
        word = strange[0].partition("=")[0]
        options = [CONFIG_OPTION, *(flag.option for flag in FLAGS)]
        raise ConfigError(f"{word} is no flag{suggestion(word, options)}")
    return resolve(vars(known), environ)


def _serve(words: Sequence[str], environ: Mapping[str, str]) -> int:
    resolved = _resolve(words, environ)
    from ignisd import daemon

    return daemon.serve(resolved, environ)


def _config(words: Sequence[str], environ: Mapping[str, str]) -> int:
    resolved = _resolve([word for word in words if word != _SHOW_ORIGIN], environ)
    for flag, value, origin in resolved.lines():
        line = f"{flag.key} = {_toml(flag, value)}"
        if flag.secret and origin.source is not Source.DEFAULT:
            line = f"# {flag.key} is set and not shown"
        if _SHOW_ORIGIN in words:
            line = f"{line:<48} # {origin.where or origin.source}"
        print(line)
    for warning in resolved.warnings:
        print(f"ignisd: {warning}", file=sys.stderr)
    return 0


def _bench(words: Sequence[str], environ: Mapping[str, str]) -> int:
    from ignisd.bench import command
    from ignisd.bench.plan import read_plan

    plan, rest = read_plan(words)
    return command.run(plan, _resolve(rest, environ), environ)


def _plan(words: Sequence[str], environ: Mapping[str, str]) -> int:
    # Asking an accelerator for its size must not take its memory from who serves on it.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from ignisd import plan_command

    asked, rest = plan_command.read_words(words)
    return plan_command.run(asked, _resolve(rest, environ).settings, environ)


def _advise(words: Sequence[str], environ: Mapping[str, str]) -> int:
    from ignisd.advise import command

    key = environ.get("IGNISD_SERVER_API_KEY")
    for line in command.run(command.read_words(words), key):
        print(line)
    return 0


def _inspect(words: Sequence[str], environ: Mapping[str, str]) -> int:
    from ignisd import inspection

    strange = [word for word in words if word.startswith("-") and word != _JSON]
    if strange:
        raise ConfigError(f"{strange[0]} is no flag{suggestion(strange[0], [_JSON])}")
    folders = [word for word in words if not word.startswith("-")]
    if len(folders) != 1:
        raise ConfigError(f"ignisd inspect DIR [{_JSON}] takes one directory, had {len(folders)}.")
    groups = inspection.inspect(Path(folders[0]), 1e3 * time.time())
    if _JSON in words:
        print(json.dumps(inspection.as_json(groups), indent=2))
    else:
        print(*inspection.lines(groups), sep="\n")
    return DAMAGED if inspection.has_damage(groups) else 0


class _Command:
    """A word after `ignisd`: what it runs, and a line for the help."""

    def __init__(
        self, run: Callable[[Sequence[str], Mapping[str, str]], int], summary: str
    ) -> None:
        self.run = run
        self.summary = summary


_COMMANDS: dict[str, _Command] = {
    "serve": _Command(_serve, "run the daemon; a bare ignisd does the same"),
    "config": _Command(
        _config, f"print the settings as a file; {_SHOW_ORIGIN} also says who set each"
    ),
    "plan": _Command(_plan, "print the memory that a model would hold, without loading it"),
    "inspect": _Command(
        _inspect, f"list a disk tier and check every byte of it: ignisd inspect DIR [{_JSON}]"
    ),
    "advise": _Command(
        _advise, "choose a retention interval from a recorded trace: ignisd advise FILE, --explain"
    ),
    "bench": _Command(_bench, "measure prefill, decode and reuse, here and on other servers"),
}


def _toml(flag: Flag, value: str) -> str:
    return value if isinstance(flag.kind, Count) and value.isdecimal() else json.dumps(value)


def _help_text(flag: Flag) -> str:
    default = f"default {flag.show(flag.default)}"
    if flag.unit:
        default += f", in {flag.unit}" if flag.default is None else f" {flag.unit}"
    return f"{flag.help} [{default}; {flag.variable}]".replace("%", "%%")


def _description() -> str:
    about = (
        "Serves hybrid language models over the OpenAI protocol, and resumes prompts that begin "
        "like one it has read before without changing a bit of the answer."
    )
    commands = [f"  {name:<10}{command.summary}" for name, command in _COMMANDS.items()]
    return "\n".join([textwrap.fill(about, _WIDTH), "", "Commands:", *commands])


def _epilog() -> str:
    return textwrap.fill(
        "Each flag has three spellings: --reuse-prompt off on the command line, "
        "IGNISD_REUSE_PROMPT=off in the environment, and prompt = false under [reuse] in the file "
        f"given by {CONFIG_OPTION}. The command line wins over the environment, and that over the "
        "file. Of a flag that is given twice the last one counts. Sizes take K, M, G and T, in "
        "powers of 1024.",
        _WIDTH,
    )


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=_WIDTH)
