"""Each invariant that the checker states, broken once."""

from dataclasses import replace
from typing import Any

import pytest

from state.check import check_index, check_ledgers, num_reclaimable, stranded
from state.pages import PageLedger
from state.retained import Kind, Retained
from state.reuse import ReuseIndex
from state.slots import SlotLedger
from tests.state.builders import FINGERPRINT, chain_of_letters, retained

STATE, PENDING = 1, 2


def _taken(slots: SlotLedger, owner: int) -> SlotLedger:
    taken = slots.take(owner)
    assert taken is not None
    return taken[0]


def _sound() -> dict[str, Any]:
    """Two sequences, one of which shares two pages with a state; a capture and a move."""
    pages, first = PageLedger.empty(16).take(3)
    pages, second = pages.take(2)
    pages, moved = pages.take(1)
    pages = pages.share(first[:2])
    slots = _taken(_taken(SlotLedger.empty(0, 4), STATE), PENDING)
    state = retained(STATE, chain_of_letters([1, 2]), table=first[:2], slot=0)
    return {
        "pages": pages,
        "slots": slots,
        "index": ReuseIndex.empty(FINGERPRINT).insert(state),
        "tables": {7: first, 8: second},
        "lanes": {7: 0, 8: 1},
        "captures": {1: PENDING},
        "moves": [moved],
        "written": {7: 130, 8: 0},
    }


def test_sound_values_pass() -> None:
    check_ledgers(**_sound())
    sound = _sound()
    assert stranded(sound["pages"], sound["slots"], sound["index"]) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": {7: (1, 2, 3)}}, "page 4 has 1 holders and is listed 0 times"),
        ({"moves": []}, "page 6 has 1 holders and is listed 0 times"),
        ({"moves": [(6,), (4,)]}, "page 4 has 1 holders and is listed 2 times"),
        ({"moves": [(0,)]}, "null page"),
        ({"moves": [(6, 6)]}, "twice"),
        ({"moves": [(6,), (16,)]}, "page .16. is listed, the pool has 16"),
        ({"lanes": {7: 1, 8: 1}}, r"lane 1 belongs to sequences \[7, 8\]"),
        ({"captures": {}}, r"slots are owned \[\(1, 2\)\]"),
        ({"captures": {1: 9}}, r"slots are owned \[\(1, 2\)\], but lie with \[\(1, 9\)\]"),
        ({"captures": {1: PENDING, 2: 5}}, r"lie with \[\(2, 5\)\]"),
        ({"captures": {1: PENDING, 0: PENDING}}, "slot 0 holds state 1 and belongs to 2"),
        ({"written": {7: 127}}, "would write page 2, which has 2 holders"),
    ],
)
def test_each_contradiction_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_ledgers(**(_sound() | change))


def test_a_page_kept_by_nothing_is_a_leak() -> None:
    sound = _sound()
    leaked, _ = sound["pages"].take(1)
    with pytest.raises(AssertionError, match="page 7 has 1 holders and is listed 0 times"):
        check_ledgers(**(sound | {"pages": leaked}))


def test_a_waiting_request_and_an_idle_state_contradict_each_other() -> None:
    sound = _sound()
    check_ledgers(**sound, waiting=True)
    pages = sound["pages"].drop((1, 2, 3))
    alone = sound | {"pages": pages, "tables": {8: (4, 5)}, "lanes": {8: 1}, "written": {8: 0}}
    check_ledgers(**alone)
    assert num_reclaimable(pages, sound["index"]) == 2
    with pytest.raises(AssertionError, match="retained states alone hold 2 pages"):
        check_ledgers(**alone, waiting=True)


def test_a_state_without_its_other_half_is_stranded() -> None:
    sound = _sound()
    lost = sound["slots"].drop(0)
    assert stranded(sound["pages"], lost, sound["index"]) == (STATE,)
    passed_on = sound["slots"].assign(0, 99)
    assert stranded(sound["pages"], passed_on, sound["index"]) == (STATE,)
    freed = sound["pages"].drop((1, 2)).drop((1, 2))
    assert stranded(freed, sound["slots"], sound["index"]) == (STATE,)


def _index() -> ReuseIndex:
    index = ReuseIndex.empty(FINGERPRINT)
    for id in (1, 2, 3):
        one = retained(id, chain_of_letters([1] * id), kind=Kind.CHECKPOINT)
        index = index.insert(one, id - 1)
    return index


def _forged(index: ReuseIndex, id: int, **fields: object) -> ReuseIndex:
    """The index with a state changed behind its back, past the checks of its constructor."""
    one = index.entries[id]
    forged = object.__new__(Retained)
    for name in Retained.__slots__:
        object.__setattr__(forged, name, fields.get(name, getattr(one, name)))
    return replace(index, entries=index.entries.put(id, forged))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 192}, "stands for 192 tokens, its key holds 128"),
        ({"chain": chain_of_letters([1, 9])}, "another digest"),
        ({"table": (1,)}, "1 pages for 128 tokens"),
        ({"length": 100}, "off the grid"),
        ({"fingerprint": None}, "stamped otherwise"),
        ({"conversation": 5}, "lists a state of another"),
        ({"chain": chain_of_letters([1, 1], b"other")}, "another digest"),
    ],
)
def test_a_forged_state_is_found(fields: dict[str, object], message: str) -> None:
    check_index(_index())
    with pytest.raises(AssertionError, match=message):
        check_index(_forged(_index(), 2, **fields))


def test_a_third_checkpoint_of_a_conversation_is_found() -> None:
    index = _forged(_forged(_index(), 1, superseded=False), 2, superseded=False)
    with pytest.raises(AssertionError, match=r"keeps 3 checkpoints: \[1, 2, 3\]"):
        check_index(index)


def test_an_index_that_disagrees_with_itself_is_found() -> None:
    index = _index()
    digest = index.entries[2].digest
    others = {known: ids for known, ids in index.by_digest.items() if known != digest}
    for broken, message in [
        (replace(index, by_digest=others), "3 states are retained, 2 are findable"),
        (replace(index, entries=index.entries.drop(2)), "state 2 is findable and not retained"),
        (replace(index, in_order={b"": (1, 3, 2)}), "not in the order of their tokens"),
        (replace(index, in_order={b"": (1, 2)}), "2 states in order, 3 by digest"),
        (replace(index, members=index.members.put(1, (1, 2))), "2 states in conversations"),
    ]:
        with pytest.raises(AssertionError, match=message):
            check_index(broken)
