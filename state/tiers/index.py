"""Which states lie in a tier below the device, who can resume from them, and who gives way first.

The index is a value: each change gives a new one. It keeps retained states by the digest that
they end with, and all states in the order of their last use, in one ordered set for each of nine
standings. The order in which states give way is merged from these as it is walked; pinned states
have a standing of their own, which is not walked.
"""

import heapq
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile

from state.chain import Chain
from state.groups import WHOLE, where_to_resume
from state.retained import Kind
from state.shards import ShardMap
from state.spec import PAGE_TOKENS, Class
from state.tiers.digests import DigestMap
from state.tiers.ordered import OrderedSet
from state.tiers.stored import Stored, is_idle, key_of, renewed, retained_from
from state.tiers.tally import Tally

Use = tuple[float, int]
"""When a state was last used, and its id."""

NUM_STANDINGS = 9
_PINNED, _LIVE, _PERSON, _RESTORED = 8, 4, 2, 1


@dataclass(frozen=True, slots=True)
class TierIndex:
    """The states of one tier.

    Args:
        entries: every state by id.
        by_digest: ids of the retained states that end at a digest.
        by_use: for each standing, its states from the least recently used to the last.
        tally: what all of them add up to.
    """

    entries: ShardMap[Stored]
    by_digest: DigestMap
    by_use: tuple[OrderedSet[Use], ...]
    tally: Tally

    @staticmethod
    def empty() -> "TierIndex":
        """Nothing stored."""
        return TierIndex(ShardMap(), DigestMap(), (OrderedSet(),) * NUM_STANDINGS, Tally())

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Stored]:
        return self.entries.values()

    def __contains__(self, id: int) -> bool:
        return id in self.entries

    def get(self, id: int) -> Stored | None:
        """The state of that id, None when it is not here."""
        return self.entries.get(id)

    def insert(self, stored: Stored) -> "TierIndex":
        """The state becomes findable; its bytes are written. Its id is not in use."""
        assert stored.id not in self.entries, f"state {stored.id} is stored already"
        by_digest = self.by_digest
        if not stored.is_live:
            by_digest = by_digest.add(stored.chain.digests[-1], stored.id)
        return TierIndex(
            self.entries.put(stored.id, stored),
            by_digest,
            self._used(added=stored),
            self.tally.with_one(stored),
        )

    def remove(self, id: int) -> "TierIndex":
        """The state, which no move holds, is not findable any more."""
        stored = self._stored(id)
        assert not stored.held, f"state {id} is held by {stored.held} moves and cannot go"
        by_digest = self.by_digest
        if not stored.is_live:
            by_digest = by_digest.remove(stored.chain.digests[-1], id)
        return TierIndex(
            self.entries.drop(id),
            by_digest,
            self._used(gone=stored),
            self.tally.with_one(stored, -1),
        )

    def touch(self, id: int, now_ms: float) -> "TierIndex":
        """The state was restored."""
        stored = self._stored(id)
        return self._changed(stored, replace(stored, hits=stored.hits + 1, used_ms=now_ms))

    def renew(self, again: Stored) -> "TierIndex":
        """A retained state that is here came down again under its id; see `renewed`."""
        stored = self._stored(again.id)
        return self._changed(stored, renewed(stored, again))

    def keep(self, id: int, kind: Kind) -> "TierIndex":
        """A live state is retained from now on, and findable."""
        stored = self._stored(id)
        kept = retained_from(stored, kind)
        return TierIndex(
            self.entries.put(id, kept),
            self.by_digest.add(kept.chain.digests[-1], id),
            self._used(added=kept, gone=stored),
            self.tally.with_one(stored, -1).with_one(kept),
        )

    def pin(self, id: int, pinned: bool) -> "TierIndex":
        """A retained state stays whatever comes, or no longer; the caller bounds how many do."""
        stored = self._stored(id)
        return self._changed(stored, replace(stored, pinned=pinned))

    def hold(self, id: int) -> "TierIndex":
        """A move reads or writes the bytes of the state; it stays until it is released."""
        stored = self._stored(id)
        return self._changed(stored, replace(stored, held=stored.held + 1))

    def release(self, id: int) -> "TierIndex":
        """A move that held the state has ended."""
        stored = self._stored(id)
        assert stored.held > 0, f"state {id} is not held"
        return self._changed(stored, replace(stored, held=stored.held - 1))

    def find(self, chain: Chain, length: int) -> Stored | None:
        """The retained state of exactly the first `length` tokens of a chain.

        Of several, as when two requests raced, the oldest.

        Args:
            chain: what the tokens are compared with.
            length: a positive multiple of the page.
        """
        ids = self.by_digest.get(chain.digest_at(length))
        held = [self.entries[id] for id in ids]
        same = [one for one in held if one.length == length and one.chain.is_prefix_of(chain)]
        return min(same, key=lambda one: one.id, default=None)

    def longest_match(
        self, chain: Chain, num_tokens: int, without: Container[int] = ()
    ) -> Stored | None:
        """The longest retained state whose tokens are a strict prefix of the prompt's.

        Args:
            chain: the prompt's, of `num_tokens` tokens or more.
            num_tokens: length of the prompt.
            without: ids of states that do not count.
        """
        shards = self.by_digest.shards
        kept = {
            place * PAGE_TOKENS: WHOLE
            for place, digest in enumerate(chain.digests, start=1)
            if digest in shards[digest[0]]
        }
        for length in where_to_resume(num_tokens, WHOLE, kept):
            found = self.find(chain, length)
            if found is not None and found.id not in without:
                return found
        return None

    def victims(self, now_ms: float, ttl_ms: float) -> Iterator[Stored]:
        """The states that no move holds and that are not pinned, in the order in which they give
        way, found as it is asked.

        The order is that of this index at `now_ms`: see `key_of`.
        """
        ids = (id for level in self._levels(now_ms, ttl_ms) for _, id in level)
        for id in ids:
            stored = self.entries[id]
            if not stored.held:
                yield stored

    def _levels(self, now_ms: float, ttl_ms: float) -> Iterator[Iterable[Use]]:
        """The states of each standing at `now_ms`, from the lowest standing to the highest."""

        def idle(use: Use) -> bool:
            return is_idle(use[0], now_ms, ttl_ms)

        retained = self.by_use[:_LIVE]
        yield heapq.merge(retained[0], *(takewhile(idle, uses) for uses in retained[1:]))
        for uses in retained[1:]:
            yield uses.starting(lambda use: not idle(use))
        yield from self.by_use[_LIVE:_PINNED]

    def pinned(self) -> Iterator[Stored]:
        """The pinned states, the one that was used last first."""
        return (self.entries[id] for _, id in reversed(self.by_use[_PINNED]))

    @property
    def num_pinned(self) -> int:
        """How many states are pinned."""
        return len(self.by_use[_PINNED])

    def live(self) -> Iterator[Stored]:
        """The live sequences, in no order."""
        return (self.entries[id] for uses in self.by_use[_LIVE:_PINNED] for _, id in uses)

    def best(self, now_ms: float, ttl_ms: float) -> Iterator[Stored]:
        """The retained states, the one that gives way last first, found as it is asked."""

        def idle(use: Use) -> bool:
            return is_idle(use[0], now_ms, ttl_ms)

        yield from self.pinned()
        lowest, *higher = self.by_use[:_LIVE]
        for uses in reversed(higher):
            for _, id in takewhile(lambda use: not idle(use), reversed(uses)):
                yield self.entries[id]
        rest = (dropwhile(lambda use: not idle(use), reversed(uses)) for uses in higher)
        for _, id in heapq.merge(reversed(lowest), *rest, reverse=True):
            yield self.entries[id]

    def _stored(self, id: int) -> Stored:
        stored = self.entries.get(id)
        assert stored is not None, f"state {id} is not among the {len(self)} stored"
        return stored

    def _changed(self, before: Stored, after: Stored) -> "TierIndex":
        tally = self.tally
        if before.kind is not after.kind:
            tally = tally.with_one(before, -1).with_one(after)
        return TierIndex(
            self.entries.put(after.id, after), self.by_digest, self._used(before, after), tally
        )

    def _used(
        self, gone: Stored | None = None, added: Stored | None = None
    ) -> tuple[OrderedSet[Use], ...]:
        if gone is not None and added is not None and _place(gone) == _place(added):
            return self.by_use
        by_use = list(self.by_use)
        if gone is not None:
            standing, use = _place(gone)
            by_use[standing] = by_use[standing].remove(use)
        if added is not None:
            standing, use = _place(added)
            by_use[standing] = by_use[standing].add(use)
        return tuple(by_use)

    def check(self) -> None:
        """Raise AssertionError where what is derived disagrees with the states."""
        by_digest = Counter(
            (digest, id)
            for shard in self.by_digest.shards
            for digest, ids in shard.items()
            for id in ids
        )
        retained = Counter((one.chain.digests[-1], one.id) for one in self if not one.is_live)
        assert by_digest == retained, (
            f"{len(retained)} states are retained, {len(by_digest)} are findable by digest"
        )
        tally = Tally()
        for one in self:
            tally = tally.with_one(one)
        assert tally == self.tally, f"{len(self)} states add up to {tally}, not {self.tally}"
        for standing, uses in enumerate(self.by_use):
            wanted = sorted(_place(one)[1] for one in self if _place(one)[0] == standing)
            assert list(uses) == wanted, (
                f"standing {standing} lists {len(uses)} states, {len(wanted)} have it"
            )


def ranks_below(one: Stored, other: Stored, now_ms: float, ttl_ms: float) -> bool:
    """Whether the one gives way before the other."""
    return key_of(one, now_ms, ttl_ms) < key_of(other, now_ms, ttl_ms)


def _place(stored: Stored) -> tuple[int, Use]:
    """The ordered set that a state lies in, and where in it."""
    if stored.pinned:
        return _PINNED, (stored.used_ms, stored.id)
    standing = (
        _LIVE * stored.is_live
        + _PERSON * (stored.cls is Class.INTERACTIVE)
        + _RESTORED * (stored.hits > 0)
    )
    return standing, (stored.used_ms, stored.id)
