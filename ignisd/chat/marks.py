"""Where the parts of a rendered prompt begin, found by scanning its token ids.

Templates of the ChatML kind are understood:

    <|im_start|>ROLE\\n … <|im_end|>\\n   one message; message 0 may be the system block
    <|im_start|>assistant\\n              the opener of a turn; at the very end, of the answer

A prompt of any other kind has no marks and is kept at page boundaries only.
"""

import numpy as np

from ignisd.chat.tokenizer import ChatTokenizer
from ignisd.chat.types import TokenArray
from state.retention import Marks

MESSAGE_START = "<|im_start|>"
TOOL_RESPONSE = "<tool_response>"
_NO_MARKS = Marks(system_end=None, turn_open=None, opener=None, message_starts=())


class MarkFinder:
    """Knows the token patterns of one tokenizer."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._start = tokenizer.token_id(MESSAGE_START)
        self._system = tokenizer.encode(f"{MESSAGE_START}system")
        self._user = tokenizer.encode(f"{MESSAGE_START}user")
        self._opener = tokenizer.encode(f"{MESSAGE_START}assistant\n")
        # Tool results are rendered as user messages; a newline comes before the tag.
        self._result = tokenizer.encode(f"{MESSAGE_START}user\n{TOOL_RESPONSE}")
        # The tags of the list of tools; what stands before and after does not merge with them.
        self._tools_open = tokenizer.encode("<tools")
        self._tools_close = tokenizer.encode("</tools")
        self._think_open = tokenizer.token_id("<think>")
        self._think_close = tokenizer.token_id("</think>")

    def find(self, tokens: TokenArray) -> Marks:
        """The marks of a prompt, int32 [T]."""
        if self._start is None:
            return _NO_MARKS
        starts = tuple(int(at) for at in np.flatnonzero(tokens == self._start))
        if not starts:
            return _NO_MARKS
        openers = [at + len(self._opener) for at in starts if _begins(tokens, at, self._opener)]
        users = [
            at
            for at in starts
            if _begins(tokens, at, self._user) and not _begins(tokens, at, self._result)
        ]
        begins_with_system = starts[0] == 0 and _begins(tokens, 0, self._system)
        after_user = [at for at in openers if users and at > users[-1]]
        system_end = starts[1] if begins_with_system and len(starts) > 1 else None
        return Marks(
            system_end=system_end,
            turn_open=after_user[0] if after_user else None,
            opener=openers[-1] if openers and openers[-1] > starts[-1] else None,
            message_starts=starts,
            tools=None if system_end is None else self._tools_in(tokens[:system_end]),
        )

    def _tools_in(self, system: TokenArray) -> tuple[int, int] | None:
        """Where the list of tools begins and ends in the system block."""
        opened = _first(system, self._tools_open, 0)
        if opened is None:
            return None
        closed = _first(system, self._tools_close, opened)
        return None if closed is None else (opened, closed)

    def ends_in_reasoning(self, tokens: TokenArray) -> bool:
        """Whether the last opener is followed by a reasoning block that stays open."""
        if self._think_open is None or self._start is None:
            return False
        begun = np.flatnonzero(tokens == self._start)
        tail = tokens[int(begun[-1]) :] if len(begun) else tokens
        opened = np.flatnonzero(tail == self._think_open)
        if not len(opened):
            return False
        return not bool(np.any(tail[int(opened[-1]) :] == self._think_close))


def _first(tokens: TokenArray, pattern: TokenArray, start: int) -> int | None:
    """The first place at or after `start` where a pattern begins."""
    places = start + np.flatnonzero(tokens[start:] == pattern[0])
    return next((int(at) for at in places if _begins(tokens, int(at), pattern)), None)


def _begins(tokens: TokenArray, at: int, pattern: TokenArray) -> bool:
    return bool(np.array_equal(tokens[at : at + len(pattern)], pattern))
