"""A retained state, and the order in which retained states give way."""

import enum
from dataclasses import dataclass, field

from state.chain import Chain
from state.groups import WHOLE, GroupName
from state.pages import NULL_PAGE
from state.spec import PAGE_TOKENS, Class, Fingerprint

DEFAULT_TTL_MS = 300_000.0
"""Idle time after which a prefix or a junction protects itself no longer, and after which a state
that a person left counts as an agent's."""


class Kind(enum.StrEnum):
    """Why a state is kept."""

    PREFIX = "prefix"
    CHECKPOINT = "checkpoint"
    TURN_OPEN = "turn_open"
    JUNCTION = "junction"
    PERIODIC = "periodic"
    INTERRUPTED = "interrupted"

    @property
    def is_checkpoint(self) -> bool:
        """Whether a conversation counts it among the two that it keeps."""
        return self in (Kind.CHECKPOINT, Kind.TURN_OPEN)


KIND_ORDER = {
    Kind.INTERRUPTED: 0,
    Kind.PERIODIC: 1,
    Kind.CHECKPOINT: 2,
    Kind.TURN_OPEN: 3,
    Kind.JUNCTION: 4,
    Kind.PREFIX: 5,
}
"""Which kind names a place that has several: the highest. A turn's opener that is also the final
one is turn-opening, because the next opener then supersedes other places and not this one."""


class Rank(enum.IntEnum):
    """Who gives way on the device; the lowest goes first."""

    STRANDED = 0
    LOWEST = 1
    PERIODIC = 2
    CHECKPOINT = 3
    JUNCTION = 4
    PREFIX = 5
    PINNED = 6


_RANK_OF = {
    Kind.INTERRUPTED: Rank.LOWEST,
    Kind.PERIODIC: Rank.PERIODIC,
    Kind.CHECKPOINT: Rank.CHECKPOINT,
    Kind.TURN_OPEN: Rank.CHECKPOINT,
    Kind.JUNCTION: Rank.JUNCTION,
    Kind.PREFIX: Rank.PREFIX,
}


@dataclass(frozen=True, slots=True)
class Retained:
    """An image in a slot together with the pages before it.

    Args:
        id: unique for the life of the process.
        kind: why it is kept.
        chain: its tokens. A longer chain is cut to `length`.
        length: tokens that it stands for, a positive multiple of the page.
        table: its pages in order, length / 64 of them.
        slot: where its image lies.
        cls: the class of the request that left it.
        conversation: which chain of claims it belongs to; the index sets it.
        superseded: a later checkpoint of its conversation took its place.
        hits: how often it was claimed.
        published_ms: when it became findable.
        used_ms: when it was last claimed, or published.
        fingerprint: what its bytes depend on.
        pinned: somebody asked for it to stay; it gives way to no other state.
        groups: what it has of the model's groups.
    """

    id: int
    kind: Kind
    chain: Chain
    length: int
    table: tuple[int, ...] = field(repr=False)
    slot: int
    cls: Class
    conversation: int
    superseded: bool
    hits: int
    published_ms: float
    used_ms: float
    fingerprint: Fingerprint
    pinned: bool = False
    groups: frozenset[GroupName] = WHOLE

    def __post_init__(self) -> None:
        assert self.length > 0, f"state {self.id} retains {self.length} tokens"
        assert self.length % PAGE_TOKENS == 0, (
            f"state {self.id} ends at {self.length}, off the grid of {PAGE_TOKENS}"
        )
        if self.chain.num_tokens != self.length:
            object.__setattr__(self, "chain", self.chain.prefix(self.length))
        assert self.position == self.length, f"{self.position} tokens in a key of {self.length}"
        assert len(self.chain.digests) * PAGE_TOKENS == self.length, (
            f"{len(self.chain.digests)} digests for {self.length} tokens"
        )
        assert len(self.table) * PAGE_TOKENS == self.length, (
            f"state {self.id} has {len(self.table)} pages for {self.length} tokens"
        )
        assert NULL_PAGE not in self.table, f"state {self.id} lists the null page"
        assert self.slot >= 0, f"state {self.id} lies in slot {self.slot}"

    @property
    def position(self) -> int:
        """Tokens that its key holds, which its image has read."""
        return self.chain.num_tokens

    @property
    def digest(self) -> bytes:
        """The digest of all its tokens."""
        return self.chain.digests[-1]


def rank(retained: Retained, now_ms: float, ttl_ms: float) -> Rank:
    """How strongly a state holds its place.

    A prefix or junction that was never hit, or has been idle longer than `ttl_ms`, is worth a
    checkpoint and no more. A pinned state ranks above all others, whatever became of it.
    """
    if retained.pinned:
        return Rank.PINNED
    if retained.superseded:
        return Rank.LOWEST
    held = _RANK_OF[retained.kind]
    if held > Rank.CHECKPOINT and (not retained.hits or now_ms - retained.used_ms > ttl_ms):
        return Rank.CHECKPOINT
    return held


def serves_a_person(retained: Retained, now_ms: float, ttl_ms: float) -> bool:
    """Whether an interactive request left the state, and it was used within `ttl_ms`."""
    return retained.cls is Class.INTERACTIVE and now_ms - retained.used_ms <= ttl_ms


def rank_key(retained: Retained, now_ms: float, ttl_ms: float) -> tuple[bool, float, int]:
    """Sorts states of one rank in the order in which they give way.

    Agents' states go before interactive ones, then the least recently used, then the oldest. An
    interactive state that has been idle longer than `ttl_ms` goes with the agents', or the states
    of people who left would keep agents from every slot for ever.
    """
    return serves_a_person(retained, now_ms, ttl_ms), retained.used_ms, retained.id
