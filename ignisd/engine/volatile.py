"""System blocks that change from request to request, which defeats all reuse of what follows them.

A clock, a token budget or a billing line in a system prompt makes every request part from the one
before it near its start. A miss alone does not show that: it looks like a new conversation. So the
last few first segments are kept by kind, and a request is told when its own differs from all of
the last three of its kind.
"""

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from state.chain import Chain

NUM_COMPARED = 3
"""A request is compared with so many before it."""

WARN_IN_A_ROW = 5
"""Reports in a row, within one kind, after which the operator is warned, once."""

NUM_FAMILIES = 16
"""Kinds of system blocks that are kept apart; the least recently seen is forgotten."""

MOST_TOKENS = 16_384
"""Of a longer block only the first so many tokens are kept."""

ALIKE = 2 / 3
"""Blocks are of one kind when this part of the longer one's tokens, wherever they stand and counted
as often as they occur, also occurs in the other."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The tokens of a first segment, and how often each occurs."""

    chain: Chain
    tokens: Numbers = field(repr=False)
    counts: Numbers = field(repr=False)

    @classmethod
    def of(cls, chain: Chain) -> Self:
        """The segment of these tokens."""
        tokens, counts = np.unique(chain.tokens.astype(np.int64), return_counts=True)
        return cls(chain, tokens, counts.astype(np.int64))

    def alike(self, other: "Segment") -> float:
        """The part of the longer one that also occurs in the other, 0 to 1; 0 across salts."""
        if self.chain.salt != other.chain.salt:
            return 0.0
        _, mine, theirs = np.intersect1d(
            self.tokens, other.tokens, assume_unique=True, return_indices=True
        )
        common = int(np.minimum(self.counts[mine], other.counts[theirs]).sum())
        return common / max(self.chain.num_tokens, other.chain.num_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """First segments of one kind.

    Args:
        recent: those of its last requests, the latest last.
        in_a_row: how many requests in a row differed from the three before them.
        warned: the operator has been told.
    """

    recent: tuple[Segment, ...] = ()
    in_a_row: int = 0
    warned: bool = False


@dataclass(frozen=True, slots=True)
class Volatile:
    """A first segment that differs from the last three of its kind.

    Args:
        offset: the first token at which the four are not all equal.
        in_a_row: requests of this kind in a row of which the same is true, this one included.
        warn: the operator should be told now.
    """

    offset: int
    in_a_row: int
    warn: bool


@dataclass(frozen=True, slots=True)
class FirstSegments:
    """What is remembered of system blocks, the kind seen last at the end. A value."""

    families: tuple[Family, ...] = field(default=())

    def seen(
        self, chain: Chain, system_end: int, shared_tokens: int
    ) -> tuple["FirstSegments", Volatile | None]:
        """After one request more.

        Args:
            chain: of its prompt.
            system_end: where its first segment ends.
            shared_tokens: leading tokens that it shares with something retained. A segment that is
                shared whole is not volatile, whatever came in between.
        """
        if not 0 < system_end <= chain.num_tokens:
            return self, None
        known, segment, family, others = self._placed(chain.prefix(min(system_end, MOST_TOKENS)))
        report = None
        if known or shared_tokens >= system_end:
            family = replace(family, in_a_row=0)
        elif len(family.recent) == NUM_COMPARED:
            offset = min(segment.chain.num_shared(one.chain) for one in family.recent)
            in_a_row = family.in_a_row + 1
            warn = in_a_row >= WARN_IN_A_ROW and not family.warned
            family = replace(family, in_a_row=in_a_row, warned=family.warned or warn)
            report = Volatile(offset, in_a_row, warn)
        family = replace(family, recent=(*family.recent, segment)[-NUM_COMPARED:])
        return FirstSegments((*others, family)[-NUM_FAMILIES:]), report

    def _placed(self, chain: Chain) -> tuple[bool, Segment, Family, tuple[Family, ...]]:
        """Whether its family knows a segment, the segment, its family, and the other families."""
        for place, family in enumerate(self.families):
            for segment in family.recent:
                if segment.chain == chain:
                    return True, segment, family, self._but(place)
        segment = Segment.of(chain)
        likeness = [segment.alike(family.recent[-1]) for family in self.families]
        best = max(range(len(likeness)), key=likeness.__getitem__, default=None)
        if best is None or likeness[best] < ALIKE:
            return False, segment, Family(), self.families
        return False, segment, self.families[best], self._but(best)

    def _but(self, place: int) -> tuple[Family, ...]:
        return self.families[:place] + self.families[place + 1 :]
