"""What a tier's index finds and who gives way in it, case by case."""

from dataclasses import replace

import pytest

from state.chain import chain_of, link_page
from state.retained import Kind
from state.spec import PAGE_TOKENS, Class
from state.tiers.index import TierIndex, ranks_below
from state.tiers.stored import Stored, stored_of
from tests.state.builders import chain_of_letters, retained
from tests.state.tiers.pairs import constant
from tests.state.tiers.plain_tier import TTL_MS, Plain, plain, tokens_of

AGENT, PERSON = Class.AGENT, Class.INTERACTIVE


def index_of(*states: Plain, link=link_page) -> TierIndex:
    """An index of these."""
    index = TierIndex.empty()
    for one in states:
        index = index.insert(one.stored(link))
    return index


def order(index: TierIndex, now_ms: float) -> list[int]:
    """Ids in the order in which they give way."""
    return [one.id for one in index.victims(now_ms, TTL_MS)]


def test_the_longest_strict_prefix_is_found() -> None:
    index = index_of(plain(1, [1]), plain(2, [1, 2]), plain(3, [1, 3]), plain(4, [2]))
    for letters, tail, found in (
        ([1, 2], 1, 2),
        ([1, 2], 0, 1),
        ([1, 2, 3], 0, 2),
        ([1, 1, 1], 0, 1),
        ([3, 1], 0, None),
        ([1], 0, None),
    ):
        prompt = chain_of(tokens_of(letters, tail))
        match = index.longest_match(prompt, prompt.num_tokens)
        assert (match.id if match else None) == found


def test_what_was_given_up_hides_no_shorter_one() -> None:
    index = index_of(plain(1, [1]), plain(2, [1, 2]))
    prompt = chain_of(tokens_of([1, 2], 1))
    for without, found in ((frozenset(), 2), (frozenset({2}), 1), (frozenset({1, 2}), None)):
        match = index.longest_match(prompt, prompt.num_tokens, without)
        assert (match.id if match else None) == found


def test_a_digest_finds_and_tokens_decide() -> None:
    index = index_of(plain(1, [1, 2]), link=constant)
    prompt = chain_of(tokens_of([2, 2, 2]), link=constant)
    assert index.longest_match(prompt, prompt.num_tokens) is None
    assert index.find(prompt, 2 * PAGE_TOKENS) is None
    prompt = chain_of(tokens_of([1, 2, 2]), link=constant)
    assert index.find(prompt, 2 * PAGE_TOKENS) is not None


def test_a_live_sequence_is_found_by_its_id_alone() -> None:
    index = index_of(plain(1, [1], prompt_pages=1))
    prompt = chain_of(tokens_of([1, 2]))
    assert index.longest_match(prompt, prompt.num_tokens) is None
    assert index.find(prompt, PAGE_TOKENS) is None
    assert index.get(1) is not None


def test_another_salt_is_another_world() -> None:
    index = index_of(plain(1, [1], salt=b"tenant"))
    for salt, found in ((b"", False), (b"tenant", True)):
        prompt = chain_of(tokens_of([1, 2]), salt)
        assert (index.longest_match(prompt, prompt.num_tokens) is not None) == found


def test_who_gives_way_first() -> None:
    states = [
        plain(1, [1], prompt_pages=0, cls=PERSON, used_ms=1.0),
        plain(2, [1], prompt_pages=0, cls=AGENT, used_ms=9.0),
        plain(3, [1], cls=PERSON, hits=1, used_ms=2.0),
        plain(4, [1], cls=PERSON, used_ms=3.0),
        plain(5, [1], cls=AGENT, hits=2, used_ms=4.0),
        plain(6, [1], cls=AGENT, used_ms=8.0),
        plain(7, [1], cls=AGENT, used_ms=6.0),
    ]
    assert order(index_of(*states), 10.0) == [7, 6, 5, 4, 3, 2, 1]


def test_what_was_left_long_ago_goes_with_the_agents_and_live_work_does_not() -> None:
    index = index_of(
        plain(1, [1], cls=PERSON, used_ms=0.0),
        plain(2, [1], cls=PERSON, hits=1, used_ms=1.0),
        plain(3, [1], cls=AGENT, used_ms=2.0),
        plain(4, [1], cls=AGENT, hits=1, used_ms=0.5),
        plain(5, [1], cls=PERSON, prompt_pages=0, used_ms=0.0),
    )
    assert order(index, TTL_MS) == [3, 4, 1, 2, 5]
    assert order(index, TTL_MS + 0.25) == [1, 3, 4, 2, 5]
    assert order(index, TTL_MS + 0.75) == [1, 4, 3, 2, 5]
    assert order(index, TTL_MS + 1.5) == [1, 4, 2, 3, 5]


def test_a_restore_lifts_a_state_and_time_sinks_it() -> None:
    index = index_of(plain(1, [1], used_ms=0.0), plain(2, [2], used_ms=5.0)).touch(1, 6.0)
    assert index.get(1) == replace(index.entries[1], hits=1, used_ms=6.0)
    assert order(index, 7.0) == [2, 1]
    assert ranks_below(index.entries[2], index.entries[1], 7.0, TTL_MS)
    assert order(index.touch(2, 8.0), 107.0) == [1, 2]


def test_what_is_held_is_no_victim_and_cannot_go() -> None:
    index = index_of(plain(1, [1]), plain(2, [2])).hold(1).hold(1).release(1)
    assert order(index, 0.0) == [2]
    with pytest.raises(AssertionError, match="state 1 is held by 1 moves"):
        index.remove(1)
    assert order(index.release(1), 0.0) == [1, 2]
    with pytest.raises(AssertionError, match="state 2 is not held"):
        index.release(2)


def test_a_state_that_comes_down_again_keeps_the_best_of_both() -> None:
    first = plain(1, [1], kind=Kind.PREFIX, cls=AGENT, used_ms=5.0)
    index = index_of(first).touch(1, 7.0)
    again = replace(first, kind=Kind.CHECKPOINT, cls=PERSON, used_ms=6.0).stored(link_page)
    renewed = index.renew(again).entries[1]
    assert (renewed.kind, renewed.cls, renewed.used_ms, renewed.hits) == (
        Kind.PREFIX,
        PERSON,
        7.0,
        1,
    )
    index.renew(again).check()
    other = plain(1, [2]).stored(link_page)
    with pytest.raises(AssertionError, match="other tokens"):
        index.renew(other)


def test_a_retained_state_goes_down_as_it_is() -> None:
    chain = chain_of_letters([1, 2, 3])
    one = retained(7, chain, 128, kind=Kind.PREFIX, cls=AGENT, now_ms=3.0, hits=5)
    below = stored_of(one)
    assert (below.id, below.length, below.num_pages, below.num_common) == (7, 128, 2, 2)
    assert (below.kind, below.cls, below.used_ms, below.hits) == (Kind.PREFIX, AGENT, 3.0, 0)
    assert below.chain == chain.prefix(128)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 0}, "stands for 0 tokens"),
        ({"num_common": 3}, "3 common pages in 128"),
        ({"num_common": 1}, "1 common pages and 128 tokens"),
        ({"hits": -1}, "restored -1 times"),
        ({"held": -1}, "held -1 times"),
        ({"owner": 5}, "checkpoint and belongs to request 5"),
        ({"kind": None}, "live and belongs to request None"),
    ],
)
def test_a_state_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    sound = plain(1, [1, 2]).stored(link_page)
    with pytest.raises(AssertionError, match=message):
        replace(sound, **changes)  # type: ignore[arg-type]


def test_a_live_sequence_may_end_inside_a_page() -> None:
    live = plain(1, [1, 2], tail=3, prompt_pages=1).stored(link_page)
    assert (live.length, live.num_pages, live.num_common, live.is_live) == (131, 3, 1, True)


def test_wrong_changes_are_refused() -> None:
    index = index_of(plain(1, [1]), plain(2, [1], prompt_pages=1))
    with pytest.raises(AssertionError, match="state 1 is stored already"):
        index.insert(plain(1, [2]).stored(link_page))
    for change in (index.remove, index.hold, index.release, lambda id: index.touch(id, 0.0)):
        with pytest.raises(AssertionError, match="state 9 is not among the 2"):
            change(9)
    again: Stored = plain(2, [1]).stored(link_page)
    with pytest.raises(AssertionError, match="state 2 is live"):
        index.renew(again)


def test_the_audit_sees_what_is_derived_wrongly() -> None:
    index = index_of(plain(1, [1]), plain(2, [2]))
    index.check()
    less = index.remove(2)
    for wrong, message in (
        (replace(index, by_digest=less.by_digest), "2 states are retained, 1 are findable"),
        (replace(index, by_use=less.by_use), "standing 0 lists 1 states, 2 have it"),
    ):
        with pytest.raises(AssertionError, match=message):
            wrong.check()
