"""Where a prompt is cut so that later requests can resume there."""

from collections.abc import Mapping
from dataclasses import dataclass

from state.groups import GroupName, resume_points, where_to_resume
from state.retained import KIND_ORDER, Kind
from state.spec import PAGE_TOKENS

SEAM_TOKENS = 8
"""Last tokens of a plain prompt that a continuation may tokenize in another way."""


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
    """A place where prefill yields a state: a multiple of the page, and what it serves.

    `groups` are those that keep something there; None is every group that the model has.
    """

    position: int
    kind: Kind
    groups: frozenset[GroupName] | None = None


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What is kept of every prompt.

    Args:
        interval_tokens: a cut at every multiple of it too; 0 keeps to the marks alone. Dense
            retention is the width of a prefill chunk.
        min_interrupted_tokens: what an interrupted prefill must have read to be kept.
        by_group: the interval of each sparse group, where they differ; replaces the one above.
        inert: groups among these whose miss does no harm.

    Raises:
        ValueError: an interval that is negative or no multiple of the page.
    """

    interval_tokens: int = 0
    min_interrupted_tokens: int = 1024
    by_group: tuple[tuple[GroupName, int], ...] = ()
    inert: frozenset[GroupName] = frozenset()

    def __post_init__(self) -> None:
        for interval in (self.interval_tokens, *(own for _, own in self.by_group)):
            if interval < 0 or interval % PAGE_TOKENS:
                raise ValueError(
                    f"retention interval {interval} is not 0 or a positive multiple of "
                    f"the page of {PAGE_TOKENS} tokens; change --reuse-retention-interval"
                )

    def promised(self, num_tokens: int) -> Mapping[int, frozenset[GroupName] | None]:
        """The periodic points of a prompt, and which groups keep something at each; None is all.

        Only points at which a follower could resume: whatever one group kept elsewhere would be of
        use to nobody, an inert one included.
        """
        if not self.by_group:
            step = self.interval_tokens
            return dict.fromkeys(range(step, num_tokens, step)) if step else {}
        kept: dict[int, set[GroupName]] = {}
        for name, step in self.by_group:
            for position in range(step, num_tokens, step) if step else ():
                kept.setdefault(position, {GroupName.FULL}).add(name)
        wanted = {name for name, _ in self.by_group if name not in self.inert}
        every = {GroupName.FULL, *(name for name, _ in self.by_group)}
        usable = where_to_resume(num_tokens, wanted, kept) if wanted else ()
        return {
            point: None if kept[point] == every else frozenset(kept[point])
            for point in reversed(usable)
        }

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
        best: dict[int, Cut] = {
            position: Cut(position, Kind.PERIODIC, groups)
            for position, groups in self.promised(num_tokens).items()
            if position > resumed_at
        }
        for offset, kind in wanted:
            assert 0 <= offset <= num_tokens, f"{kind} mark at {offset} of {num_tokens} tokens"
            position = min(offset // PAGE_TOKENS * PAGE_TOKENS, points[-1])
            if position <= resumed_at:
                continue
            held = best.get(position)
            if held is None or KIND_ORDER[kind] > KIND_ORDER[held.kind]:
                best[position] = Cut(position, kind)
        return tuple(best[position] for position in sorted(best))

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
        return wanted
