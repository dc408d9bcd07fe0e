"""Where a prompt is cut so that later requests can resume there."""

from dataclasses import dataclass

from state.retained import KIND_ORDER, Kind
from state.spec import PAGE_TOKENS

SEAM_TOKENS = 8
"""Last tokens of a plain prompt that a continuation may tokenize in another way."""


def resume_points(num_tokens: int) -> range:
    """Every length at which a request of `num_tokens` tokens may resume, ascending.

    This one function answers for both who writes and who reads: a prompt is cut only where a
    follower of the same prompt could resume, and the lookup tries exactly these lengths. They are
    the multiples of the page that leave at least one token to read.
    """
    return range(PAGE_TOKENS, num_tokens, PAGE_TOKENS)


@dataclass(frozen=True, slots=True)
class Marks:
    """Offsets in a prompt, in tokens, that rendering knows; None where there is no such place.

    Args:
        system_end: where the first system block ends, tools included.
        turn_open: right after the generation opener that follows the last real user message.
        opener: right after the final generation opener; None for a plain prompt.
        message_starts: where each message starts.
        tools: where the descriptions of tools begin and end, inside the system block.
    """

    system_end: int | None = None
    turn_open: int | None = None
    opener: int | None = None
    message_starts: tuple[int, ...] = ()
    tools: tuple[int, int] | None = None

    def segment_at(self, token: int) -> str:
        """The part of the prompt that a token lies in.

        Returns:
            `tools`, `system`, or `message k`, k counting every message from 0, the system block
            included; `prompt` where there are no marks.
        """
        if self.tools is not None and self.tools[0] <= token < self.tools[1]:
            return "tools"
        if self.system_end is not None and token < self.system_end:
            return "system"
        begun = sum(start <= token for start in self.message_starts)
        return f"message {begun - 1}" if begun else "prompt"


@dataclass(frozen=True, slots=True)
class Cut:
    """A place where prefill yields an image: a multiple of the page, and what it serves."""

    position: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What is kept of every prompt.

    Args:
        interval_tokens: a cut at every multiple of it too; 0 keeps to the marks alone. Dense
            retention is the width of a prefill chunk.
        min_interrupted_tokens: what an interrupted prefill must have read to be kept.

    Raises:
        ValueError: an interval that is negative or no multiple of the page.
    """

    interval_tokens: int = 0
    min_interrupted_tokens: int = 1024

    def __post_init__(self) -> None:
        if self.interval_tokens < 0 or self.interval_tokens % PAGE_TOKENS:
            raise ValueError(
                f"retention interval {self.interval_tokens} is not 0 or a positive multiple of "
                f"the page of {PAGE_TOKENS} tokens; change --reuse-retention-interval"
            )

    def cuts(
        self,
        marks: Marks,
        num_tokens: int,
        resumed_at: int,
        junctions: tuple[int, ...] = (),
    ) -> tuple[Cut, ...]:
        """The places to keep of a prompt, ascending, one kind at each.

        Every place lies beyond `resumed_at` and leaves a token to read, so that an identical
        prompt can resume there; a mark that ends the prompt on the grid is cut one page earlier.

        Args:
            marks: what rendering knows of the prompt.
            num_tokens: length of the prompt.
            resumed_at: length of what was reused, 0 when nothing was.
            junctions: offsets where requests were seen to part from this prompt.
        """
        points = resume_points(num_tokens)
        if not points:
            return ()
        wanted = self._wanted(marks, num_tokens)
        wanted += [(junction, Kind.JUNCTION) for junction in junctions]
        best: dict[int, Kind] = {}
        for offset, kind in wanted:
            assert 0 <= offset <= num_tokens, f"{kind} mark at {offset} of {num_tokens} tokens"
            position = min(offset // PAGE_TOKENS * PAGE_TOKENS, points[-1])
            if position <= resumed_at:
                continue
            held = best.get(position)
            if held is None or KIND_ORDER[kind] > KIND_ORDER[held]:
                best[position] = kind
        return tuple(Cut(position, best[position]) for position in sorted(best))

    def interrupted(self, read_tokens: int, resumed_at: int) -> Cut | None:
        """What to keep of a prefill that stops after `read_tokens`, or None when it read little."""
        position = read_tokens // PAGE_TOKENS * PAGE_TOKENS
        if position <= 0 or position - resumed_at < self.min_interrupted_tokens:
            return None
        return Cut(position, Kind.INTERRUPTED)

    def _wanted(self, marks: Marks, num_tokens: int) -> list[tuple[int, Kind]]:
        wanted: list[tuple[int, Kind]] = []
        if marks.system_end is not None:
            wanted.append((marks.system_end, Kind.PREFIX))
        if marks.turn_open is not None:
            wanted.append((marks.turn_open, Kind.TURN_OPEN))
        if marks.opener is not None:
            wanted.append((marks.opener, Kind.CHECKPOINT))
        else:
            wanted.append((max(num_tokens - SEAM_TOKENS, 0), Kind.CHECKPOINT))
        if self.interval_tokens:
            multiples = range(self.interval_tokens, num_tokens, self.interval_tokens)
            wanted += [(position, Kind.PERIODIC) for position in multiples]
        return wanted
