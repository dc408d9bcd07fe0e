"""The slot ledger against a plain map of owners."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from state.slots import SlotLedger

NUM_DEVICE, NUM_HOST = 2, 3


class SlotMachine(RuleBasedStateMachine):
    """Slots are taken, passed on and dropped; a dict says who owns what."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = SlotLedger.empty(NUM_DEVICE, NUM_HOST)
        self.owners: dict[int, int] = {}

    @rule(owner=st.integers(0, 9))
    def take(self, owner: int) -> None:
        free = [slot for slot in range(NUM_DEVICE + NUM_HOST) if slot not in self.owners]
        before = self.ledger
        taken = before.take(owner)
        if not free:
            assert taken is None
            return
        assert taken is not None
        self.ledger, slot = taken
        assert slot == free[0]
        assert before.owner(slot) is None, "a ledger that was left behind has changed"
        self.owners[slot] = owner

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.owners)))
        self.ledger = self.ledger.drop(slot)
        del self.owners[slot]

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), owner=st.integers(0, 9))
    def assign(self, data: st.DataObject, owner: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.owners)))
        self.ledger = self.ledger.assign(slot, owner)
        self.owners[slot] = owner

    @invariant()
    def agrees(self) -> None:
        assert dict(self.ledger.owned()) == self.owners
        assert self.ledger.num_used == len(self.owners)
        assert self.ledger.num_free == NUM_DEVICE + NUM_HOST - len(self.owners)
        for slot in range(NUM_DEVICE + NUM_HOST):
            assert self.ledger.owner(slot) == self.owners.get(slot)


TestSlotMachine = SlotMachine.TestCase
TestSlotMachine.settings = settings(max_examples=40, stateful_step_count=30)


def test_device_slots_come_first() -> None:
    ledger = SlotLedger.empty(1, 2)
    assert [ledger.is_host(slot) for slot in range(3)] == [False, True, True]
    taken = ledger.take(7)
    assert taken is not None
    assert taken[1] == 0


def test_owner_zero_is_an_owner() -> None:
    taken = SlotLedger.empty(0, 1).take(0)
    assert taken is not None
    ledger, slot = taken
    assert (slot, ledger.owner(0), ledger.num_free) == (0, 0, 0)
    assert ledger.take(1) is None


def test_free_and_unknown_slots_are_refused() -> None:
    ledger = SlotLedger.empty(1, 1)
    with pytest.raises(AssertionError, match="slot 1 has no owner"):
        ledger.drop(1)
    with pytest.raises(AssertionError, match="slot 1 has no owner"):
        ledger.assign(1, 4)
    for slot in (-1, 2):
        with pytest.raises(AssertionError, match=f"slot {slot} of 2"):
            ledger.is_host(slot)


def test_no_slots_at_all() -> None:
    assert SlotLedger.empty(0, 0).take(1) is None
