"""The longest match, its reasons, and conversations, one scenario each."""

import pytest

from state.chain import chain_of
from state.retained import Kind, Rank, Retained, rank
from state.retention import Marks, RetentionPolicy
from state.reuse import NUM_REMEMBERED, Match, Miss, MissReason, ReuseIndex
from state.spec import Fingerprint
from tests.state.builders import (
    FINGERPRINT,
    chain_of_letters,
    page_of,
    retained,
    tokens_of,
)

EMPTY = ReuseIndex.empty(FINGERPRINT)


def published(
    index: ReuseIndex, prompt: list[int], marks: Marks, resumed_at: int = 0
) -> ReuseIndex:
    """The index after a request of this prompt has left all that the policy keeps of it."""
    chain = chain_of(prompt)
    for cut in RetentionPolicy().cuts(marks, len(prompt), resumed_at):
        id = len(index)
        index = index.insert(retained(id, chain, cut.position, kind=cut.kind))
    return index


def cached(index: ReuseIndex, prompt: list[int]) -> int:
    """Tokens that a request of this prompt would reuse."""
    found = index.longest_match(chain_of(prompt), len(prompt))
    return found.length if isinstance(found, Match) else 0


@pytest.mark.parametrize("length", [191, 192, 193, 255, 256, 257])
@pytest.mark.parametrize("chat", [True, False])
def test_v32_prompts_around_a_multiple_of_the_page_hit_when_they_come_again(
    length: int, chat: bool
) -> None:
    prompt = [(5 * token) % 997 for token in range(length)]
    marks = Marks(turn_open=length, opener=length) if chat else Marks()
    index = published(EMPTY, prompt, marks)
    for more in (0, 1, 64):
        hit = cached(index, prompt + [3] * more)
        assert 0 < hit < length + more
        assert hit >= length - 2 * 64


def test_v37_short_prompts_hit_and_the_shortest_say_why_not() -> None:
    system = [11 * token % 991 for token in range(300)]
    index = published(EMPTY, [*system, *range(50)], Marks(system_end=300, opener=350))
    assert cached(index, [*system, *range(500, 550)]) == 256
    short = list(range(64))
    index = published(index, short, Marks(opener=64))
    assert index.longest_match(chain_of(short), 64) == Miss(MissReason.TOO_SHORT)
    longer = list(range(65))
    index = published(index, longer, Marks(opener=65))
    assert cached(index, longer) == 64


def test_v44_a_longer_state_does_not_push_out_its_prefix() -> None:
    system = tokens_of([1, 2])
    first, second = [*system, *page_of(3), 1], [*system, *page_of(4), 2]
    marks = Marks(system_end=128, turn_open=193, opener=193)
    index = published(EMPTY, first, marks)
    assert cached(index, first) == 192
    assert cached(index, second) == 128
    index = published(index, second, marks, resumed_at=128)
    assert cached(index, second) == 192
    assert cached(index, [*system, *page_of(5), 3]) == 128


@pytest.mark.parametrize("shared_pages", range(2, 7))
def test_v35_the_gap_shows_where_requests_parted_and_a_junction_closes_it(
    shared_pages: int,
) -> None:
    shared = tokens_of(range(1, shared_pages + 1), [1, 2, 3])
    prompts = [
        [*shared, *(10_000 * (who + 1) + token for token in range(600 - len(shared)))]
        for who in range(3)
    ]
    index = published(EMPTY, prompts[0], Marks(turn_open=600, opener=600))
    second = index.longest_match(chain_of(prompts[1]), 600)
    assert isinstance(second, Miss)
    assert second.reason is MissReason.STATE_MISSING
    assert (second.matched_tokens, second.diverged_at) == (64 * shared_pages, len(shared))
    assert second.diverged_at is not None
    cuts = RetentionPolicy().cuts(
        Marks(turn_open=600, opener=600), 600, 0, junctions=(second.diverged_at,)
    )
    assert [(cut.position, cut.kind) for cut in cuts] == [
        (64 * shared_pages, Kind.JUNCTION),
        (576, Kind.TURN_OPEN),
    ]
    for id, cut in enumerate(cuts, start=10):
        index = index.insert(retained(id, chain_of(prompts[1]), cut.position, kind=cut.kind))
    assert cached(index, prompts[2]) == 64 * shared_pages


def test_the_reason_of_a_miss_says_what_was_there() -> None:
    index = EMPTY.insert(retained(1, chain_of_letters([1, 2, 3])))
    other = chain_of(tokens_of([9, 2]))
    assert index.longest_match(other, 128) == Miss(MissReason.NO_MATCH, 0, 0)
    assert EMPTY.longest_match(other, 128) == Miss(MissReason.NO_MATCH, 0, None)
    inside = chain_of([*page_of(1)[:40], *range(7, 100)])
    assert index.longest_match(inside, 133) == Miss(MissReason.DIVERGED, 0, 40)
    parted = chain_of(tokens_of([1, 2], page_of(3)[:5] + [7] * 60))
    assert index.longest_match(parted, 193) == Miss(MissReason.STATE_MISSING, 128, 133)
    whole = chain_of_letters([1, 2, 3])
    assert index.longest_match(whole, 192) == Miss(MissReason.STATE_MISSING, 128, None)
    gone = index.remove(1)
    longer = chain_of_letters([1, 2, 3, 4])
    assert gone.longest_match(longer, 256) == Miss(MissReason.EVICTED, 0, None)
    assert index.remove(1, remember=False).longest_match(longer, 256).matched_tokens == 0
    back = gone.insert(retained(2, whole))
    assert isinstance(back.longest_match(longer, 256), Match)
    forgotten_again = back.remove(2, remember=False).longest_match(longer, 256)
    assert forgotten_again == Miss(MissReason.NO_MATCH, 0, None)


def test_a_match_says_why_it_is_not_longer() -> None:
    chain = chain_of_letters([1, 2, 3, 4])
    index = EMPTY.insert(retained(1, chain, 64)).insert(retained(2, chain, 192))
    prompt = chain_of(tokens_of([1, 2], [7] * 70))
    found = index.longest_match(prompt, prompt.num_tokens)
    assert isinstance(found, Match)
    assert (found.length, found.matched_tokens, found.diverged_at) == (64, 128, 128)
    assert found.shortfall is MissReason.STATE_MISSING
    found = index.remove(2).longest_match(chain, 256)
    assert isinstance(found, Match)
    assert (found.length, found.shortfall) == (64, MissReason.EVICTED)
    found = index.longest_match(chain, 256)
    assert isinstance(found, Match)
    assert (found.length, found.matched_tokens, found.shortfall) == (192, 192, None)


def test_what_was_discarded_counts_only_where_it_would_have_served() -> None:
    chain = chain_of_letters([1, 2, 3])
    gone = EMPTY.insert(retained(1, chain)).remove(1)
    assert gone.longest_match(chain, 192) == Miss(MissReason.NO_MATCH, 0, None)
    index = EMPTY.insert(retained(1, chain, 64)).insert(retained(2, chain, 128)).remove(1)
    found = index.longest_match(chain, 192)
    assert isinstance(found, Match)
    assert (found.length, found.shortfall) == (128, None)


def test_only_so_many_discarded_states_are_remembered() -> None:
    index = EMPTY
    for id in range(NUM_REMEMBERED + 2):
        index = index.insert(retained(id, chain_of([id] * 64))).remove(id)
    assert len(index.remembered) == NUM_REMEMBERED
    told = [index.longest_match(chain_of([id] * 65), 65) for id in (1, 2)]
    assert told == [Miss(MissReason.NO_MATCH), Miss(MissReason.EVICTED)]


def test_a_constant_hash_costs_time_and_nothing_else() -> None:
    def constant(before: bytes, page: bytes) -> bytes:
        return bytes(16)

    index = EMPTY
    for id, letters in enumerate([(1,), (1, 2), (1, 2, 3), (2,), (2, 2), (3, 1, 1)]):
        index = index.insert(retained(id, chain_of_letters(letters, link=constant)))
    for letters, expected in [
        ((1, 2, 3, 4), 2),
        ((1, 2, 4, 4), 1),
        ((1, 3, 3, 3), 0),
        ((2, 2, 2), 4),
        ((3, 1, 2), None),
        ((4, 4, 4), None),
    ]:
        prompt = chain_of_letters(letters, link=constant)
        found = index.longest_match(prompt, prompt.num_tokens)
        assert (found.retained.id if isinstance(found, Match) else None) == expected


def test_equal_states_are_told_apart_by_slot_and_found_by_content() -> None:
    chain = chain_of_letters([1, 2])
    index = EMPTY.insert(retained(1, chain, slot=9)).insert(retained(2, chain, slot=4))
    found = index.longest_match(chain_of_letters([1, 2, 3]), 192)
    assert isinstance(found, Match)
    assert found.retained.id == 2
    held = index.find(chain_of_letters([1, 2, 5]), 128)
    assert held is not None
    assert held.id == 2
    assert index.find(chain, 64) is None
    left = index.remove(2).find(chain, 128)
    assert left is not None
    assert left.id == 1


def test_wrong_use_is_refused_with_names() -> None:
    index = EMPTY.insert(retained(1, chain_of_letters([1])))
    with pytest.raises(AssertionError, match="state 1 is retained already"):
        index.insert(retained(1, chain_of_letters([2])))
    for change in (index.remove, lambda id: index.touch(id, 1.0)):
        with pytest.raises(AssertionError, match="state 5 is not among the 1"):
            change(5)
    stranger = ReuseIndex.empty(Fingerprint.of(test="another"))
    with pytest.raises(AssertionError, match="is stamped"):
        stranger.insert(retained(1, chain_of_letters([1])))
    with pytest.raises(AssertionError, match="65 of 64 tokens"):
        index.longest_match(chain_of_letters([1]), 65)


def _kept(index: ReuseIndex) -> list[int]:
    return sorted(one.id for one in index if not one.superseded)


def _state(id: int, pages: int, kind: Kind) -> Retained:
    return retained(id, chain_of_letters(range(1, pages + 1)), kind=kind)


def test_a_conversation_keeps_its_latest_checkpoint_and_the_one_that_opened_the_turn() -> None:
    index = EMPTY.insert(_state(1, 1, Kind.PREFIX))
    index = index.insert(_state(2, 2, Kind.TURN_OPEN), 1)
    index = index.insert(_state(3, 3, Kind.CHECKPOINT), 2)
    assert _kept(index) == [1, 2, 3]
    index = index.insert(_state(4, 4, Kind.CHECKPOINT), 3)
    assert _kept(index) == [1, 2, 4]
    index = index.insert(_state(5, 5, Kind.TURN_OPEN), 4)
    assert _kept(index) == [1, 5]
    assert {one.conversation for one in index} == {1}
    assert isinstance(index.longest_match(chain_of_letters([1, 2, 3, 9]), 256), Match)
    sunk = index.get(3)
    assert sunk is not None
    assert rank(sunk, 0.0, 1000.0) is Rank.LOWEST


def test_periodic_states_and_junctions_pass_a_conversation_on_and_supersede_nothing() -> None:
    index = EMPTY.insert(_state(1, 1, Kind.CHECKPOINT))
    index = index.insert(_state(2, 2, Kind.PERIODIC), 1)
    index = index.insert(_state(3, 3, Kind.JUNCTION), 2)
    assert _kept(index) == [1, 2, 3]
    index = index.insert(_state(4, 4, Kind.CHECKPOINT), 3)
    assert _kept(index) == [2, 3, 4]


def test_claiming_a_checkpoint_that_has_a_successor_starts_a_conversation() -> None:
    index = EMPTY.insert(_state(1, 1, Kind.CHECKPOINT))
    index = index.insert(_state(2, 2, Kind.CHECKPOINT), 1)
    fork = retained(3, chain_of_letters([1, 7]))
    index = index.insert(fork, 1)
    assert _kept(index) == [2, 3]
    assert {one.id: one.conversation for one in index} == {1: 1, 2: 1, 3: 2}
    index = index.insert(retained(4, chain_of_letters([1, 7, 7])), 3)
    assert _kept(index) == [2, 4]


def test_the_next_turn_goes_on_where_the_last_one_was_opened() -> None:
    """What the finished turn left behind its opening sinks with it, as the prompt drops it."""
    index = EMPTY.insert(_state(1, 1, Kind.TURN_OPEN))
    index = index.insert(_state(2, 2, Kind.CHECKPOINT), 1)
    index = index.insert(_state(3, 3, Kind.CHECKPOINT), 2)
    next_turn = retained(4, chain_of_letters([1, 7]), kind=Kind.TURN_OPEN)
    index = index.insert(next_turn, 1)
    assert _kept(index) == [4]
    assert {one.conversation for one in index} == {1}
    late_fork = retained(5, chain_of_letters([1, 8]), kind=Kind.TURN_OPEN)
    index = index.insert(late_fork, 1)
    assert _kept(index) == [4, 5]
    within_the_turn = index.insert(retained(6, chain_of_letters([1, 7, 7])), 4)
    within_the_turn = within_the_turn.insert(retained(7, chain_of_letters([1, 7, 8])), 4)
    assert _kept(within_the_turn) == [4, 5, 6, 7]


def test_a_parent_that_lost_its_successor_can_be_continued() -> None:
    index = EMPTY.insert(_state(1, 1, Kind.CHECKPOINT))
    index = index.insert(_state(2, 2, Kind.CHECKPOINT), 1).remove(2)
    index = index.insert(_state(3, 2, Kind.CHECKPOINT), 1)
    assert {one.conversation for one in index} == {1}
    assert _kept(index) == [3]


def test_a_parent_that_is_gone_leaves_a_conversation_of_its_own() -> None:
    index = EMPTY.insert(_state(1, 1, Kind.CHECKPOINT)).remove(1)
    index = index.insert(_state(2, 2, Kind.CHECKPOINT), 1)
    assert [one.conversation for one in index] == [2]
