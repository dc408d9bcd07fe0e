"""The page ledger against a plain count of holders."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from state.pages import NULL_PAGE, PageLedger, PagesExhausted

NUM_PAGES = 12


class PageMachine(RuleBasedStateMachine):
    """Tables come, are shared in part and go; a Counter says who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = PageLedger.empty(NUM_PAGES)
        self.tables: list[tuple[int, ...]] = []

    @property
    def held(self) -> Counter[int]:
        return Counter(page for table in self.tables for page in table)

    @rule(count=st.integers(0, NUM_PAGES + 2))
    def take(self, count: int) -> None:
        before = self.ledger
        counts = before.counts.copy()
        free = [page for page in range(1, NUM_PAGES) if not self.held[page]]
        if count > len(free):
            with pytest.raises(PagesExhausted) as caught:
                before.take(count)
            assert (caught.value.wanted, caught.value.free) == (count, len(free))
        else:
            self.ledger, pages = before.take(count)
            assert pages == tuple(free[:count])
            self.tables.append(pages)
        assert (before.counts == counts).all(), "a ledger that was left behind has changed"

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        shared = table[: data.draw(st.integers(0, len(table)))]
        self.ledger = self.ledger.share(shared)
        self.tables.append(shared)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        held = self.held
        assert self.ledger.num_sole(table) == sum(not held[page] for page in table)
        self.ledger = self.ledger.drop(table)

    @invariant()
    def agrees(self) -> None:
        held = self.held
        for page in range(1, NUM_PAGES):
            assert self.ledger.holders(page) == held[page]
        assert self.ledger.num_used == len(held)
        assert self.ledger.num_free == NUM_PAGES - 1 - len(held)
        assert NULL_PAGE not in held


TestPageMachine = PageMachine.TestCase
TestPageMachine.settings = settings(max_examples=40, stateful_step_count=30)


def test_null_page_is_never_handed_out_and_never_counts() -> None:
    ledger = PageLedger.empty(4)
    assert ledger.num_free == 3
    ledger, pages = ledger.take(3)
    assert pages == (1, 2, 3)
    assert (ledger.num_free, ledger.num_used) == (0, 3)
    for change in (ledger.share, ledger.drop):
        with pytest.raises(AssertionError, match="null page"):
            change((NULL_PAGE,))


def test_lowest_free_page_goes_first_after_a_drop() -> None:
    ledger, _ = PageLedger.empty(10).take(6)
    ledger = ledger.drop((4, 2))
    assert ledger.take(3)[1] == (2, 4, 7)


def test_exhausted_names_both_numbers_and_takes_nothing() -> None:
    ledger, _ = PageLedger.empty(4).take(1)
    with pytest.raises(PagesExhausted, match="wanted 3 pages, 2 are free"):
        ledger.take(3)
    assert ledger.num_free == 2


@pytest.mark.parametrize(
    ("pages", "message"),
    [((3,), "no holder"), ((1, 1), "listed twice"), ((9,), "page 9 of a pool of 6")],
)
def test_wrong_pages_are_refused(pages: tuple[int, ...], message: str) -> None:
    ledger, _ = PageLedger.empty(6).take(2)
    for change in (ledger.share, ledger.drop):
        with pytest.raises(AssertionError, match=message):
            change(pages)


def test_equal_ledgers_are_equal_values() -> None:
    one, _ = PageLedger.empty(8).take(3)
    other, _ = PageLedger.empty(8).take(2)
    assert one != other
    other, _ = other.take(1)
    assert one == other
    assert hash(one) == hash(other)
    with pytest.raises(ValueError, match="read-only"):
        one.counts[1] = 5
