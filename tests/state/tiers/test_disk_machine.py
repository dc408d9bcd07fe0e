"""The disk tier in random order, with faults, damage and restarts, compared after each step."""

import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.state.tiers.disk_pair import DAMAGES, ERRORS, DiskPair
from tests.state.tiers.faulty_disk import Fault, scratch
from tests.state.tiers.plain_tier import TTL_MS
from tests.state.tiers.test_index_machine import STATES, random_state, state_of

FAULTS = st.none() | st.tuples(
    st.integers(0, 20),
    st.builds(Fault, error=st.sampled_from(ERRORS)) | st.builds(Fault, short=st.integers(1, 5000)),
)
"""After how many calls something happens, and what; None for a disk that works."""

WAITS_MS = (1.0, TTL_MS + 1.0, 10_000.0)


class DiskMachine(RuleBasedStateMachine):
    """States are written, read, damaged and given up; processes die and others go on."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(prefix="ignisd-disk-")
        self.pair = DiskPair(Path(self.folder.name), random.Random(0))
        self.next_id = 0

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(given=STATES, fault=FAULTS, waits=st.booleans())
    def write(self, given: dict[str, Any], fault: Any, waits: bool) -> None:
        new = state_of(self.next_id, given, self.pair.now_ms)
        self.next_id += 1
        if self.pair.place(new) and not waits:
            self.pair.finish(new.id, fault)

    @precondition(lambda self: self.pair.flights)
    @rule(data=st.data(), fault=FAULTS)
    def finish(self, data: st.DataObject, fault: Any) -> None:
        self.pair.finish(data.draw(st.sampled_from(sorted(self.pair.flights))), fault)

    @precondition(lambda self: self.pair.landed.states)
    @rule(data=st.data(), fault=FAULTS)
    def restore(self, data: st.DataObject, fault: Any) -> None:
        self.pair.restore(data.draw(st.sampled_from(sorted(self.pair.landed.states))), fault)

    @precondition(lambda self: self.pair.landed.states)
    @rule(data=st.data(), pinned=st.booleans())
    def pin(self, data: st.DataObject, pinned: bool) -> None:
        states = self.pair.landed.states.values()
        retained = sorted(one.id for one in states if one.kind is not None)
        if retained:
            self.pair.pin(data.draw(st.sampled_from(retained)), pinned)

    @precondition(lambda self: self.pair.landed.states)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.pair.drop(data.draw(st.sampled_from(sorted(self.pair.landed.states))))

    @rule(fault=FAULTS)
    def clear(self, fault: Any) -> None:
        self.pair.clear(fault)

    @rule(how=st.sampled_from(DAMAGES), seed=st.integers(0, 1000))
    def damage(self, how: str, seed: int) -> None:
        self.pair.random.seed(seed)
        self.pair.damage(how)

    @rule(num_foreign=st.integers(0, 3), power=st.booleans(), seed=st.integers(0, 1000))
    def restart(self, num_foreign: int, power: bool, seed: int) -> None:
        self.pair.random.seed(seed)
        self.pair.restart(num_foreign, power=power, first_id=self.next_id)
        self.next_id += 100

    @rule(is_full=st.booleans())
    def fill(self, is_full: bool) -> None:
        self.pair.full(is_full)

    @rule(sticks=st.booleans())
    def stick(self, sticks: bool) -> None:
        self.pair.stick(sticks)

    @rule(passed_ms=st.sampled_from(WAITS_MS))
    def wait(self, passed_ms: float) -> None:
        self.pair.now_ms += passed_ms

    @invariant()
    def agrees(self) -> None:
        self.pair.agree()


TestDiskMachine = DiskMachine.TestCase
TestDiskMachine.settings = settings(max_examples=25, stateful_step_count=30)


def walk_disk(root: Path, seed: int, num_steps: int) -> DiskPair:
    """A walk that is longer than the machine's, and mostly well."""
    rng = random.Random(seed)
    pair = DiskPair(root, random.Random(seed))
    for step in range(num_steps):
        landed, flights = sorted(pair.landed.states), sorted(pair.flights)
        retained = [id for id in landed if pair.landed.states[id].kind is not None]
        does = rng.choices(
            [
                "write",
                "finish",
                "restore",
                "drop",
                "clear",
                "damage",
                "restart",
                "fill",
                "stick",
                "wait",
                "pin",
            ],
            [9, 7 * bool(flights), 6 * bool(landed), bool(landed), 1, 0.7, 0.5, 0.3, 0.6, 1,
             bool(retained)],
        )[0]  # fmt: skip
        fault = None
        if pair.disk.always and does == "finish":
            # What a failed write leaves can be seen only where removing fails as well.
            fault = (rng.randrange(2, 9), Fault(error=ERRORS[0]))
        elif rng.random() < 0.15:
            error, short = rng.choice(ERRORS[:3]), rng.randint(1, 5000)
            fault = (rng.randrange(20), rng.choice([Fault(error=error), Fault(short=short)]))
        if does == "write":
            pair.place(random_state(rng, step, pair.now_ms))
        elif does == "finish":
            pair.finish(rng.choice(flights), fault)
        elif does == "restore":
            pair.restore(rng.choice(landed), fault)
        elif does == "drop":
            pair.drop(rng.choice(landed))
        elif does == "clear":
            pair.clear(fault)
        elif does == "damage":
            pair.damage(rng.choice(DAMAGES))
        elif does == "restart":
            pair.restart(rng.randint(0, 2), power=rng.random() < 0.5, first_id=1000 * (step + 1))
        elif does == "fill":
            pair.full(rng.random() < 0.3)
        elif does == "pin":
            pair.pin(rng.choice(retained), rng.random() < 0.3)
        elif does == "stick":
            pair.stick(rng.random() < 0.4)
        else:
            pair.now_ms += rng.choice(WAITS_MS)
        pair.agree()
    return pair


def test_long_walks_fill_the_disk() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(6):
        with scratch() as root:
            outcomes += walk_disk(root, seed, 150).outcomes
    seen = ("landed", "failed", "restored", "corrupt", "refused", "displaced", "restarted", "left")
    assert min(outcomes[one] for one in seen) > 1, outcomes
