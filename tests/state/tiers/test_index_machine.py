"""Changes of a tier's index in random order, compared with a plain dictionary after each."""

import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from state.chain import Link, link_page
from state.spec import Class
from tests.state.tiers.pairs import IndexPair, constant
from tests.state.tiers.plain_tier import KINDS, NEARLY_ONE, SALTS, TTL_MS, Plain, plain

LETTERS = st.lists(st.integers(1, NEARLY_ONE), min_size=1, max_size=4)
RETAINED = st.fixed_dictionaries(
    {
        "letters": LETTERS,
        "salt": st.sampled_from(SALTS),
        "kind": st.sampled_from(KINDS),
        "pinned": st.sampled_from([False, False, False, True]),
        "cls": st.sampled_from(list(Class)),
        "hits": st.integers(0, 1),
        "used_ms": st.sampled_from([0.0, -1.0, -TTL_MS, -TTL_MS - 1.0]),
    }
)
LIVE = st.fixed_dictionaries(
    {
        "letters": LETTERS,
        "salt": st.sampled_from(SALTS),
        "tail": st.integers(0, 3),
        "prompt_pages": st.integers(0, 4),
        "cls": st.sampled_from(list(Class)),
        "hits": st.integers(0, 1),
        "used_ms": st.sampled_from([0.0, -1.0, -TTL_MS, -TTL_MS - 1.0]),
    }
)
STATES = RETAINED | LIVE
"""What `plain` is given; the use lies so long before the present."""


def state_of(id: int, given: dict[str, Any], now_ms: float) -> Plain:
    """A plain state as drawn, last used before `now_ms`."""
    return plain(id, **(given | {"used_ms": now_ms + given["used_ms"]}))


def random_state(rng: random.Random, id: int, now_ms: float) -> Plain:
    """A plain state of up to six pages."""
    letters = [rng.randint(1, NEARLY_ONE) for _ in range(rng.randint(1, 6))]
    given: dict[str, Any] = {
        "letters": letters,
        "salt": rng.choice([b"", b"", b"tenant"]),
        "cls": rng.choice(list(Class)),
        "hits": rng.randint(0, 1),
        "used_ms": now_ms - rng.choice([0.0, 1.0, 2.0, TTL_MS, TTL_MS + 1.0]),
    }
    if rng.random() < 0.3:
        return plain(id, tail=rng.randint(1, 3), prompt_pages=rng.randint(0, 6), **given)
    return plain(id, kind=rng.choice(KINDS), pinned=rng.random() < 0.1, **given)


class IndexMachine(RuleBasedStateMachine):
    """States come, are restored, renewed, held and removed."""

    link: Link = staticmethod(link_page)

    def __init__(self) -> None:
        super().__init__()
        self.pair = IndexPair(self.link)
        self.next_id = 0

    def _any(self, data: st.DataObject, ids: list[int]) -> int | None:
        return data.draw(st.sampled_from(ids)) if ids else None

    @rule(new=st.lists(STATES, min_size=1, max_size=3))
    def insert(self, new: list[dict[str, Any]]) -> None:
        for given in new:
            self.pair.insert(state_of(self.next_id, given, self.pair.now_ms))
            self.next_id += 1

    @precondition(lambda self: self.pair.model.states)
    @rule(data=st.data(), does=st.sampled_from(["remove", "touch", "hold", "release"]))
    def change(self, data: st.DataObject, does: str) -> None:
        states = self.pair.model.states.values()
        fitting = [
            one.id
            for one in states
            if does in ("touch", "hold") or (one.held > 0) == (does == "release")
        ]
        if fitting:
            getattr(self.pair, does)(data.draw(st.sampled_from(fitting)))

    @rule(data=st.data(), kind=st.sampled_from(KINDS), cls=st.sampled_from(list(Class)))
    def renew(self, data: st.DataObject, kind: Any, cls: Class) -> None:
        ids = [one.id for one in self.pair.model.states.values() if one.kind is not None]
        if ids:
            passed_ms = data.draw(st.sampled_from([0.0, 1.0, TTL_MS + 1.0]))
            id = data.draw(st.sampled_from(ids))
            self.pair.renew(id, kind, cls, self.pair.now_ms - passed_ms)

    @rule(data=st.data(), pinned=st.booleans())
    def pin(self, data: st.DataObject, pinned: bool) -> None:
        ids = [one.id for one in self.pair.model.states.values() if one.kind is not None]
        if ids:
            self.pair.pin(data.draw(st.sampled_from(ids)), pinned)

    @rule(passed_ms=st.sampled_from([1.0, TTL_MS, TTL_MS + 1.0]))
    def wait(self, passed_ms: float) -> None:
        self.pair.now_ms += passed_ms

    @invariant()
    def agrees(self) -> None:
        self.pair.agree()


class CollidingMachine(IndexMachine):
    """The same with a constant hash."""

    link = staticmethod(constant)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=20, stateful_step_count=25)
TestCollidingMachine = CollidingMachine.TestCase
TestCollidingMachine.settings = settings(max_examples=20, stateful_step_count=25)


def walk_index(seed: int, link: Link, num_steps: int) -> IndexPair:
    """A walk that is longer than the machine's, with some dozens of states at a time."""
    rng = random.Random(seed)
    pair = IndexPair(link)
    for step in range(num_steps):
        states = list(pair.model.states.values())
        held = [one.id for one in states if one.held]
        loose = [one.id for one in states if not one.held]
        retained = [one.id for one in states if one.kind is not None]
        does = rng.choices(
            ["insert", "remove", "touch", "hold", "release", "renew", "pin", "wait"],
            [10, 4 * bool(loose), 4 * bool(states), bool(states), 2 * bool(held),
             2 * bool(retained), bool(retained), 1],
        )[0]  # fmt: skip
        if does == "insert":
            pair.insert(random_state(rng, step, pair.now_ms))
        elif does == "renew":
            used_ms = pair.now_ms - rng.choice([0.0, 1.0, TTL_MS + 1.0])
            pair.renew(rng.choice(retained), rng.choice(KINDS), rng.choice(list(Class)), used_ms)
        elif does == "pin":
            pair.pin(rng.choice(retained), rng.random() < 0.5)
        elif does == "wait":
            pair.now_ms += rng.choice([1.0, 2.0, TTL_MS + 1.0])
        else:
            of = {"remove": loose, "release": held}.get(does, [one.id for one in states])
            getattr(pair, does)(rng.choice(of))
        if step % 10 == 0:
            pair.agree()
    return pair


def test_long_walks_fill_the_index() -> None:
    for seed in range(4):
        for link in (link_page, constant):
            pair = walk_index(seed, link, 200)
            assert len(pair.model.states) > 20
            pair.agree()
