"""How one declared field becomes a flag, an environment name and a file key."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ignisd.errors import ConfigError
from ignisd.kinds import Kind

VARIABLE_PREFIX = "IGNISD_"


@dataclass(frozen=True, slots=True)
class Flag:
    """A declared field of the settings under its three spellings.

    Args:
        field: the field's name, e.g. `reuse_prompt`.
        kind: what its text means.
        default: its value when nobody sets it.
        help: one sentence on what it does; ends without a full stop.
        chapter: the heading under which the help lists it.
        meta: the placeholder of its value in the help.
        unit: the unit of the number, or nothing.
        key: its key in the file.
        secret: whether its value must not be shown.
    """

    field: str
    kind: Kind
    default: Any
    help: str
    chapter: str
    meta: str
    unit: str
    key: str
    secret: bool

    @property
    def option(self) -> str:
        """The spelling on the command line."""
        return "--" + self.field.replace("_", "-")

    @property
    def variable(self) -> str:
        """The spelling in the environment."""
        return VARIABLE_PREFIX + self.field.upper()

    def read(self, raw: object, where: str) -> Any:
        """The value meant by `raw`, which came from `where`; ConfigError when it is none."""
        try:
            return self.kind.read(raw)
        except ValueError:
            raise ConfigError(self.refusal(raw, where)) from None

    def refusal(self, raw: object, where: str) -> str:
        """Says what was wanted, what came, and from where."""
        had = "a secret that is empty" if self.secret else repr(raw)
        return f"{self.option} must be {self.kind.wants}; had {had}, from {where}."

    def show(self, value: Any) -> str:
        """`value` for a person to read; a secret stays hidden."""
        return "(hidden)" if self.secret and value is not None else self.kind.write(value)


def declare(
    kind: Kind,
    default: Any,
    help: str,
    *,
    chapter: str,
    meta: str,
    unit: str = "",
    key: str | None = None,
    secret: bool = False,
) -> Any:
    """A dataclass field that is also a flag.

    Args: see `Flag`; `key` is for a field whose name has one word only, or would hide a table.
    """
    facts = {
        "kind": kind,
        "help": help,
        "chapter": chapter,
        "meta": meta,
        "unit": unit,
        "key": key,
        "secret": secret,
    }
    return dataclasses.field(default=kind.read(default), metadata={"flag": facts})


def flags_of(settings: type) -> Iterator[Flag]:
    """The flags of a dataclass built from `declare`, in the order of declaration."""
    for field in dataclasses.fields(settings):
        facts = dict(field.metadata["flag"])
        table, _, rest = field.name.partition("_")
        facts["key"] = facts["key"] or (f"{table}.{rest.replace('_', '-')}" if rest else table)
        yield Flag(field=field.name, default=field.default, **facts)
