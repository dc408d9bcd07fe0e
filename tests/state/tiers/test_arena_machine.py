"""Changes of the arena in random order, compared with plain lists of cells after each."""

import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from state.chain import Link, link_page
from tests.state.tiers.pairs import ArenaPair, constant
from tests.state.tiers.plain_tier import TTL_MS
from tests.state.tiers.test_index_machine import STATES, random_state, state_of

NUM_CELLS = 16


class ArenaMachine(RuleBasedStateMachine):
    """States are placed, written piece by piece, landed or abandoned, restored and dropped."""

    link: Link = staticmethod(link_page)

    def __init__(self) -> None:
        super().__init__()
        self.pair = ArenaPair(NUM_CELLS, self.link)
        self.next_id = 0

    @rule(given=STATES, data=st.data(), at_once=st.booleans())
    def place(self, given: dict[str, Any], data: st.DataObject, at_once: bool) -> None:
        kept = data.draw(st.sets(st.sampled_from(sorted(self.pair.landed)), max_size=1)
                         if self.pair.landed else st.just(set()))  # fmt: skip
        new = state_of(self.next_id, given, self.pair.now_ms)
        if self.pair.place(new, kept) and at_once:
            self.pair.land(new.id)
        self.next_id += 1

    @precondition(lambda self: self.pair.model.pending)
    @rule(data=st.data(), does=st.sampled_from(["land", "abandon", "write"]))
    def go_on(self, data: st.DataObject, does: str) -> None:
        id = data.draw(st.sampled_from(sorted(self.pair.model.pending)))
        if does == "write":
            self.pair.write(id, data.draw(st.integers(1, 4)))
        else:
            getattr(self.pair, does)(id)

    @precondition(lambda self: self.pair.landed)
    @rule(data=st.data(), does=st.sampled_from(["drop", "touch", "hold", "release"]))
    def change(self, data: st.DataObject, does: str) -> None:
        fitting = [
            one.id
            for one in self.pair.landed.values()
            if does in ("touch", "hold") or (one.held > 0) == (does == "release")
        ]
        if fitting:
            getattr(self.pair, does)(data.draw(st.sampled_from(fitting)))

    @rule(data=st.data(), pinned=st.booleans())
    def pin(self, data: st.DataObject, pinned: bool) -> None:
        states = {**self.pair.landed, **self.pair.model.pending}
        ids = sorted(one.id for one in states.values() if one.kind is not None)
        if ids:
            self.pair.pin(data.draw(st.sampled_from(ids)), pinned)

    @rule(passed_ms=st.sampled_from([1.0, TTL_MS, TTL_MS + 1.0]))
    def wait(self, passed_ms: float) -> None:
        self.pair.now_ms += passed_ms

    @invariant()
    def agrees(self) -> None:
        self.pair.agree()


class CollidingMachine(ArenaMachine):
    """The same with a constant hash."""

    link = staticmethod(constant)


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(max_examples=25, stateful_step_count=30)
TestCollidingMachine = CollidingMachine.TestCase
TestCollidingMachine.settings = settings(max_examples=25, stateful_step_count=30)


def walk_arena(seed: int, link: Link, num_steps: int, num_cells: int) -> ArenaPair:
    """A walk that is longer than the machine's, in a larger arena."""
    rng = random.Random(seed)
    pair = ArenaPair(num_cells, link)
    for step in range(num_steps):
        pending = list(pair.model.pending)
        held = [one.id for one in pair.landed.values() if one.held]
        loose = [one.id for one in pair.landed.values() if not one.held]
        known = (*pair.landed.values(), *pair.model.pending.values())
        retained = [one.id for one in known if one.kind is not None]
        does = rng.choices(
            ["place", "write", "land", "abandon", "drop", "touch", "hold", "release", "pin",
             "wait"],
            [8, 4 * bool(pending), 5 * bool(pending), bool(pending), bool(loose),
             2 * bool(pair.landed), bool(loose), 2 * bool(held), bool(retained), 1],
        )[0]  # fmt: skip
        if does == "place":
            kept = set(rng.sample(loose, min(len(loose), rng.choice([0, 0, 1, 3]))))
            pair.place(random_state(rng, step, pair.now_ms), kept)
        elif does == "write":
            pair.write(rng.choice(pending), rng.randint(1, 4))
        elif does == "pin":
            pair.pin(rng.choice(retained), rng.random() < 0.3)
        elif does == "wait":
            pair.now_ms += rng.choice([1.0, 2.0, TTL_MS + 1.0])
        else:
            of = {"land": pending, "abandon": pending, "drop": loose, "release": held}
            getattr(pair, does)(rng.choice(of.get(does, list(pair.landed))))
        if step % 5 == 0:
            pair.agree()
    return pair


def test_long_walks_fill_the_arena() -> None:
    for seed in range(3):
        for link in (link_page, constant):
            pair = walk_arena(seed, link, 250, 40)
            pair.agree()
            assert min(pair.outcomes[one] for one in ("refused", "displaced", "shared")) > 3
