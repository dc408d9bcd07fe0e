"""The index against a plain list of states and a search through all of them."""

from dataclasses import dataclass, field

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from state.chain import Link, chain_of, link_page
from state.check import check_index
from state.retained import KIND_ORDER, Kind
from state.reuse import Match, Miss, MissReason, ReuseIndex
from state.spec import PAGE_TOKENS, Class
from tests.state.builders import FINGERPRINT, retained, tokens_of

TTL_MS = 100.0
SALTS = (b"", b"tenant")
LETTERS = st.lists(st.integers(1, 2), min_size=1, max_size=4)
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
    forgotten: list[tuple[bytes, list[int]]] = field(default_factory=list)
    next_conversation: int = 1

    def newest_of(self, conversation: int) -> int:
        return max(one.id for one in self.states.values() if one.conversation == conversation)

    def insert(self, new: Plain, parent_id: int | None) -> None:
        parent = self.states.get(parent_id) if parent_id is not None else None
        if parent is not None and self.newest_of(parent.conversation) == parent.id:
            new.conversation = parent.conversation
        else:
            new.conversation = self.next_conversation
            self.next_conversation += 1
        self.states[new.id] = new
        self.forgotten = [one for one in self.forgotten if one != (new.salt, new.tokens)]
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

    def answer(self, salt: bytes, prompt: list[int]) -> tuple[Plain | None, int, int | None, bool]:
        """The longest match, tokens shared, where the prompt parts, whether more was evicted."""
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
        evicted = any(
            reached < len(tokens) < len(prompt) and prompt[: len(tokens)] == tokens
            for kept_salt, tokens in self.forgotten
            if kept_salt == salt
        )
        return found, shared, shared if parts else None, evicted

    def level(self, one: Plain, now_ms: float) -> int:
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

    def victims(self, now_ms: float) -> list[int]:
        """Ids, each time the one that goes first of those that are left."""
        left = Model(dict(self.states))
        order = []
        while left.states:

            def key(one: Plain) -> tuple[int, bool, float, float, int]:
                level = left.level(one, now_ms)
                gap = left.gap(one) if level == 2 else 0.0
                return level, one.cls is Class.INTERACTIVE, gap, one.used_ms, one.id

            first = min(left.states.values(), key=key)
            order.append(first.id)
            del left.states[first.id]
        return order


class IndexMachine(RuleBasedStateMachine):
    """States are published, claimed and removed, and prompts looked up."""

    link: Link = staticmethod(link_page)
    digests_differ = True

    def __init__(self) -> None:
        super().__init__()
        self.index = ReuseIndex.empty(FINGERPRINT)
        self.model = Model()
        self.now_ms = 0.0
        self.next_id = 0

    @rule(
        letters=LETTERS,
        salt=st.sampled_from(SALTS),
        kind=st.sampled_from(list(KIND_ORDER)),
        cls=st.sampled_from(list(Class)),
        slot=st.integers(0, 3),
        data=st.data(),
    )
    def insert(
        self,
        letters: list[int],
        salt: bytes,
        kind: Kind,
        cls: Class,
        slot: int,
        data: st.DataObject,
    ) -> None:
        parent_id = data.draw(st.none() | st.integers(max(self.next_id - 3, 0), self.next_id))
        tokens = tokens_of(letters)
        chain = chain_of(tokens_of(letters, [1, 2, 3]), salt, self.link)
        new = retained(
            self.next_id, chain, len(tokens), kind=kind, cls=cls, slot=slot, now_ms=self.now_ms
        )
        before, num_before = self.index, len(self.index)
        self.index = before.insert(new, parent_id)
        assert len(before) == num_before
        assert new.id not in before
        self.model.insert(Plain(new.id, salt, tokens, kind, cls, slot, 0, self.now_ms), parent_id)
        self.next_id += 1

    @precondition(lambda self: self.model.states)
    @rule(data=st.data(), remember=st.booleans())
    def remove(self, data: st.DataObject, remember: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.model.states)))
        gone = self.model.states.pop(id)
        before = self.index
        self.index = before.remove(id, remember)
        assert id in before
        assert id not in self.index
        if remember:
            self.model.forgotten.append((gone.salt, gone.tokens))

    @precondition(lambda self: self.model.states)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.model.states)))
        self.index = self.index.touch(id, self.now_ms)
        self.model.states[id].hits += 1
        self.model.states[id].used_ms = self.now_ms

    @rule(passed_ms=st.sampled_from([1.0, TTL_MS, TTL_MS + 1.0]))
    def wait(self, passed_ms: float) -> None:
        self.now_ms += passed_ms

    @rule(
        letters=LETTERS,
        salt=st.sampled_from(SALTS),
        tail=st.integers(0, 3),
        less=st.integers(0, 70),
        changed=st.none() | st.integers(0, 255),
    )
    def look_up(
        self, letters: list[int], salt: bytes, tail: int, less: int, changed: int | None
    ) -> None:
        prompt = tokens_of(letters, [7, 8, 9][:tail])
        if changed is not None and changed < len(prompt):
            prompt[changed] += 256
        num_tokens = max(len(prompt) - less, 0)
        assume(num_tokens)
        chain = chain_of(prompt, salt, self.link)
        answer = self.index.longest_match(chain, num_tokens)
        self.compare(answer, salt, prompt[:num_tokens])

    @precondition(lambda self: self.model.states or self.model.forgotten)
    @rule(data=st.data(), more=st.sampled_from([[], [7], tokens_of([1]), tokens_of([2], [7])]))
    def look_up_again(self, data: st.DataObject, more: list[int]) -> None:
        """A prompt that is, or continues, what is retained or was."""
        known = [(one.salt, one.tokens) for one in self.model.states.values()]
        salt, tokens = data.draw(st.sampled_from(known + self.model.forgotten))
        prompt = tokens + more
        chain = chain_of(prompt, salt, self.link)
        self.compare(self.index.longest_match(chain, len(prompt)), salt, prompt)

    def compare(self, answer: Match | Miss, salt: bytes, prompt: list[int]) -> None:
        if len(prompt) <= PAGE_TOKENS:
            assert answer == Miss(MissReason.TOO_SHORT)
            return
        found, shared, diverged_at, evicted = self.model.answer(salt, prompt)
        matched = min(shared, len(prompt) - 1) // PAGE_TOKENS * PAGE_TOKENS
        length = len(found.tokens) if found else 0
        reason = MissReason.STATE_MISSING if matched > length else None
        if evicted and self.digests_differ:
            reason = MissReason.EVICTED
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
            if reason is None:
                reason = MissReason.DIVERGED if shared else MissReason.NO_MATCH
        assert told == reason or (told is MissReason.EVICTED and not self.digests_differ)

    @rule()
    def give_way(self) -> None:
        order = [one.id for one in self.index.victims(self.now_ms, TTL_MS)]
        assert order == self.model.victims(self.now_ms)

    @invariant()
    def agrees(self) -> None:
        check_index(self.index)
        told = {
            one.id: (one.conversation, one.superseded, one.hits, one.used_ms) for one in self.index
        }
        assert told == {
            one.id: (one.conversation, one.superseded, one.hits, one.used_ms)
            for one in self.model.states.values()
        }


class CollidingMachine(IndexMachine):
    """The same with a hash that is constant: only the tokens tell states apart."""

    link = staticmethod(lambda before, page: b"sixteen bytes ..")
    digests_differ = False


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=30)
TestCollidingMachine = CollidingMachine.TestCase
TestCollidingMachine.settings = settings(max_examples=60, stateful_step_count=30)
