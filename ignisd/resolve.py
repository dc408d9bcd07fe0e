"""Where each setting comes from: the command line, the environment, a file, or its default.

The first that names a value decides it. Nothing here reads the environment or the command line
itself; `cli` passes them in.
"""

import difflib
import enum
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ignisd.errors import ConfigError
from ignisd.flags import VARIABLE_PREFIX, Flag
from ignisd.settings import FLAGS, Settings

CONFIG_OPTION = "--config"
CONFIG_VARIABLE = VARIABLE_PREFIX + "CONFIG"


class Source(enum.StrEnum):
    """Who decided a value, the strongest first."""

    RUNTIME = "runtime"
    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from: who decided, and the spelling that was used."""

    source: Source
    where: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings, where each comes from, and what to tell the operator once logging runs.

    Args:
        settings: what to do.
        origins: the origin of every field, by its name.
        warnings: sentences about names that look meant for us and are not known.
    """

    settings: Settings
    origins: Mapping[str, Origin]
    warnings: tuple[str, ...]

    def lines(self) -> Iterator[tuple[Flag, str, Origin]]:
        """Each flag with its value for a person to read (secrets hidden) and its origin."""
        for flag in FLAGS:
            value = getattr(self.settings, flag.field)
            yield flag, flag.show(value), self.origins[flag.field]


def resolve(options: Mapping[str, str], environ: Mapping[str, str]) -> Resolved:
    """The settings that the command line, the environment and the file they name ask for.

    Args:
        options: text by field name, from the command line; `config` names the file.
        environ: the environment.

    Raises:
        ConfigError: a value or a file key that is not understood, naming it and what is.
    """
    path = options.get("config", environ.get(CONFIG_VARIABLE))
    file = {} if path is None else _read_file(Path(path))
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for flag in FLAGS:
        if flag.field in options:
            raw: object = options[flag.field]
            origin = Origin(Source.FLAG, "the command line")
        elif flag.variable in environ:
            raw, origin = environ[flag.variable], Origin(Source.ENVIRONMENT, flag.variable)
        elif flag.key in file:
            raw, origin = file[flag.key], Origin(Source.FILE, f"{flag.key} in {path}")
        else:
            raw, origin = flag.default, Origin(Source.DEFAULT, "")
        values[flag.field] = flag.read(raw, origin.where)
        origins[flag.field] = origin
    return Resolved(Settings(**values), origins, tuple(_stray_variables(environ)))


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, tuple(known), n=1)
    return f"; did you mean {near[0]}?" if near else "."


def _stray_variables(environ: Mapping[str, str]) -> Iterator[str]:
    known = {flag.variable for flag in FLAGS} | {CONFIG_VARIABLE}
    for name in sorted(environ):
        if name.startswith(VARIABLE_PREFIX) and name not in known:
            yield f"The environment variable {name} sets nothing{suggestion(name, known)}"


def _read_file(path: Path) -> dict[str, object]:
    """The values of a TOML file by dotted key."""
    try:
        with path.open("rb") as file:
            tree = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{CONFIG_OPTION} {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{CONFIG_OPTION} {path} is not TOML: {error}.") from error
    values = dict(leaves(tree))
    for key in values:
        if key not in (flag.key for flag in FLAGS):
            raise ConfigError(f"{path} sets {key}, which is not known{key_meant(key)}")
    return values


def key_meant(word: str) -> str:
    """The hint for an unknown key, which may be a flag's name spelled as on the command line."""
    spellings = {flag.option.removeprefix("--"): flag.key for flag in FLAGS}
    exact = spellings.get(word.replace("_", "-"))
    return f"; did you mean {exact}?" if exact else suggestion(word, spellings.values())


def leaves(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The values of a tree of tables by dotted key."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
