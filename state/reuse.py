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
from state.groups import WHOLE, GroupName, resume_points, where_to_resume
from state.ranking import in_order_of_victims
from state.retained import KIND_ORDER, Kind, Rank, Retained
from state.shards import ShardMap
from state.spec import PAGE_TOKENS, Fingerprint

NUM_REMEMBERED = 1024
"""Digests of states that were discarded or found no slot, remembered to tell these from none."""


class MissReason(enum.StrEnum):
    """Why a request reused nothing, or less than its tokens shared with earlier ones.

    On the device: reuse is off (`reuse_off`); the prompt is shorter than the smallest resume point
    (`too_short`); nothing at all is shared (`no_match`), or less than a page (`diverged`); whole
    pages are shared beyond the deepest image (`state_missing`); a state there was given up
    (`evicted`) or found no slot (`no_slot`); the request's salt is new (`salt`).
    """

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

    @property
    def lost_tokens(self) -> int:
        """Tokens shared with something retained that are read again all the same."""
        return self.matched_tokens - self.length


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a request reuses nothing; the fields are as those of `Match`."""

    reason: MissReason
    matched_tokens: int = 0
    diverged_at: int | None = None

    @property
    def length(self) -> int:
        """Tokens that it saves: none."""
        return 0

    @property
    def lost_tokens(self) -> int:
        """Tokens shared with something retained that are read again all the same."""
        return self.matched_tokens


@dataclass(frozen=True, slots=True)
class ReuseIndex:
    """The retained states of one fingerprint.

    Args:
        fingerprint: what all of them are stamped with.
        entries: every state by id.
        by_digest: ids of the states that end at a digest.
        in_order: per salt, the ids in the order of the bytes of their tokens.
        members: per conversation, its states from the oldest to the newest.
        remembered: digests of states that were discarded or found no slot, the oldest first, and
            what a request is told that looks for them.
        next_conversation: number of the next conversation.
        pinned: ids of the states that are pinned.
        must_hit: the groups of the model without which nobody resumes.
    """

    fingerprint: Fingerprint
    entries: ShardMap[Retained]
    by_digest: dict[bytes, tuple[int, ...]]
    in_order: dict[bytes, tuple[int, ...]]
    members: ShardMap[tuple[int, ...]]
    remembered: dict[bytes, MissReason]
    next_conversation: int
    pinned: frozenset[int] = frozenset()
    must_hit: frozenset[GroupName] = WHOLE

    @staticmethod
    def empty(fingerprint: Fingerprint, must_hit: frozenset[GroupName] = WHOLE) -> "ReuseIndex":
        """Nothing retained."""
        return ReuseIndex(fingerprint, ShardMap(), {}, {}, ShardMap(), {}, 1, must_hit=must_hit)

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
                When the state goes on where that one's conversation stands, it joins it; otherwise
                it starts another one.
        """
        assert retained.id not in self.entries, f"state {retained.id} is retained already"
        assert retained.fingerprint == self.fingerprint, (
            f"state {retained.id} is stamped {retained.fingerprint}, the index {self.fingerprint}"
        )
        parent = None if parent_id is None else self.entries.get(parent_id)
        if parent is not None and self._goes_on(parent, retained.kind):
            conversation, before = parent.conversation, self.members[parent.conversation]
        else:
            conversation, before = self.next_conversation, ()
        retained = replace(retained, conversation=conversation, superseded=False)
        members = (*before, retained.id)
        entries = _sunk(self.entries.put(retained.id, retained), members)
        digest, salt = retained.digest, retained.chain.salt
        order = self.in_order.get(salt, ())
        at = bisect_right(order, retained.chain.raw, key=lambda id: entries[id].chain.raw)
        changed = list(order)
        changed.insert(at, retained.id)
        remembered = self.remembered
        if digest in remembered:
            remembered = {key: why for key, why in remembered.items() if key != digest}
        return replace(
            self,
            entries=entries,
            by_digest=self.by_digest | {digest: (*self.by_digest.get(digest, ()), retained.id)},
            in_order=self.in_order | {salt: tuple(changed)},
            members=self.members.put(conversation, members),
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
            remembered = _noted(remembered, digest, MissReason.EVICTED)
        return replace(
            self,
            entries=self.entries.drop(id),
            by_digest=_minus(self.by_digest, digest, id),
            in_order=_minus(self.in_order, retained.chain.salt, id),
            members=self.members.put(conversation, members)
            if members
            else self.members.drop(conversation),
            remembered=remembered,
            pinned=self.pinned - {id} if id in self.pinned else self.pinned,
        )

    def without_slot(self, chain: Chain, length: int) -> "ReuseIndex":
        """The state of the first `length` tokens found no slot; who looks for it is told so."""
        if self.find(chain, length) is not None:
            return self
        noted = _noted(self.remembered, chain.digest_at(length), MissReason.NO_SLOT)
        return replace(self, remembered=noted)

    def touch(self, id: int, now_ms: float) -> "ReuseIndex":
        """The state was claimed."""
        retained = self._held(id)
        touched = replace(retained, hits=retained.hits + 1, used_ms=now_ms)
        return replace(self, entries=self.entries.put(id, touched))

    def pin(self, id: int, pinned: bool) -> "ReuseIndex":
        """The state stays whatever comes, or no longer; the caller bounds how many do."""
        changed = replace(self._held(id), pinned=pinned)
        return replace(
            self,
            entries=self.entries.put(id, changed),
            pinned=self.pinned | {id} if pinned else self.pinned - {id},
        )

    def promote(self, id: int, kind: Kind) -> "ReuseIndex":
        """A request would have cut the state's place for `kind`: it takes the higher of the two.

        One that becomes a checkpoint counts among those of its conversation from now on; one that
        becomes a junction or a prefix is superseded by nothing.
        """
        held = self._held(id)
        if KIND_ORDER[kind] <= KIND_ORDER[held.kind]:
            return self
        raised = replace(held, kind=kind, superseded=held.superseded and kind.is_checkpoint)
        entries = self.entries.put(id, raised)
        return replace(self, entries=_sunk(entries, self.members[held.conversation]))

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
        found = self._deepest(chain, num_tokens)
        shared, diverged_at = self._parting(chain, num_tokens)
        matched = min(shared // PAGE_TOKENS * PAGE_TOKENS, points[-1])
        length = found.length if found else 0
        reason = self.shortfall(chain, num_tokens, length, matched)
        if found:
            return Match(found, found.length, matched, diverged_at, reason)
        if reason is None and chain.salt and chain.salt not in self.in_order:
            reason = MissReason.SALT
        if reason is None:
            reason = MissReason.DIVERGED if shared else MissReason.NO_MATCH
        return Miss(reason, matched, diverged_at)

    def shortfall(
        self, chain: Chain, num_tokens: int, length: int, matched_tokens: int
    ) -> MissReason | None:
        """Why a prompt that resumes at `length` tokens, wherever from, resumes at no more.

        Args:
            chain: of the prompt.
            num_tokens: length of the prompt.
            matched_tokens: whole pages that it shares with something retained.
        """
        points = resume_points(num_tokens)
        reason = self._remembered(chain.digests[length // PAGE_TOKENS : len(points)])
        if reason is None and matched_tokens > length:
            return MissReason.STATE_MISSING
        return reason

    def victims(
        self, now_ms: float, ttl_ms: float, most_protected: int | None = None
    ) -> Iterator[tuple[Rank, Retained]]:
        """All states with their ranks, in the order in which they give way, the first to go first.

        The order is that of this index at `now_ms`; a state removed while the walk goes on does
        not change it.

        Args:
            now_ms: the time.
            ttl_ms: idle time that ends a protection.
            most_protected: how many states may rank above a checkpoint; see `state.ranking`.
        """
        ids = (id for order in self.in_order.values() for id in order)
        in_order = map(self.entries.__getitem__, ids)
        return in_order_of_victims(list(self), in_order, now_ms, ttl_ms, most_protected)

    def _goes_on(self, parent: Retained, kind: Kind) -> bool:
        """Whether a state of that kind goes on where the conversation of its parent stands.

        That is its newest state; and for the opening of a turn, the opening of the last turn too.
        A template may render a finished turn anew, without its reasoning, and then nobody asks for
        what the turn left behind its opening.
        """
        members = self.members[parent.conversation]
        if members[-1] == parent.id:
            return True
        if not (kind is parent.kind is Kind.TURN_OPEN):
            return False
        later = members[members.index(parent.id) + 1 :]
        return all(self.entries[id].kind is not Kind.TURN_OPEN for id in later)

    def _held(self, id: int) -> Retained:
        retained = self.entries.get(id)
        assert retained is not None, f"state {id} is not among the {len(self.entries)} retained"
        return retained

    def _remembered(self, digests: tuple[bytes, ...]) -> MissReason | None:
        """What is remembered of the deepest of these digests of which anything is."""
        if self.remembered.keys().isdisjoint(digests):
            return None
        return next(self.remembered[key] for key in reversed(digests) if key in self.remembered)

    def _deepest(self, chain: Chain, num_tokens: int) -> Retained | None:
        ending = {
            place * PAGE_TOKENS: self._ending_at(chain, place * PAGE_TOKENS)
            for place, digest in enumerate(chain.digests, start=1)
            if digest in self.by_digest
        }
        kept = {length: one.groups for length, one in ending.items() if one is not None}
        found = where_to_resume(num_tokens, self.must_hit, kept)
        return ending[found[0]] if found else None

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


def _sunk(entries: ShardMap[Retained], members: tuple[int, ...]) -> ShardMap[Retained]:
    """The entries after the checkpoints of a conversation have sunk that others took the place of.

    Two keep their rank: the latest, and the latest that opened a turn.
    """
    checkpoints = [entries[id] for id in members if entries[id].kind.is_checkpoint]
    turn_opens = [one for one in checkpoints if one.kind is Kind.TURN_OPEN]
    kept = {one.id for one in (*checkpoints[-1:], *turn_opens[-1:])}
    for one in checkpoints:
        if one.id not in kept and not one.superseded:
            entries = entries.put(one.id, replace(one, superseded=True))
    return entries


def _noted(
    remembered: dict[bytes, MissReason], digest: bytes, reason: MissReason
) -> dict[bytes, MissReason]:
    """With one digest more, the latest; the oldest goes when there are too many."""
    noted = {key: why for key, why in remembered.items() if key != digest} | {digest: reason}
    if len(noted) > NUM_REMEMBERED:
        del noted[next(iter(noted))]
    return noted


def _minus(held: dict[bytes, tuple[int, ...]], key: bytes, id: int) -> dict[bytes, tuple[int, ...]]:
    left = held | {key: _without(held[key], id)}
    if not left[key]:
        del left[key]
    return left


def _without(ids: tuple[int, ...], id: int) -> tuple[int, ...]:
    left = list(ids)
    left.remove(id)
    return tuple(left)
