"""Which retained states there are, and the longest one that a prompt can resume from.

The index is a value: each change gives a new one. It keeps, by digest, the states that end there,
and per salt all states in the order of their tokens. In that order the states that share most
with a prompt are its two neighbours, which tells where it parted from what was seen before.
"""

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from state.chain import Chain
from state.ranking import in_order_of_victims
from state.retained import DEFAULT_TTL_MS, Kind, Retained
from state.retention import resume_points
from state.shards import ShardMap
from state.spec import PAGE_TOKENS, Fingerprint

NUM_REMEMBERED = 1024
"""Digests of discarded states that the index remembers, to tell an evicted state from none."""


class MissReason(enum.StrEnum):
    """Why a request reused nothing, or less than its tokens shared with earlier ones."""

    REUSE_OFF = "reuse_off"
    TOO_SHORT = "too_short"
    NO_MATCH = "no_match"
    DIVERGED = "diverged"
    STATE_MISSING = "state_missing"
    BELOW_FLOOR = "below_floor"
    EVICTED = "evicted"
    NO_SLOT = "no_slot"
    FINGERPRINT = "fingerprint"
    IMAGE_INSIDE = "image_inside"
    CORRUPT = "corrupt"
    SALT = "salt"


@dataclass(frozen=True, slots=True)
class Match:
    """What a request resumes from.

    Args:
        retained: the state.
        length: tokens that it saves.
        matched_tokens: whole pages shared with some retained key; beyond `length` by what finer
            retention would have saved.
        diverged_at: offset at which the request parts from the nearest key; None where the key or
            the request just ends.
        shortfall: why not more, where more was shared or once retained.
    """

    retained: Retained
    length: int
    matched_tokens: int
    diverged_at: int | None = None
    shortfall: MissReason | None = None


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a request reuses nothing; the fields are as those of `Match`."""

    reason: MissReason
    matched_tokens: int = 0
    diverged_at: int | None = None


@dataclass(frozen=True, slots=True)
class ReuseIndex:
    """The retained states of one fingerprint.

    Args:
        fingerprint: what all of them are stamped with.
        entries: every state by id.
        by_digest: ids of the states that end at a digest.
        in_order: per salt, the ids in the order of the bytes of their tokens.
        members: per conversation, its states from the oldest to the newest.
        remembered: digests of discarded states, the oldest first.
        next_conversation: number of the next conversation.
    """

    fingerprint: Fingerprint
    entries: ShardMap[Retained]
    by_digest: dict[bytes, tuple[int, ...]]
    in_order: dict[bytes, tuple[int, ...]]
    members: ShardMap[tuple[int, ...]]
    remembered: dict[bytes, None]
    next_conversation: int

    @staticmethod
    def empty(fingerprint: Fingerprint) -> "ReuseIndex":
        """Nothing retained."""
        return ReuseIndex(fingerprint, ShardMap(), {}, {}, ShardMap(), {}, 1)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Retained]:
        return self.entries.values()

    def __contains__(self, id: int) -> bool:
        return id in self.entries

    def get(self, id: int) -> Retained | None:
        """The state of that id, None when it is not retained any more."""
        return self.entries.get(id)

    def find(self, chain: Chain, length: int) -> Retained | None:
        """The state of exactly the first `length` tokens of a chain, whoever published it."""
        return self._ending_at(chain, length)

    def insert(self, retained: Retained, parent_id: int | None = None) -> "ReuseIndex":
        """The state becomes findable; its bytes are written.

        Args:
            retained: with an id that is not in use. Its conversation and `superseded` are set
                here.
            parent_id: the state that its sequence claimed or published last, None without one.
                When it is the newest of its conversation, the state joins that conversation;
                otherwise it starts another one.
        """
        assert retained.id not in self.entries, f"state {retained.id} is retained already"
        assert retained.fingerprint == self.fingerprint, (
            f"state {retained.id} is stamped {retained.fingerprint}, the index {self.fingerprint}"
        )
        parent = None if parent_id is None else self.entries.get(parent_id)
        if parent is not None and self.members[parent.conversation][-1] == parent.id:
            conversation, before = parent.conversation, self.members[parent.conversation]
        else:
            conversation, before = self.next_conversation, ()
        retained = replace(retained, conversation=conversation, superseded=False)
        entries = self.entries.put(retained.id, retained)
        for one in _superseded_by(retained, [entries[id] for id in before]):
            entries = entries.put(one.id, replace(one, superseded=True))
        digest, salt = retained.digest, retained.chain.salt
        order = self.in_order.get(salt, ())
        at = bisect_right(order, retained.chain.raw, key=lambda id: entries[id].chain.raw)
        changed = list(order)
        changed.insert(at, retained.id)
        remembered = self.remembered
        if digest in remembered:
            remembered = {known: None for known in remembered if known != digest}
        return ReuseIndex(
            fingerprint=self.fingerprint,
            entries=entries,
            by_digest=self.by_digest | {digest: (*self.by_digest.get(digest, ()), retained.id)},
            in_order=self.in_order | {salt: tuple(changed)},
            members=self.members.put(conversation, (*before, retained.id)),
            remembered=remembered,
            next_conversation=max(self.next_conversation, conversation + 1),
        )

    def remove(self, id: int, remember: bool = True) -> "ReuseIndex":
        """The state is not findable any more; the caller drops its pages and its slot.

        Args:
            id: of a state in the index.
            remember: whether a request that would have matched is told that it was evicted.
        """
        retained = self._held(id)
        digest, conversation = retained.digest, retained.conversation
        members = _without(self.members[conversation], id)
        remembered = self.remembered
        if remember:
            remembered = {known: None for known in remembered if known != digest} | {digest: None}
            if len(remembered) > NUM_REMEMBERED:
                del remembered[next(iter(remembered))]
        return ReuseIndex(
            fingerprint=self.fingerprint,
            entries=self.entries.drop(id),
            by_digest=_minus(self.by_digest, digest, id),
            in_order=_minus(self.in_order, retained.chain.salt, id),
            members=self.members.put(conversation, members)
            if members
            else self.members.drop(conversation),
            remembered=remembered,
            next_conversation=self.next_conversation,
        )

    def touch(self, id: int, now_ms: float) -> "ReuseIndex":
        """The state was claimed."""
        retained = self._held(id)
        touched = replace(retained, hits=retained.hits + 1, used_ms=now_ms)
        return replace(self, entries=self.entries.put(id, touched))

    def longest_match(self, chain: Chain, num_tokens: int) -> Match | Miss:
        """The longest retained state whose tokens are a strict prefix of the prompt's.

        Digests say where to look, from the deepest page up; equal token ids make the match. Among
        equal states the one in the lowest slot is taken, so one on the device before one in host
        memory.

        Args:
            chain: of the prompt.
            num_tokens: length of the prompt, at most that of the chain.
        """
        assert num_tokens <= chain.num_tokens, f"{num_tokens} of {chain.num_tokens} tokens"
        points = resume_points(num_tokens)
        if not points:
            return Miss(MissReason.TOO_SHORT)
        found = self._deepest(chain, points)
        shared, diverged_at = self._parting(chain, num_tokens)
        matched = min(shared // PAGE_TOKENS * PAGE_TOKENS, points[-1])
        length = found.length if found else 0
        reason = None
        beyond = chain.digests[length // PAGE_TOKENS : len(points)]
        if not self.remembered.keys().isdisjoint(beyond):
            reason = MissReason.EVICTED
        elif matched > length:
            reason = MissReason.STATE_MISSING
        if found:
            return Match(found, found.length, matched, diverged_at, reason)
        if reason is None:
            reason = MissReason.DIVERGED if shared else MissReason.NO_MATCH
        return Miss(reason, matched, diverged_at)

    def victims(self, now_ms: float, ttl_ms: float = DEFAULT_TTL_MS) -> Iterator[Retained]:
        """All states in the order in which they give way, the first to go first.

        The order is that of this index at `now_ms`; a state removed while the walk goes on does
        not change it.
        """
        ids = (id for order in self.in_order.values() for id in order)
        in_order = map(self.entries.__getitem__, ids)
        return in_order_of_victims(list(self), in_order, now_ms, ttl_ms)

    def _held(self, id: int) -> Retained:
        retained = self.entries.get(id)
        assert retained is not None, f"state {id} is not among the {len(self.entries)} retained"
        return retained

    def _deepest(self, chain: Chain, points: range) -> Retained | None:
        for length, digest in zip(
            reversed(points), reversed(chain.digests[: len(points)]), strict=True
        ):
            if digest in self.by_digest:
                found = self._ending_at(chain, length)
                if found is not None:
                    return found
        return None

    def _ending_at(self, chain: Chain, length: int) -> Retained | None:
        ids = self.by_digest.get(chain.digest_at(length))
        if ids is None:
            return None
        held = [self.entries[id] for id in ids]
        same = [one for one in held if one.length == length and one.chain.is_prefix_of(chain)]
        return min(same, key=lambda one: one.slot, default=None)

    def _parting(self, chain: Chain, num_tokens: int) -> tuple[int, int | None]:
        """Leading tokens shared with the nearest key, and where the prompt parts from it if so."""
        order = self.in_order.get(chain.salt, ())
        at = bisect_left(order, chain.raw, key=lambda id: self.entries[id].chain.raw)
        shared, diverged_at = 0, None
        for id in order[max(at - 1, 0) : at + 1]:
            key = self.entries[id].chain
            common = key.num_shared(chain)
            differ = common if common < min(key.num_tokens, num_tokens) else None
            if common > shared or (common == shared and differ is not None):
                shared, diverged_at = common, differ
        return shared, diverged_at


def _superseded_by(newest: Retained, before: list[Retained]) -> list[Retained]:
    """The checkpoints that sink when `newest` joins their conversation.

    Two keep their rank: the newest, and the latest that opened a turn.
    """
    if not newest.kind.is_checkpoint:
        return []
    turn_opens = [one for one in (*before, newest) if one.kind is Kind.TURN_OPEN]
    kept = {newest.id} | {one.id for one in turn_opens[-1:]}
    return [
        one
        for one in before
        if one.kind.is_checkpoint and not one.superseded and one.id not in kept
    ]


def _minus(held: dict[bytes, tuple[int, ...]], key: bytes, id: int) -> dict[bytes, tuple[int, ...]]:
    left = held | {key: _without(held[key], id)}
    if not left[key]:
        del left[key]
    return left


def _without(ids: tuple[int, ...], id: int) -> tuple[int, ...]:
    left = list(ids)
    left.remove(id)
    return tuple(left)
