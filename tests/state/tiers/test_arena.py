"""Which cells a state holds, with whom, and who leaves for it, case by case."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from state.chain import chain_of, link_page
from state.check import check_tier
from state.spec import PAGE_TOKENS, Class
from state.tiers.arena import Arena
from state.tiers.cells import Located, Placement
from state.tiers.stored import Stored
from tests.state.tiers.pairs import constant
from tests.state.tiers.plain_tier import NEARLY_ONE, TTL_MS, Plain, plain

IMAGE_CELLS = 2
NOW_MS = 50.0


def arena_of(num_cells: int, *states: Plain) -> Arena:
    """An arena in which these have landed one after the other."""
    arena = Arena.empty(num_cells, IMAGE_CELLS, 4096)
    for one in states:
        arena, _ = placed(arena, one)
        arena = arena.land(one.id)
    return arena


def plan(arena: Arena, new: Plain, **more: Any) -> Placement | None:
    """What it takes at `NOW_MS`."""
    return arena.plan(new.stored(link_page), NOW_MS, TTL_MS, **more)


def placed(arena: Arena, new: Plain, link=link_page) -> tuple[Arena, Located]:
    """The arena with a state for which there is room, not landed yet."""
    stored = new.stored(link)
    placement = arena.plan(stored, NOW_MS, TTL_MS)
    assert placement is not None
    arena, place = arena.place(stored, placement)
    arena.check()
    return arena, place


def leaving(arena: Arena, new: Plain, **more: Any) -> list[int] | None:
    """Ids of those that would leave for a state, None where it finds no place."""
    placement = plan(arena, new, **more)
    return None if placement is None else [one.id for one in placement.victims]


def test_a_state_takes_the_lowest_cells_and_gives_them_back() -> None:
    arena, place = placed(arena_of(10), plain(1, [1, 2]))
    assert place == Located((0, 1), (2, 3), (0, 1))
    assert (arena.num_free, arena.used_bytes, arena.num_sole(1)) == (6, 4 * 4096, 4)
    arena = arena.land(1)
    assert arena.located(1) == Located((0, 1), (2, 3))
    arena.check()
    arena = arena.drop(1)
    arena.check()
    assert (arena.num_free, len(arena.index)) == (10, 0)
    with pytest.raises(AssertionError, match="state 1 is not among the 0 in the arena"):
        arena.located(1)


def test_siblings_share_their_common_pages() -> None:
    arena = arena_of(20, plain(1, [1, 2, 1]))
    arena, place = placed(arena, plain(2, [1, 2, 2]))
    assert place.page_cells[:2] == arena.located(1).page_cells[:2]
    assert place.missing == (2,)
    assert arena.num_free == 20 - 2 * IMAGE_CELLS - 4
    arena = arena.land(2).drop(1)
    arena.check()
    assert arena.num_free == 20 - IMAGE_CELLS - 3
    assert arena.located(2).page_cells == place.page_cells


def test_tokens_decide_what_is_shared() -> None:
    """Under a hash that finds everything everywhere, and a page that differs in its last token."""
    arena = arena_of(30, plain(1, [1, 1]))
    _, place = placed(arena, plain(2, [1, NEARLY_ONE]), constant)
    assert place.missing == (1,)
    _, place = placed(arena, plain(2, [2, 1]), constant)
    assert place.missing == (0, 1)


def test_another_salt_shares_nothing() -> None:
    _, place = placed(arena_of(30, plain(1, [1, 1])), plain(2, [1, 1], salt=b"tenant"))
    assert place.missing == (0, 1)


def test_what_decode_wrote_is_shared_with_nobody() -> None:
    live = plain(1, [1, 2, 2], tail=5, prompt_pages=1)
    arena = arena_of(30, live)
    arena, place = placed(arena, plain(2, [1, 2, 2]))
    assert place.missing == (1, 2)
    other = replace(live, id=3)
    _, place = placed(arena.land(2), other)
    assert place.missing == (1, 2, 3)


def test_what_has_not_landed_is_neither_found_nor_shared() -> None:
    first, second = plain(1, [1, 2]), plain(2, [1, 2, 2])
    arena, _ = placed(arena_of(30), first)
    prompt = chain_of([*second.tokens, 7])
    assert arena.index.longest_match(prompt, prompt.num_tokens) is None
    assert list(arena.index.victims(NOW_MS, TTL_MS)) == []
    held = arena.holds(prompt, 2 * PAGE_TOKENS)
    assert held is not None
    assert held.id == 1
    _, place = placed(arena, second)
    assert place.missing == (0, 1, 2)
    arena = arena.land(1)
    found = arena.index.longest_match(prompt, prompt.num_tokens)
    assert found is not None
    assert found.id == 1
    _, place = placed(arena, second)
    assert place.missing == (2,)


def test_a_page_that_two_brought_at_once_is_kept_once() -> None:
    arena, _ = placed(arena_of(30), plain(1, [1, 2]))
    arena, _ = placed(arena, plain(2, [1, 2, 2]))
    assert arena.num_free == 30 - 2 * IMAGE_CELLS - 5
    arena = arena.land(2).land(1)
    arena.check()
    assert arena.num_free == 30 - 2 * IMAGE_CELLS - 3
    assert arena.located(1).page_cells == arena.located(2).page_cells[:2]


def test_a_state_that_comes_down_again_is_renewed_where_it_is() -> None:
    """On its way down, and when it has landed; a live one comes once."""
    first = plain(1, [1, 2])
    again = replace(first, cls=Class.INTERACTIVE, used_ms=9.0)
    arena, place = placed(arena_of(30, plain(2, [2], tail=1)), first)
    arena = arena.renew(replace(again, used_ms=5.0).stored(link_page))
    assert arena.pending[1].used_ms == 5.0
    arena = arena.land(1).renew(again.stored(link_page))
    arena.check()
    assert arena.index.entries[1] == again.stored(link_page)
    assert arena.located(1) == replace(place, missing=())
    with pytest.raises(AssertionError, match="state 2 is live"):
        arena.renew(plain(2, [2]).stored(link_page))


def test_several_leave_together() -> None:
    states = plain(1, [1, 2]), plain(2, [1, 1]), plain(3, [2])
    arena = arena_of(30, *states)
    left = arena.without(one for one in arena.index if one.id != 2)
    left.check()
    assert [one.id for one in left.index] == [2]
    assert left.num_free == 30 - IMAGE_CELLS - 2
    assert len(arena.index) == 3


def test_an_abandoned_state_gives_everything_back_and_others_keep_theirs() -> None:
    arena = arena_of(20, plain(1, [1, 2]))
    before = arena.counts
    for new in (plain(2, [1, 2, 2]), plain(3, [2, 2], tail=3, prompt_pages=0)):
        after, _ = placed(arena, new)
        after = after.abandon(new.id)
        after.check()
        assert (after.counts == before).all()
        with pytest.raises(AssertionError, match="not among the 0 pending"):
            after.land(new.id)


def test_what_is_larger_than_the_arena_evicts_nothing() -> None:
    arena = arena_of(8, plain(1, [1]), plain(2, [2]))
    large = plain(3, [1, 1, 1, 1, 1, 1, 1], cls=Class.INTERACTIVE, used_ms=NOW_MS)
    assert leaving(arena, large) is None
    assert leaving(arena, replace(large, tokens=large.tokens[PAGE_TOKENS:], num_common=6)) == [1, 2]


def test_a_plan_changes_nothing() -> None:
    arena = arena_of(8, plain(1, [1]), plain(2, [2]))
    counts = arena.counts.copy()
    assert leaving(arena, plain(3, [1, 2], used_ms=NOW_MS)) == [1]
    assert len(arena.index) == 2
    assert (arena.counts == counts).all()
    with pytest.raises(ValueError, match="read-only"):
        arena.counts[0] = 5


def test_only_lower_ranked_states_leave_the_lowest_first() -> None:
    arena = arena_of(
        13,
        plain(1, [1], cls=Class.INTERACTIVE, used_ms=1.0),
        plain(2, [2], used_ms=3.0),
        plain(3, [3], used_ms=2.0),
        plain(4, [1, 1], prompt_pages=0, used_ms=0.0),
    )
    assert arena.num_free == 0
    for used_ms, cls, left in (
        (1.5, Class.AGENT, None),
        (2.5, Class.AGENT, [3]),
        (0.5, Class.INTERACTIVE, [3]),
    ):
        assert leaving(arena, plain(9, [2, 2], cls=cls, used_ms=used_ms)) == left
    long = plain(9, [2, 2, 2, 2], cls=Class.INTERACTIVE, used_ms=9.0)
    assert leaving(arena, long) == [3, 2]
    assert leaving(arena, plain(9, [2] * 7, cls=Class.INTERACTIVE, used_ms=9.0)) == [3, 2, 1]
    assert leaving(arena, plain(9, [2] * 8, cls=Class.INTERACTIVE, used_ms=9.0)) is None
    live = plain(9, [2] * 8, prompt_pages=0, used_ms=9.0)
    assert leaving(arena, live) == [3, 2, 4], "all others are too little, and one of them is spared"
    assert leaving(arena, live, may_drop=lambda one: not one.is_live) is None


def test_what_a_person_left_long_ago_gives_way_to_an_agent() -> None:
    arena = arena_of(4, plain(1, [1, 2], cls=Class.INTERACTIVE, used_ms=0.0))
    agent = plain(2, [2], used_ms=TTL_MS).stored(link_page)
    assert arena.plan(agent, TTL_MS, TTL_MS) is None
    later = arena.plan(agent, TTL_MS + 1.0, TTL_MS)
    assert later is not None
    assert [one.id for one in later.victims] == [1]


def test_what_is_being_read_stays() -> None:
    arena = arena_of(6, plain(1, [1]), plain(2, [2])).hold(1)
    assert leaving(arena, plain(3, [3], used_ms=1.0)) == [2]
    assert leaving(arena, plain(3, [3, 3], used_ms=1.0)) is None
    with pytest.raises(AssertionError, match="held by 1 moves"):
        arena.drop(1)
    check_tier(arena, reads={1: 1})
    assert leaving(arena.release(1), plain(3, [3], used_ms=1.0)) == [1]


def test_whoever_gains_nothing_is_spared() -> None:
    """The first to go shares its page with one that stays, and its image alone is too little."""
    arena = arena_of(
        12,
        plain(1, [1], used_ms=1.0),
        plain(2, [2, 2, 2], used_ms=2.0),
        plain(3, [1], cls=Class.INTERACTIVE, used_ms=3.0),
    )
    assert arena.num_free == 2
    for num_pages, left in ((2, [1]), (3, [2]), (5, [2]), (6, [1, 2]), (8, None)):
        assert leaving(arena, plain(9, [3] * num_pages, used_ms=9.0)) == left


def test_pages_that_a_leaving_state_shares_stay_for_the_new_one() -> None:
    arena = arena_of(5, plain(1, [1, 2, 2]))
    arena, place = placed(arena, plain(2, [1, 2, 1], used_ms=1.0))
    assert place.missing == (2,)
    assert place.page_cells[:2] == (2, 3)
    assert arena.num_free == 0
    assert len(arena.index) == 0


def test_a_longer_state_leaves_its_prefixes_where_they_are() -> None:
    arena = arena_of(12, plain(1, [1]), plain(2, [1, 2]), plain(3, [1, 2, 2]))
    assert {one.id for one in arena.index} == {1, 2, 3}
    assert arena.num_free == 12 - 3 * IMAGE_CELLS - 3


def test_wrong_changes_are_refused() -> None:
    arena = arena_of(12, plain(1, [1]))
    new = plain(2, [1, 2])
    placement = plan(arena, new)
    assert placement is not None
    stored: Stored = new.stored(link_page)
    with pytest.raises(AssertionError, match="state 1 is in the arena already"):
        arena.place(replace(stored, id=1), placement)
    with pytest.raises(AssertionError, match="state 1 is not among the 0"):
        arena.drop(1).place(stored, placement)
    with pytest.raises(AssertionError, match="planned to take 3 cells for state 2, 2 are free"):
        arena_of(5, plain(1, [1])).place(stored, placement)
    with pytest.raises(AssertionError, match="planned 2 pages for state 2 of 3"):
        arena.place(plain(2, [1, 2, 2]).stored(link_page), placement)
    with pytest.raises(AssertionError, match="state 2 has not landed"):
        arena.place(stored, placement)[0].drop(2)


def test_the_audit_names_each_contradiction() -> None:
    pending, _ = placed(arena_of(12, plain(1, [1, 2]), plain(2, [1, 1])), plain(3, [2]))
    sound = pending.located(2)
    counts = pending.counts.copy()
    counts[11] = 1
    doubled, _ = placed(arena_of(12), plain(1, [1, 2]))
    doubled, _ = placed(doubled, plain(2, [1, 1]))
    for wrong, message in (
        (replace(pending, counts=counts), "cell 11 has 1 holders and is listed 0 times"),
        (replace(pending, pending={}), "3 states lie somewhere, 2 are known"),
        (replace(pending, beginnings=pending.drop(2).beginnings), "2 states are not in order"),
        (_elsewhere(pending, 2, image_cells=(0, 1)), "state . shares what is its own"),
        (_elsewhere(pending, 2, image_cells=(5,)), "image of state 2 lies in 1 cells"),
        (_elsewhere(pending, 2, page_cells=(2,)), "state 2 has 1 cells for 2 pages"),
        (_elsewhere(pending, 2, page_cells=(2, 2)), "state 2 lists a cell twice"),
        (_elsewhere(pending, 2, missing=(0,)), "state 2 lacks pages inside"),
        (_elsewhere(pending, 2, missing=(1,)), "state 2 landed without all its pages"),
        (_elsewhere(pending, 2, page_cells=(2, 3)), "states 2 and 1 share 2 pages, 1 are the same"),
        (_elsewhere(pending, 2, page_cells=(3, sound.page_cells[1])), "is page 0 of 2, not of 1"),
        (
            replace(
                doubled,
                index=doubled.index.insert(doubled.pending[1]).insert(doubled.pending[2]),
                pending={},
                beginnings=pending.beginnings,
                places=doubled.places.put(1, replace(doubled.places[1], missing=())).put(
                    2, replace(doubled.places[2], missing=())
                ),
            ),
            "states 1 and 2 do not share 1 pages",
        ),
    ):
        with pytest.raises(AssertionError, match=message):
            wrong.check()


def _elsewhere(arena: Arena, id: int, **changes: Any) -> Arena:
    """The state lies elsewhere, and the counts agree with it."""
    arena = replace(arena, places=arena.places.put(id, replace(arena.located(id), **changes)))
    counts = np.zeros_like(arena.counts)
    for place in arena.places.values():
        np.add.at(counts, np.asarray(place.cells), 1)
    return replace(arena, counts=counts)


def test_moves_and_holds_are_audited_together() -> None:
    arena, _ = placed(arena_of(12, plain(1, [1, 2])).hold(1), plain(3, [2]))
    check_tier(arena, reads={1: 1}, writes=(3,))
    with pytest.raises(AssertionError, match=r"moves read states \{1: 2\}, held are \{1: 1\}"):
        check_tier(arena, reads={1: 2}, writes=(3,))
    with pytest.raises(AssertionError, match=r"moves write states \[\], pending are \[3\]"):
        check_tier(arena, reads={1: 1})


def test_an_arena_of_nothing_is_refused() -> None:
    for numbers in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(AssertionError, match=r"arena of 0|image of 0|cells of 0"):
            Arena.empty(*numbers)
