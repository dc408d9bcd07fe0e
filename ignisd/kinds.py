"""What the text of a setting means: switches, counts, sizes, times, addresses.

A kind reads what a person wrote (text from the command line or the environment, a native value
from a TOML file) and writes it back the same way. It raises ValueError and nothing else; the flag
that it belongs to turns that into a message.
"""

import ipaddress
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?", re.IGNORECASE)
_TOKENS = re.compile(r"(\d+(?:\.\d+)?)\s*([KM]?)\s*tok", re.IGNORECASE)
_LARGEST = 2**63 - 1
"""What a number may be at most that has no other bound."""
_MAX_PORT = 65_535
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(:(?P<port>\d+))?"
)
_PORTS = {"http": "80", "https": "443"}


class Kind(Protocol):
    """The type of a flag's value, in a person's terms."""

    @property
    def wants(self) -> str:
        """The values that are accepted, to be read after `must be`."""

    def read(self, raw: object) -> Any:
        """The value meant by `raw`; ValueError when it is none."""

    def write(self, value: Any) -> str:
        """`value` as a person would write it; `read` takes it back."""


@dataclass(frozen=True, slots=True)
class Switch:
    """on or off; a file may also say `true` or `false` without quotes."""

    @property
    def wants(self) -> str:
        return "on or off"

    def read(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        return _one_of(str(raw).lower(), ("on", "off")) == "on"

    def write(self, value: Any) -> str:
        return "on" if value else "off"


@dataclass(frozen=True, slots=True)
class Choice:
    """One word of a few; members of a string enumeration are read as members."""

    words: tuple[str, ...]

    @property
    def wants(self) -> str:
        return "one of " + ", ".join(self.words)

    def read(self, raw: object) -> str:
        return _one_of(str(raw).lower(), self.words)

    def write(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Text:
    """Any text that is not empty; a kind with `none` also takes that word, for None."""

    none: str | None = None

    @property
    def wants(self) -> str:
        return "text that is not empty"

    def read(self, raw: object) -> str | None:
        if raw is None or raw == self.none:
            return None
        if not isinstance(raw, str) or not raw.strip():
            raise ValueError
        return raw

    def write(self, value: Any) -> str:
        return str(self.none) if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Folder:
    """A path; `~` is the home directory. None is written as `none`, with what that means."""

    none: str = "none"

    @property
    def wants(self) -> str:
        return f"a path, or {self.none}"

    def read(self, raw: object) -> Path | None:
        if raw is None or raw == self.none:
            return None
        if isinstance(raw, Path):
            return raw
        if not isinstance(raw, str) or not raw.strip():
            raise ValueError
        return Path(raw).expanduser()

    def write(self, value: Any) -> str:
        return self.none if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Hosts:
    """Names or addresses of hosts with commas between them, or none; a file may hold a list."""

    @property
    def wants(self) -> str:
        return (
            "names of hosts such as llm.example, without ports, with commas between them, or none"
        )

    def read(self, raw: object) -> tuple[str, ...]:
        return tuple(_host(word) for word in _words(raw))

    def write(self, value: Any) -> str:
        return ",".join(value) or "none"


@dataclass(frozen=True, slots=True)
class Origins:
    """Origins of web pages as browsers tell them, with commas between them, or none.

    A port that goes without saying is left out, as browsers do.
    """

    @property
    def wants(self) -> str:
        return (
            "origins such as http://localhost:3000, scheme and host without a path, with commas "
            "between them, or none"
        )

    def read(self, raw: object) -> tuple[str, ...]:
        return tuple(_origin(word) for word in _words(raw))

    def write(self, value: Any) -> str:
        return ",".join(value) or "none"


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number in a range, on a grid; `none` is the word that stands for None."""

    least: int
    most: int | None = None
    grid: int = 1
    none: str | None = None

    @property
    def wants(self) -> str:
        number = "a whole number" if self.grid == 1 else f"a multiple of {self.grid}"
        bounds = f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"
        return f"{number}, {bounds}" + (f", or {self.none}" if self.none else "")

    def read(self, raw: object) -> int | None:
        if self.none is not None and (raw is None or raw == self.none):
            return None
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            raise ValueError
        value = int(raw)
        most = _LARGEST if self.most is None else self.most
        if not self.least <= value <= most or value % self.grid:
            raise ValueError
        return value

    def write(self, value: Any) -> str:
        return str(self.none) if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time in seconds; `none` is the word that stands for None, no limit."""

    least: float
    none: str | None = None

    @property
    def wants(self) -> str:
        return f"a number of seconds, {self.least:g} or more" + (
            f", or {self.none}" if self.none else ""
        )

    def read(self, raw: object) -> float | None:
        if self.none is not None and (raw is None or raw == self.none):
            return None
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            raise ValueError
        try:
            value = float(raw)
        except OverflowError as error:
            raise ValueError from error
        if not self.least <= value < float("inf"):
            raise ValueError
        return value

    def write(self, value: Any) -> str:
        return str(self.none) if value is None else f"{value:g}"


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes, with a suffix K, M, G or T in powers of 1,024; `none` is the word for None."""

    none: str | None = None

    @property
    def wants(self) -> str:
        return "a size such as 512M or 2G" + (f", or {self.none}" if self.none else "")

    def read(self, raw: object) -> int | None:
        if self.none is not None and (raw is None or raw == self.none):
            return None
        return _bytes(raw)

    def write(self, value: Any) -> str:
        return str(self.none) if value is None else write_bytes(value)


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How large the KV pool shall be: bytes or tokens, exactly one of them."""

    num_bytes: int | None = None
    num_tokens: int | None = None

    def __post_init__(self) -> None:
        if (self.num_bytes is None) == (self.num_tokens is None):
            raise ValueError("a pool size is bytes or tokens")


@dataclass(frozen=True, slots=True)
class Pool:
    """A `PoolSize`: a size in bytes, or a number of tokens with the suffix tok."""

    none: str

    @property
    def wants(self) -> str:
        return f"a size such as 512M or 2G, a number of tokens such as 680Ktok, or {self.none}"

    def read(self, raw: object) -> PoolSize | None:
        if raw is None or raw == self.none:
            return None
        if isinstance(raw, PoolSize):
            return raw
        found = _TOKENS.fullmatch(raw.strip()) if isinstance(raw, str) else None
        if found is None:
            return PoolSize(num_bytes=_bytes(raw))
        return PoolSize(num_tokens=_bytes(f"{found[1]}{found[2]}"))

    def write(self, value: Any) -> str:
        if value is None:
            return self.none
        if value.num_tokens is not None:
            return f"{value.num_tokens}tok"
        return write_bytes(value.num_bytes)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the daemon listens."""

    host: str
    port: int

    @property
    def public(self) -> bool:
        """Whether other machines may reach it."""
        if self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HostPort:
    """HOST:PORT; an IPv6 host stands in brackets; port 0 takes a free one."""

    @property
    def wants(self) -> str:
        return f"HOST:PORT with a port from 0 to {_MAX_PORT}, such as 127.0.0.1:8000 or [::1]:8000"

    def read(self, raw: object) -> Address:
        if isinstance(raw, Address):
            return raw
        host, colon, port = str(raw).rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if not colon or not port.isdecimal() or int(port) > _MAX_PORT:
            raise ValueError
        if (":" in host) != bracketed or re.search(r"[\s/]", host):
            raise ValueError
        bare = host[1:-1] if bracketed else host
        if bracketed:
            ipaddress.IPv6Address(bare)
        if not bare:
            raise ValueError
        return Address(bare, int(port))

    def write(self, value: Any) -> str:
        return str(value)


def write_bytes(value: int) -> str:
    """`value` with the largest suffix that divides it: 1536M, 2G, 1000."""
    for suffix, size in reversed(_SIZES.items()):
        if value and value % size == 0:
            return f"{value // size}{suffix}"
    return str(value)


def _bytes(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        value = raw
    else:
        found = _SIZE.fullmatch(raw.strip()) if isinstance(raw, str) else None
        if found is None:
            raise ValueError
        value = int(Decimal(found[1]) * _SIZES[found[2].upper()])
    if not 0 <= value <= _LARGEST:
        raise ValueError
    return value


def _words(raw: object) -> tuple[str, ...]:
    """The words of a list, or of a text with commas between them."""
    words = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(words, list | tuple) or not all(isinstance(each, str) for each in words):
        raise ValueError
    stripped = tuple(word.strip() for word in words)
    return () if stripped == ("none",) else stripped


def _host(word: str) -> str:
    """A name as it is compared; an IPv6 address without its brackets."""
    bare = word[1:-1] if word.startswith("[") and word.endswith("]") else word
    if ":" in bare:
        return str(ipaddress.IPv6Address(bare))
    if not _NAME.fullmatch(word):
        raise ValueError
    return word.lower()


def _origin(word: str) -> str:
    found = _ORIGIN.fullmatch(word.lower())
    if found is None:
        raise ValueError
    scheme, host, port = found["scheme"], found["host"], found["port"]
    shown = f"[{_host(host)}]" if host.startswith("[") else _host(host)
    if port is not None and int(port) > _MAX_PORT:
        raise ValueError
    return f"{scheme}://{shown}" + (f":{int(port)}" if port and port != _PORTS.get(scheme) else "")


def _one_of(word: str, words: tuple[str, ...]) -> str:
    for known in words:
        if known == word:
            return known
    raise ValueError
