"""Token ids become pieces of an answer: text without split characters or stop strings, reasoning
apart, tool calls read.

The pieces of an answer, concatenated, do not depend on how its text is cut into tokens, nor on
how its tokens are cut into pieces.

Stop strings are looked for in the text of the answer: not in the reasoning, not in a tool call,
and not across the borders of these.
"""

import codecs
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ignisd.chat.arguments import Tool, argument_pieces
from ignisd.chat.calls import CallFinder, Found, FoundCall

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


class Vocabulary(Protocol):
    """As much of a tokenizer as reading an answer takes."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to the text; none for special tokens."""
        ...

    def token_id(self, text: str) -> int | None:
        """The id of the token that is spelled exactly so, if there is one."""
        ...


class Channel(enum.StrEnum):
    """Which field of a message a piece of text belongs to."""

    REASONING = "reasoning_content"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of text, never empty."""

    channel: Channel
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins; `index` counts the calls of an answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments, never empty."""

    index: int
    text: str


Piece = Delta | CallStart | CallArguments


@dataclass(frozen=True, slots=True)
class CallReading:
    """How the tool calls of an answer are read.

    Args:
        tools: those that were offered.
        draw_id: a fresh identity for a call.
        single: the answer ends with its first call.
        in_reasoning: a call inside open reasoning ends it.
    """

    tools: Sequence[Tool]
    draw_id: Callable[[], str]
    single: bool = False
    in_reasoning: bool = True


class TextDecoder:
    """Bytes to text, holding back at most the three bytes of an unfinished character.

    Each maximal invalid sequence becomes one U+FFFD, as in a decode of the whole.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """The text that is certain by now."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The rest; an unfinished character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)


class StopMatcher:
    """Passes text on up to the stop string that begins earliest, which is itself swallowed.

    Only text that may still turn out to begin a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "a stop string must not be empty"
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False

    def feed(self, text: str) -> str:
        """The text that is certain to come before any stop string."""
        assert not self.hit, "text was fed after a stop string"
        self._held += text
        return self._advance(final=False)

    def flush(self) -> str:
        """The rest: no more text comes, so a mere beginning of a stop string is text."""
        return "" if self.hit else self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        held = self._held
        for start in range(len(held)) if self._stops else ():
            if any(held.startswith(stop, start) for stop in self._stops):
                self.hit = True
                self._held = ""
                return held[:start]
            rest = held[start:]
            if not final and any(stop.startswith(rest) for stop in self._stops):
                self._held = rest
                return held[:start]
        self._held = ""
        return held


class _NewlineTrimmer:
    """Drops the newlines at both ends of a text that arrives in pieces."""

    def __init__(self) -> None:
        self._begun = False
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        if not self._begun:
            text = text.lstrip("\n")
        kept = text.rstrip("\n")
        self._begun = self._begun or bool(kept)
        self._held = text[len(kept) :] if self._begun else ""
        return kept


class _SpaceHolder:
    """Holds back the white space at the end of a text: before a call it belongs to its frame."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        kept = text.rstrip()
        self._held = text[len(kept) :]
        return kept

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class AnswerReader:
    """Reads one answer token by token.

    Args:
        vocabulary: gives the tokens their bytes.
        stops: strings that end the answer; at most a few.
        in_reasoning: the prompt ended inside an open reasoning block.
        begun: text of the answer that the prompt holds already.
        calls: how tool calls are read; None leaves their markup in the text.
        hide_reasoning: reasoning is dropped, for a client that has switched thinking off.

    A reasoning block is recognised by its own tokens and only at the head of an answer. Newlines
    around it belong to its frame and are dropped, so that rendering the message again gives the
    tokens that were generated; likewise the white space around a call.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        stops: Sequence[str] = (),
        *,
        in_reasoning: bool = False,
        begun: str = "",
        calls: CallReading | None = None,
        hide_reasoning: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._open = vocabulary.token_id(THINK_OPEN)
        self._close = vocabulary.token_id(THINK_CLOSE)
        self._decoder = TextDecoder()
        self._stop = StopMatcher(stops)
        self._reasoning = _NewlineTrimmer()
        self._space = _SpaceHolder()
        self._calls = calls
        self._tools = {} if calls is None else {tool.name: tool for tool in calls.tools}
        self._finder = CallFinder(self._tools)
        self._hide_reasoning = hide_reasoning
        self._channel = Channel.CONTENT
        self._blank = not in_reasoning
        self._after_reasoning = False
        self._after_call = False
        self._implied_close = False
        self._done = False
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self.num_calls = 0
        if in_reasoning:
            self._begin_reasoning()
        pieces = self._pass(begun)
        assert not pieces, "only the opening of a call may have begun"

    @property
    def stopped(self) -> bool:
        """Whether the answer has ended by what was read; nothing may be fed after it."""
        return self._stop.hit or self._done

    @property
    def reasoning_open(self) -> bool:
        """Whether the reasoning has begun and not ended."""
        return self._channel is Channel.REASONING

    def feed(self, token: int) -> tuple[Piece, ...]:
        """The pieces that a token makes certain."""
        self.num_tokens += 1
        if self._channel is Channel.REASONING:
            self.num_reasoning_tokens += 1
            if token == self._close:
                return tuple(self._end_reasoning())
        elif token == self._open and self._blank:
            self.num_reasoning_tokens += 1
            self._begin_reasoning()
            return ()
        elif token == self._close and self._implied_close:
            self._implied_close = False
            return ()
        return tuple(self._pass(self._decoder.feed(self._vocabulary.token_bytes(token))))

    def finish(self, *, cut: bool = False) -> tuple[Piece, ...]:
        """The pieces that were held back; call once, after the last token.

        Args:
            cut: the answer was cut off, not ended by the model.
        """
        if self.stopped:
            return ()
        pieces = self._pass(self._decoder.flush())
        pieces += self._place(self._finder.finish(cut=cut))
        text = self._space.feed(self._stop.flush())
        # White space that only ends a call is no text.
        text += "" if self._after_call and not text else self._space.flush()
        return (*pieces, *_content(text))

    def _begin_reasoning(self) -> None:
        self._channel = Channel.REASONING
        self._finder.strict = True

    def _end_reasoning(self) -> list[Piece]:
        pieces = self._pass(self._decoder.flush())
        # A call that is open now was only thought of.
        pieces += self._place([self._finder.abandon()])
        self._decoder = TextDecoder()
        self._leave_reasoning()
        self._after_reasoning = True
        return pieces

    def _leave_reasoning(self) -> None:
        self._channel = Channel.CONTENT
        self._finder.strict = False
        self._blank = False

    def _pass(self, text: str) -> list[Piece]:
        reading = self._calls
        if self._channel is Channel.REASONING:
            seen = reading is not None and reading.in_reasoning
        else:
            seen = reading is not None
            if self._after_reasoning:
                text = text.lstrip("\n")
                self._after_reasoning = not text
            self._blank = self._blank and not text
        return self._place(self._finder.feed(text) if seen else [text])

    def _place(self, found: Sequence[Found]) -> list[Piece]:
        pieces: list[Piece] = []
        for each in found:
            if self.stopped:
                break
            pieces += self._text(each) if isinstance(each, str) else self._call(each)
        return pieces

    def _text(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._channel is Channel.REASONING:
            text = self._reasoning.feed(text)
            if self._hide_reasoning or not text:
                return []
            return [Delta(Channel.REASONING, text)]
        text = self._stop.feed(text)
        if self._calls is not None:
            text = self._space.feed(text)
            if self._stop.hit:
                text += self._space.flush()
        self._after_call = self._after_call and not text
        return _content(text)

    def _call(self, call: FoundCall) -> list[Piece]:
        assert self._calls is not None
        pieces: list[Piece] = []
        if self._channel is Channel.REASONING:
            self._leave_reasoning()
            # The model may still close what the call has ended.
            self._implied_close = True
        else:
            text = self._space.feed(self._stop.flush())
            if self._stop.hit:
                return _content(text + self._space.flush())
            self._space.flush()
            pieces += _content(text)
        index = self.num_calls
        pieces.append(CallStart(index, self._calls.draw_id(), call.name))
        arguments = argument_pieces(self._tools.get(call.name), call.given)
        pieces += [CallArguments(index, text) for text in arguments]
        self.num_calls += 1
        self._after_call = True
        self._done = self._calls.single
        return pieces


def _content(text: str) -> list[Piece]:
    return [Delta(Channel.CONTENT, text)] if text else []
