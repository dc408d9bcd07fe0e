r"""Tool calls are found in the text of an answer, whatever pieces it arrives in.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

    TEXT ─opening─▶ BETWEEN ─<parameter=KEY>─▶ VALUE
      ▲                │  ▲                      │
      └─── TAIL ◀──────┘  └──── </parameter> ────┘
           </function>

The wrapper may be missing on either side; then the function must be one that was offered. A value
ends at a `</parameter>` after which the call goes on or ends, so code that contains such tags
comes through as it was written; one newline on either side of a value belongs to the frame. What
begins like a call and is none is text. A call is handed over when it is complete: an answer that
has been streamed cannot take back half a call.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ignisd.chat.arguments import Tool

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
FUNCTION = "<function="
FUNCTION_CLOSE = "</function>"
PARAMETER = "<parameter="
PARAMETER_CLOSE = "</parameter>"

MOST_NAME_CHARS = 256
# A model that has lost its way may write newlines until it is cut off: no gap is that long.
_MAX_GAP_CHARS = 256
# A value that was left open, though the call around it was closed.
_LEFT_OPEN = re.compile(r"\n?</function>\s*(?:</tool_call>\s*)?\Z")
_WAIT = object()


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A complete call; `given` are names and raw values in the order in which they came."""

    name: str
    given: tuple[tuple[str, str], ...]


Found = str | FoundCall


def forced_opening(name: str | None) -> str:
    """What an answer has to begin with to be a call, of any function for None.

    It ends where a token ends that a model would have written there itself.
    """
    if name is None:
        return f"{CALL_OPEN}\n{FUNCTION.removesuffix('=')}"
    return f"{CALL_OPEN}\n{FUNCTION}{name}>\n"


def callable_name(name: str) -> bool:
    """Whether a call of this function can be read out of an answer."""
    return _name(f"{name}>", 0) == name


class _At(enum.Enum):
    TEXT = enum.auto()
    BETWEEN = enum.auto()
    VALUE = enum.auto()
    TAIL = enum.auto()


@dataclass(slots=True)
class _OpenCall:
    """A call under way. `raw` is all its text so far, `pieces` that of the value being read."""

    name: str
    raw: list[str]
    given: dict[str, str] = field(default_factory=dict)
    key: str = ""
    pieces: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Opening:
    end: int
    name: str


class CallFinder:
    """Splits text into text and calls.

    Args:
        tools: those that were offered, by name.
        strict: take only calls that are wrapped and name an offered tool; may be changed while
            no call is open.
    """

    def __init__(self, tools: Mapping[str, Tool], *, strict: bool = False) -> None:
        self._tools = tools
        self.strict = strict
        self._at = _At.TEXT
        self._rest = ""
        self._call = _OpenCall("", [])

    def feed(self, text: str) -> list[Found]:
        """What is certain by now, in order."""
        self._rest += text
        found: list[Found] = []
        steps = {
            _At.TEXT: self._read_text,
            _At.BETWEEN: self._read_between,
            _At.VALUE: self._read_value,
            _At.TAIL: self._read_tail,
        }
        while steps[self._at](found):
            pass
        return [each for each in found if each != ""]

    def finish(self, *, cut: bool) -> list[Found]:
        """What is left at the end.

        Args:
            cut: the answer was cut off, so a call that is open, or may be about to open, is
                dropped. Otherwise the model ended it: the call is complete if all its parameters
                are, else it is text.
        """
        at, rest = self._at, self._rest
        self._at, self._rest = _At.TEXT, ""
        if at is _At.TEXT:
            # A lone angle bracket at the end of a cut text is more often text than a call.
            return [] if not rest or (cut and len(rest) > 1) else [rest]
        if at is _At.TAIL or cut:
            return []
        if at is _At.VALUE:
            return [self._closed_by_force(rest)]
        if self._call.given and FUNCTION_CLOSE.startswith(rest.strip()):
            return [self._complete()]
        return ["".join((*self._call.raw, rest))]

    def abandon(self) -> str:
        """What is held back, as text; a call that is open is given up."""
        at, rest = self._at, self._rest
        self._at, self._rest = _At.TEXT, ""
        open_call = at in (_At.BETWEEN, _At.VALUE)
        return "".join((*self._call.raw, rest)) if open_call else rest

    def _read_text(self, found: list[Found]) -> bool:
        rest = self._rest
        at = rest.find("<")
        while at >= 0:
            opening = self._opening(rest, at)
            if opening is _WAIT:
                found.append(rest[:at])
                self._rest = rest[at:]
                return False
            if isinstance(opening, _Opening):
                found.append(rest[:at])
                self._call = _OpenCall(opening.name, [rest[at : opening.end]])
                self._rest = rest[opening.end :]
                self._at = _At.BETWEEN
                return True
            at = rest.find("<", at + 1)
        found.append(rest)
        self._rest = ""
        return False

    def _opening(self, text: str, at: int) -> object:
        """An `_Opening` at this place, `_WAIT` if it may become one, else None."""
        wrapped = text.startswith(CALL_OPEN, at)
        begin = at
        if wrapped:
            begin = _after_gap(text, at + len(CALL_OPEN))
        elif _may_become(text, at, CALL_OPEN):
            return _WAIT
        elif self.strict:
            return None
        if not text.startswith(FUNCTION, begin):
            return _WAIT if _may_become(text, begin, FUNCTION) else None
        begin += len(FUNCTION)
        name = _name(text, begin)
        known_only = self.strict or not wrapped
        if name is _WAIT:
            partial = text[begin:]
            hopeful = not known_only or any(known.startswith(partial) for known in self._tools)
            return _WAIT if hopeful else None
        if not isinstance(name, str) or (known_only and name not in self._tools):
            return None
        return _Opening(begin + len(name) + 1, name)

    def _read_between(self, found: list[Found]) -> bool:
        rest = self._rest
        begin = _after_gap(rest, 0)
        if rest.startswith(FUNCTION_CLOSE, begin):
            self._consume(begin + len(FUNCTION_CLOSE))
            found.append(self._complete())
            self._at = _At.TAIL
            return True
        if self._call.given and rest.startswith(CALL_CLOSE, begin):
            found.append(self._complete())
            self._at = _At.TAIL
            return True
        if rest.startswith(PARAMETER, begin):
            key = _name(rest, begin + len(PARAMETER))
            if key is _WAIT:
                return False
            if isinstance(key, str):
                self._call.key, self._call.pieces = key, []
                self._consume(begin + len(PARAMETER) + len(key) + 1)
                self._at = _At.VALUE
                return True
        elif self._goes_on(rest, begin) is _WAIT:
            return False
        found.append("".join(self._call.raw))
        self._at = _At.TEXT
        return True

    def _read_value(self, found: list[Found]) -> bool:
        rest = self._rest
        at = rest.find(PARAMETER_CLOSE)
        if at < 0:
            # What may be the beginning of the tag is kept back.
            self._take_value(max(0, len(rest) - len(PARAMETER_CLOSE) + 1))
            return False
        end = at + len(PARAMETER_CLOSE)
        verdict = self._goes_on(rest, _after_gap(rest, end))
        if verdict is _WAIT:
            return False
        if not verdict:
            self._take_value(end)
            return True
        value = "".join((*self._call.pieces, rest[:at]))
        self._call.given[self._call.key] = value.removeprefix("\n").removesuffix("\n")
        self._consume(end)
        self._at = _At.BETWEEN
        return True

    def _goes_on(self, text: str, at: int) -> object:
        """Whether a call goes on or ends here after a parameter; `_WAIT` if that is open."""
        if text.startswith((FUNCTION_CLOSE, CALL_CLOSE), at):
            return True
        if not text.startswith(PARAMETER, at):
            maybe = any(
                _may_become(text, at, tag) for tag in (FUNCTION_CLOSE, CALL_CLOSE, PARAMETER)
            )
            return _WAIT if maybe else False
        begin = at + len(PARAMETER)
        key = _name(text, begin)
        tool = self._tools.get(self._call.name)
        taken = {self._call.key, *self._call.given}
        if key is _WAIT:
            partial = text[begin:]
            if tool is None or not tool.closed:
                return _WAIT
            hopeful = any(name.startswith(partial) for name in tool.types.keys() - taken)
            return _WAIT if hopeful else False
        if not isinstance(key, str) or key in taken:
            return False
        return tool is None or not tool.closed or key in tool.types

    def _read_tail(self, found: list[Found]) -> bool:
        begin = _after_gap(self._rest, 0)
        if self._rest.startswith(CALL_CLOSE, begin):
            self._rest = self._rest[begin + len(CALL_CLOSE) :]
        elif _may_become(self._rest, begin, CALL_CLOSE):
            return False
        self._at = _At.TEXT
        return True

    def _closed_by_force(self, rest: str) -> Found:
        """A call whose last value was open when the model ended its answer."""
        call = self._call
        before, closed, after = rest.rpartition(PARAMETER_CLOSE)
        value = "".join((*call.pieces, before if closed else rest))
        if not closed:
            left_open = _LEFT_OPEN.search(value)
            if left_open is None:
                return "".join((*call.raw, rest))
            value = value[: left_open.start()]
        elif not any(tag.startswith(after.strip()) for tag in (FUNCTION_CLOSE, CALL_CLOSE)):
            return "".join((*call.raw, rest))
        call.given[call.key] = value.removeprefix("\n").removesuffix("\n" if closed else "")
        return self._complete()

    def _complete(self) -> FoundCall:
        return FoundCall(self._call.name, tuple(self._call.given.items()))

    def _take_value(self, count: int) -> None:
        self._call.pieces.append(self._rest[:count])
        self._consume(count)

    def _consume(self, count: int) -> None:
        self._call.raw.append(self._rest[:count])
        self._rest = self._rest[count:]


def _after_gap(text: str, at: int) -> int:
    """The first place from `at` on that is no white space, or lies beyond the longest gap."""
    end = min(len(text), at + _MAX_GAP_CHARS + 1)
    while at < end and text[at].isspace():
        at += 1
    return at


def _may_become(text: str, at: int, tag: str) -> bool:
    """Whether the text ends at or inside a tag that begins at this place."""
    return len(text) - at < len(tag) and text.startswith(tag[: len(text) - at], at)


def _name(text: str, at: int) -> object:
    """The name from here to its bracket, `_WAIT` if more of it may come, None if it is none."""
    end = text.find(">", at, at + MOST_NAME_CHARS + 1)
    name = text[at : end if end >= 0 else at + MOST_NAME_CHARS + 1]
    if "<" in name or "\n" in name or len(name) > MOST_NAME_CHARS:
        return None
    if end < 0:
        return _WAIT
    return name or None
