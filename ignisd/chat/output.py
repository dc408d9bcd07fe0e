"""Token ids become pieces of text: no split characters, no stop strings, reasoning apart.

The pieces of an answer, concatenated, do not depend on how its text is cut into tokens, nor on
how its tokens are cut into pieces.

Stop strings are looked for in the answer, not in the reasoning nor across the border of the two.
"""

import codecs
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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


class AnswerReader:
    """Reads one answer token by token.

    Args:
        vocabulary: gives the tokens their bytes.
        stops: strings that end the answer; at most a few.
        in_reasoning: the prompt ended inside an open reasoning block.

    A reasoning block is recognised by its own tokens and only at the head of an answer. Newlines
    around it belong to its frame and are dropped, so that rendering the message again gives the
    tokens that were generated.
    """

    def __init__(
        self, vocabulary: Vocabulary, stops: Sequence[str] = (), *, in_reasoning: bool = False
    ) -> None:
        self._vocabulary = vocabulary
        self._open = vocabulary.token_id(THINK_OPEN)
        self._close = vocabulary.token_id(THINK_CLOSE)
        self._decoder = TextDecoder()
        self._stop = StopMatcher(stops)
        self._reasoning = _NewlineTrimmer()
        self._channel = Channel.REASONING if in_reasoning else Channel.CONTENT
        self._blank = not in_reasoning
        self._after_reasoning = False
        self.num_tokens = 0
        self.num_reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met; nothing may be fed after it."""
        return self._stop.hit

    def feed(self, token: int) -> tuple[Delta, ...]:
        """The pieces that a token makes certain."""
        self.num_tokens += 1
        if self._channel is Channel.REASONING:
            self.num_reasoning_tokens += 1
            if token == self._close:
                return self._end_reasoning()
        elif token == self._open and self._blank:
            self.num_reasoning_tokens += 1
            self._channel = Channel.REASONING
            return ()
        return self._pass(self._decoder.feed(self._vocabulary.token_bytes(token)))

    def finish(self) -> tuple[Delta, ...]:
        """The pieces that were held back; call once, after the last token."""
        if self.stopped:
            return ()
        deltas = self._pass(self._decoder.flush())
        rest = self._stop.flush()
        return (*deltas, Delta(Channel.CONTENT, rest)) if rest else deltas

    def _end_reasoning(self) -> tuple[Delta, ...]:
        deltas = self._pass(self._decoder.flush())
        self._decoder = TextDecoder()
        self._channel = Channel.CONTENT
        self._blank = False
        self._after_reasoning = True
        return deltas

    def _pass(self, text: str) -> tuple[Delta, ...]:
        if self._channel is Channel.REASONING:
            text = self._reasoning.feed(text)
        else:
            if self._after_reasoning:
                text = text.lstrip("\n")
                self._after_reasoning = not text
            self._blank = self._blank and not text
            text = self._stop.feed(text) if text else ""
        return (Delta(self._channel, text),) if text else ()
