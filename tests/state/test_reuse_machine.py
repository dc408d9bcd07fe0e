"""Changes and look-ups of the index in random order, compared with a plain list after each."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from state.chain import Link, link_page
from state.retained import KIND_ORDER, Kind
from state.spec import Class
from tests.state.builders import tokens_of
from tests.state.plain_index import TTL_MS, Pair, constant

SALTS = (b"", b"tenant")
LETTERS = st.lists(st.integers(1, 2), min_size=1, max_size=4)
STATES = st.tuples(
    LETTERS,
    st.sampled_from(SALTS),
    st.sampled_from(list(KIND_ORDER)),
    st.sampled_from(list(Class)),
    st.integers(0, 3),
    st.none() | st.integers(1, 3),
)
"""Tokens, salt, kind, class, slot, and how many states ago its parent was published."""


class IndexMachine(RuleBasedStateMachine):
    """States are published, claimed and removed, and prompts looked up."""

    link: Link = staticmethod(link_page)

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(self.link)

    @rule(new=st.lists(STATES, min_size=1, max_size=3))
    def insert(self, new: list[tuple[list[int], bytes, Kind, Class, int, int | None]]) -> None:
        for one in new:
            self.pair.insert(*one)

    @precondition(lambda self: self.pair.model.states)
    @rule(data=st.data(), remember=st.booleans())
    def remove(self, data: st.DataObject, remember: bool) -> None:
        self.pair.remove(data.draw(st.sampled_from(sorted(self.pair.model.states))), remember)

    @precondition(lambda self: self.pair.model.states)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        self.pair.touch(data.draw(st.sampled_from(sorted(self.pair.model.states))))

    @precondition(lambda self: self.pair.model.states)
    @rule(data=st.data(), kind=st.sampled_from(list(KIND_ORDER)))
    def promote(self, data: st.DataObject, kind: Kind) -> None:
        self.pair.promote(data.draw(st.sampled_from(sorted(self.pair.model.states))), kind)

    @precondition(lambda self: self.pair.model.states)
    @rule(data=st.data(), pinned=st.booleans())
    def pin(self, data: st.DataObject, pinned: bool) -> None:
        self.pair.pin(data.draw(st.sampled_from(sorted(self.pair.model.states))), pinned)

    @rule(letters=LETTERS, salt=st.sampled_from(SALTS))
    def without_slot(self, letters: list[int], salt: bytes) -> None:
        self.pair.without_slot(letters, salt)

    @rule(passed_ms=st.sampled_from([1.0, TTL_MS, TTL_MS + 1.0]))
    def wait(self, passed_ms: float) -> None:
        self.pair.now_ms += passed_ms

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
        self.pair.look_up(prompt, salt, max(len(prompt) - less, 0))

    @rule()
    def look_up_again(self) -> None:
        self.pair.look_up_again()

    @rule()
    def give_way(self) -> None:
        self.pair.give_way()

    @invariant()
    def agrees(self) -> None:
        self.pair.agree()


class CollidingMachine(IndexMachine):
    """The same with a constant hash."""

    link = staticmethod(constant)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=25, stateful_step_count=30)
TestCollidingMachine = CollidingMachine.TestCase
TestCollidingMachine.settings = settings(max_examples=25, stateful_step_count=30)


@pytest.mark.parametrize("link", [link_page, constant])
@pytest.mark.parametrize("seed", range(6))
def test_long_walks_fill_the_index(seed: int, link: Link) -> None:
    """The machine's runs are short; these hold some dozens of states at a time."""
    rng = random.Random(seed)
    pair = Pair(link)
    for _ in range(250):
        ids = sorted(pair.model.states)
        does = rng.choices(
            ["insert", "remove", "touch", "wait", "promote", "without slot", "pin"],
            [8, 4, 4, 1, 2, 1, 1],
        )[0]
        if does == "insert" or not ids:
            pair.insert(
                [rng.randint(1, 3) for _ in range(rng.randint(1, 6))],
                rng.choice(SALTS),
                rng.choice(list(KIND_ORDER)),
                rng.choice(list(Class)),
                rng.randint(0, 3),
                rng.choice([None, 1, 1, 2, 3, 8]),
            )
        elif does == "remove":
            pair.remove(rng.choice(ids), rng.random() < 0.3)
        elif does == "touch":
            pair.touch(rng.choice(ids))
        elif does == "promote":
            pair.promote(rng.choice(ids), rng.choice(list(KIND_ORDER)))
        elif does == "pin":
            pair.pin(rng.choice(ids), rng.random() < 0.5)
        elif does == "without slot":
            letters = [rng.randint(1, 3) for _ in range(rng.randint(1, 6))]
            pair.without_slot(letters, rng.choice(SALTS))
        else:
            pair.now_ms += rng.choice([1.0, TTL_MS + 1.0])
        pair.agree()
    assert len(pair.model.states) > 20
    pair.look_up_again()
    pair.give_way()
