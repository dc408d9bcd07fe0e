"""A state that lies below the device, and the order in which such states give way."""

import enum
from dataclasses import dataclass, replace

from state.chain import Chain
from state.retained import KIND_ORDER, Kind, Retained
from state.spec import PAGE_TOKENS, Class

Key = tuple[bool, bool, bool, bool, float, int]
"""Compares as the states give way: the lowest goes first."""


class Standing(enum.StrEnum):
    """How strongly a state holds its place, from the weakest: what `key_of` says in words."""

    IDLE = "idle"
    AGENT = "agent"
    AGENT_RESTORED = "agent_restored"
    INTERACTIVE = "interactive"
    INTERACTIVE_RESTORED = "interactive_restored"
    PINNED = "pinned"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class Stored:
    """A state below the device: an image and the pages before it.

    Args:
        id: unique for the life of the process, from the counter of retained states.
        chain: its tokens. A longer chain is cut to `length`.
        length: tokens that its image has read; on the grid unless it is live.
        num_common: leading pages whose bytes their tokens alone decide. All of a retained state's;
            of a live one the whole pages of the prompt at most, because what decode wrote differs
            from what prefill would write in the last bits.
        kind: why it is kept; None for a live sequence that was evicted.
        cls: the class of the request that left it.
        owner: the request that a live one belongs to; None for a retained state.
        hits: how often it was restored from its tier.
        used_ms: when it was last used: restored, or claimed before it came down.
        held: moves that read or write its bytes now. One that is held is not given up.
        pinned: somebody asked for it to stay; it gives way to nothing.
        published_ms: when it was first kept; None where that was in an earlier process.
    """

    id: int
    chain: Chain
    length: int
    num_common: int
    kind: Kind | None
    cls: Class
    owner: int | None
    hits: int
    used_ms: float
    held: int = 0
    pinned: bool = False
    published_ms: float | None = None

    def __post_init__(self) -> None:
        assert self.length > 0, f"state {self.id} stands for {self.length} tokens"
        if self.chain.num_tokens != self.length:
            object.__setattr__(self, "chain", self.chain.prefix(self.length))
        assert 0 <= self.num_common <= self.length // PAGE_TOKENS, (
            f"state {self.id} has {self.num_common} common pages in {self.length} tokens"
        )
        assert self.hits >= 0, f"state {self.id} was restored {self.hits} times"
        assert self.held >= 0, f"state {self.id} is held {self.held} times"
        assert (self.kind is None) == (self.owner is not None), (
            f"state {self.id} is {self.kind or 'live'} and belongs to request {self.owner}"
        )
        assert not (self.pinned and self.kind is None), f"live state {self.id} is pinned"
        if self.kind is not None:
            assert self.num_common * PAGE_TOKENS == self.length, (
                f"retained state {self.id} has {self.num_common} common pages and {self.length} "
                f"tokens"
            )

    @property
    def is_live(self) -> bool:
        """Whether a request goes on from here; otherwise it is retained for whoever comes."""
        return self.kind is None

    @property
    def num_pages(self) -> int:
        """Pages, the one that is not full included."""
        return -(-self.length // PAGE_TOKENS)


def stored_of(retained: Retained) -> Stored:
    """What a retained state of the device is in a tier below it, never restored from there."""
    return Stored(
        id=retained.id,
        chain=retained.chain,
        length=retained.length,
        num_common=len(retained.table),
        kind=retained.kind,
        cls=retained.cls,
        owner=None,
        hits=0,
        used_ms=retained.used_ms,
        pinned=retained.pinned,
        published_ms=retained.published_ms,
    )


def renewed(stored: Stored, again: Stored) -> Stored:
    """A state that lies here, after it came down again; nothing of it is written anew.

    It takes the higher of the two kinds, a person's class over an agent's, the later use, and a pin
    of either.

    Args:
        stored: as it lies here.
        again: a retained state of the same tokens, under the same id.
    """
    assert stored.kind is not None, f"state {stored.id} is live and comes down once"
    assert again.kind is not None, f"state {again.id} is retained here and came down live"
    assert again.chain == stored.chain, f"state {again.id} came down with other tokens"
    return replace(
        stored,
        kind=max(stored.kind, again.kind, key=KIND_ORDER.__getitem__),
        cls=Class.INTERACTIVE if Class.INTERACTIVE in (stored.cls, again.cls) else stored.cls,
        used_ms=max(stored.used_ms, again.used_ms),
        pinned=stored.pinned or again.pinned,
    )


def retained_from(stored: Stored, kind: Kind) -> Stored:
    """A live state whose request has left, kept for whoever comes."""
    assert stored.kind is None, f"state {stored.id} is retained already, as {stored.kind}"
    return replace(stored, kind=kind, owner=None)


def is_idle(used_ms: float, now_ms: float, ttl_ms: float) -> bool:
    """Whether the last use is so long ago that it protects no more."""
    return now_ms - used_ms > ttl_ms


def key_of(stored: Stored, now_ms: float, ttl_ms: float) -> Key:
    """Sorts states in the order in which they give way.

    Retained before pinned before live; agents' before interactive ones; never restored before
    restored; then the least recently used, then the oldest. A retained state that has been idle
    longer than `ttl_ms` counts as an agent's that was never restored: otherwise what a person left,
    or what was once restored, would hold its place for ever against everything new. A live
    sequence waits and is not idle. Of pinned states the last use alone decides.
    """
    counts = stored.is_live or not (stored.pinned or is_idle(stored.used_ms, now_ms, ttl_ms))
    person = counts and stored.cls is Class.INTERACTIVE
    restored = counts and stored.hits > 0
    return stored.is_live, stored.pinned, person, restored, stored.used_ms, stored.id


def standing_of(stored: Stored, now_ms: float, ttl_ms: float) -> Standing:
    """The key of a state without its last use, as a word."""
    live, pinned, person, restored, _, _ = key_of(stored, now_ms, ttl_ms)
    if live or pinned:
        return Standing.LIVE if live else Standing.PINNED
    if is_idle(stored.used_ms, now_ms, ttl_ms):
        return Standing.IDLE
    if person:
        return Standing.INTERACTIVE_RESTORED if restored else Standing.INTERACTIVE
    return Standing.AGENT_RESTORED if restored else Standing.AGENT
