"""The index beside a plain list of states and a search through all of them."""

from dataclasses import dataclass, field

from state.chain import Link, chain_of, link_page
from state.check import check_index
from state.retained import KIND_ORDER, Kind
from state.reuse import Match, Miss, MissReason, ReuseIndex
from state.spec import PAGE_TOKENS, Class
from tests.state.builders import FINGERPRINT, retained, tokens_of

TTL_MS = 100.0
CONTINUATIONS: tuple[list[int], ...] = ([], [7], tokens_of([1]), tokens_of([2], [7]))
PROTECTED = (Kind.JUNCTION, Kind.PREFIX)


@dataclass
class Plain:
    """A retained state with nothing derived."""

    id: int
    salt: bytes
    tokens: list[int]
    kind: Kind
    cls: Class
    slot: int
    conversation: int
    used_ms: float
    superseded: bool = False
    hits: int = 0
    pinned: bool = False


def shared_tokens(one: list[int], other: list[int]) -> int:
    """Leading tokens that are equal, counted one by one."""
    shared = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared


@dataclass
class Model:
    """The states in the order of their insertion, and what was forgotten."""

    states: dict[int, Plain] = field(default_factory=dict)
    forgotten: list[tuple[bytes, list[int], str]] = field(default_factory=list)
    next_conversation: int = 1

    def newest_of(self, conversation: int) -> int:
        return max(one.id for one in self.states.values() if one.conversation == conversation)

    def goes_on(self, parent: Plain, kind: Kind) -> bool:
        """From the newest state, or from the opening of the last turn to that of the next."""
        if self.newest_of(parent.conversation) == parent.id:
            return True
        opened = [
            one.id
            for one in self.states.values()
            if one.conversation == parent.conversation and one.kind is Kind.TURN_OPEN
        ]
        return kind is Kind.TURN_OPEN and parent.id == max(opened, default=None)

    def insert(self, new: Plain, parent_id: int | None) -> None:
        parent = self.states.get(parent_id) if parent_id is not None else None
        if parent is not None and self.goes_on(parent, new.kind):
            new.conversation = parent.conversation
        else:
            new.conversation = self.next_conversation
            self.next_conversation += 1
        self.states[new.id] = new
        self.forgotten = [one for one in self.forgotten if one[:2] != (new.salt, new.tokens)]
        if new.kind not in (Kind.CHECKPOINT, Kind.TURN_OPEN):
            return
        mine = [one for one in self.states.values() if one.conversation == new.conversation]
        openers = [one.id for one in mine if one.kind is Kind.TURN_OPEN]
        for one in mine:
            if one.kind in (Kind.CHECKPOINT, Kind.TURN_OPEN) and one.id not in (
                new.id,
                max(openers, default=None),
            ):
                one.superseded = True

    def promote(self, id: int, kind: Kind) -> None:
        """The checkpoints of a conversation but the latest and the latest turn-opening one sink."""
        one = self.states[id]
        if KIND_ORDER[kind] <= KIND_ORDER[one.kind]:
            return
        one.kind = kind
        one.superseded = one.superseded and kind not in PROTECTED
        checkpoints = [
            other
            for other in sorted(self.states.values(), key=lambda other: other.id)
            if other.conversation == one.conversation
            and other.kind in (Kind.CHECKPOINT, Kind.TURN_OPEN)
        ]
        openers = [other for other in checkpoints if other.kind is Kind.TURN_OPEN]
        for other in checkpoints:
            if other not in (checkpoints[-1], *openers[-1:]):
                other.superseded = True

    def answer(self, salt: bytes, prompt: list[int]) -> tuple[Plain | None, int, int | None, str]:
        """The longest match, tokens shared, where the prompt parts, what more there was once."""
        keys = [one for one in self.states.values() if one.salt == salt]
        usable = [
            one
            for one in keys
            if len(one.tokens) < len(prompt) and prompt[: len(one.tokens)] == one.tokens
        ]
        found = max(usable, key=lambda one: (len(one.tokens), -one.slot), default=None)
        shared = max((shared_tokens(one.tokens, prompt) for one in keys), default=0)
        parts = any(
            shared_tokens(one.tokens, prompt) == shared < min(len(one.tokens), len(prompt))
            for one in keys
        )
        reached = len(found.tokens) if found else 0
        gone = [
            (len(tokens), why)
            for kept_salt, tokens, why in self.forgotten
            if kept_salt == salt
            and reached < len(tokens) < len(prompt)
            and prompt[: len(tokens)] == tokens
        ]
        return found, shared, shared if parts else None, max(gone, default=(0, ""))[1]

    def without_slot(self, salt: bytes, tokens: list[int]) -> None:
        if not any((one.salt, one.tokens) == (salt, tokens) for one in self.states.values()):
            self.forget(salt, tokens, "no_slot")

    def forget(self, salt: bytes, tokens: list[int], why: str) -> None:
        self.forgotten = [one for one in self.forgotten if one[:2] != (salt, tokens)]
        self.forgotten.append((salt, tokens, why))

    def level(self, one: Plain, now_ms: float) -> int:
        if one.pinned:
            return 6
        if one.superseded or one.kind is Kind.INTERRUPTED:
            return 1
        if one.kind is Kind.PERIODIC:
            return 2
        idle = now_ms - one.used_ms > TTL_MS
        if one.kind not in PROTECTED or one.hits == 0 or idle:
            return 3
        return 4 if one.kind is Kind.JUNCTION else 5

    def gap(self, one: Plain) -> float:
        """From the nearest state that is a prefix to the nearest that extends it."""
        same = [other for other in self.states.values() if other.salt == one.salt]

        def comes_before(a: Plain, b: Plain) -> bool:
            prefix = b.tokens[: len(a.tokens)] == a.tokens
            return prefix and (len(a.tokens), a.id) < (len(b.tokens), b.id)

        above = [len(other.tokens) for other in same if comes_before(other, one)]
        below = [
            len(other.tokens)
            for other in same
            if comes_before(one, other)
            and not any(comes_before(one, x) and comes_before(x, other) for x in same)
        ]
        return min(below, default=float("inf")) - max(above, default=0)

    def victims(self, now_ms: float, most_protected: int) -> list[int]:
        """Ids, each time the one that goes first of those that are left."""
        left = Model(dict(self.states))
        order = []

        def personal(one: Plain) -> bool:
            return one.cls is Class.INTERACTIVE and now_ms - one.used_ms <= TTL_MS

        protected = sorted(
            (one for one in self.states.values() if self.level(one, now_ms) > 3),
            key=lambda one: (self.level(one, now_ms), personal(one), one.used_ms, one.id),
        )
        keep = {one.id for one in protected[max(len(protected) - most_protected, 0) :]}
        while left.states:

            def key(one: Plain) -> tuple[int, bool, float, float, int]:
                level = left.level(one, now_ms)
                if 3 < level < 6 and one.id not in keep:
                    level = 3
                gap = left.gap(one) if level == 2 else 0.0
                return level, personal(one), gap, one.used_ms, one.id

            first = min(left.states.values(), key=key)
            order.append(first.id)
            del left.states[first.id]
        return order


def constant(before: bytes, page: bytes) -> bytes:
    """A hash that finds everything everywhere: only the tokens tell states apart."""
    return b"sixteen bytes .."


class Pair:
    """An index and its model, changed together and compared."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.index = ReuseIndex.empty(FINGERPRINT)
        self.model = Model()
        self.now_ms = 0.0
        self.next_id = 0

    def insert(
        self,
        letters: list[int],
        salt: bytes,
        kind: Kind,
        cls: Class,
        slot: int,
        back: int | None,
    ) -> None:
        id, before = self.next_id, self.index
        self.next_id += 1
        parent_id = None if back is None else id - back
        tokens = tokens_of(letters)
        chain = chain_of(tokens_of(letters, [1, 2, 3]), salt, self.link)
        one = retained(id, chain, len(tokens), kind=kind, cls=cls, slot=slot, now_ms=self.now_ms)
        num_before = len(before)
        self.index = before.insert(one, parent_id)
        assert len(before) == num_before
        assert id not in before
        self.model.insert(Plain(id, salt, tokens, kind, cls, slot, 0, self.now_ms), parent_id)

    def remove(self, id: int, remember: bool) -> None:
        gone = self.model.states.pop(id)
        before = self.index
        self.index = before.remove(id, remember)
        assert id in before
        assert id not in self.index
        if remember:
            self.model.forget(gone.salt, gone.tokens, "evicted")

    def touch(self, id: int) -> None:
        self.index = self.index.touch(id, self.now_ms)
        self.model.states[id].hits += 1
        self.model.states[id].used_ms = self.now_ms

    def pin(self, id: int, pinned: bool) -> None:
        self.index = self.index.pin(id, pinned)
        self.model.states[id].pinned = pinned

    def promote(self, id: int, kind: Kind) -> None:
        self.index = self.index.promote(id, kind)
        self.model.promote(id, kind)

    def without_slot(self, letters: list[int], salt: bytes) -> None:
        tokens = tokens_of(letters)
        self.index = self.index.without_slot(chain_of(tokens, salt, self.link), len(tokens))
        self.model.without_slot(salt, tokens)

    def look_up(self, prompt: list[int], salt: bytes, num_tokens: int) -> None:
        chain = chain_of(prompt, salt, self.link)
        answer = self.index.longest_match(chain, num_tokens)
        self.compare(answer, salt, prompt[:num_tokens])

    def look_up_again(self) -> None:
        """Every prompt that is, or continues, what is retained or was."""
        known = [(one.salt, one.tokens) for one in self.model.states.values()]
        for salt, tokens in known + [one[:2] for one in self.model.forgotten]:
            for more in CONTINUATIONS:
                self.look_up(tokens + more, salt, len(tokens + more))

    def give_way(self) -> None:
        for most in (0, 1, 3, 1000):
            order = [one.id for _, one in self.index.victims(self.now_ms, TTL_MS, most)]
            assert order == self.model.victims(self.now_ms, most)

    def compare(self, answer: Match | Miss, salt: bytes, prompt: list[int]) -> None:
        if len(prompt) <= PAGE_TOKENS:
            assert answer == Miss(MissReason.TOO_SHORT)
            return
        found, shared, diverged_at, gone = self.model.answer(salt, prompt)
        matched = min(shared, len(prompt) - 1) // PAGE_TOKENS * PAGE_TOKENS
        length = len(found.tokens) if found else 0
        reason = MissReason.STATE_MISSING if matched > length else None
        if gone and self.link is link_page:
            reason = MissReason(gone)
        assert (answer.matched_tokens, answer.diverged_at) == (matched, diverged_at)
        if isinstance(answer, Match):
            assert found is not None
            assert answer.retained.slot == found.slot
            assert answer.retained.chain.tokens.tolist() == found.tokens
            assert answer.length == length
            told = answer.shortfall
        else:
            assert found is None
            told = answer.reason
            unknown = all(one.salt != salt for one in self.model.states.values())
            if reason is None and salt and unknown:
                reason = MissReason.SALT
            if reason is None:
                reason = MissReason.DIVERGED if shared else MissReason.NO_MATCH
        colliding = self.link is not link_page
        assert told == reason or (told in (MissReason.EVICTED, MissReason.NO_SLOT) and colliding)

    def agree(self) -> None:
        check_index(self.index)
        told = {
            one.id: (one.kind, one.conversation, one.superseded, one.hits, one.used_ms, one.pinned)
            for one in self.index
        }
        assert told == {
            one.id: (one.kind, one.conversation, one.superseded, one.hits, one.used_ms, one.pinned)
            for one in self.model.states.values()
        }
