"""Wrong recurrent state attached to a position, and wrong answers after reuse.

The fake device refuses when pages, state and positions do not belong together; `ask` compares every
answer with the cold one.
"""

import random

import pytest

from ignisd.engine.types import SamplingParams
from ignisd.engine.world import Limits
from state.chain import chain_of
from state.retention import Marks, RetentionPolicy
from tests.cases.prompts import chat, floor, promised
from tests.engine.harness import Harness, words
from tests.fake_device import cold_answer
from tests.planting import catches


def images_stand_where_they_are_filed(harness: Harness) -> None:
    for held in harness.world.index:
        image = harness.device.slots[held.slot]
        assert image is not None
        assert image.position == held.length == held.position


@catches("any-chunk-is-accepted", "state-one-token-off")
def test_v01_prefills_that_share_rounds_file_states_where_they_stand() -> None:
    with pytest.raises(AssertionError, match="200 tokens is no multiple of the page of 64"):
        Limits(num_lanes=4, max_context=4096, chunk_tokens=200)
    for chunk_tokens in (64, 192):
        harness = Harness(num_lanes=5, chunk_tokens=chunk_tokens, decode_share=0, num_host_slots=20)
        prompts = [words(length, length) for length in (130, 191, 192, 257, 500)]
        together = [harness.submit(prompt, marks=Marks(opener=len(prompt))) for prompt in prompts]
        harness.drain()
        harness.assert_cold(*together)
        images_stand_where_they_are_filed(harness)
        for prompt in prompts:
            again = harness.ask(prompt, marks=Marks(opener=len(prompt)))
            longer = harness.ask([*prompt, *words(70, 9)], marks=Marks(opener=len(prompt) + 70))
            assert again.cached_tokens == longer.cached_tokens == promised(len(prompt))
        images_stand_where_they_are_filed(harness)


@catches("any-chunk-is-accepted", "state-one-token-off")
def test_v02_a_chunk_is_no_smaller_than_what_a_state_covers() -> None:
    with pytest.raises(AssertionError, match="chunk of 48 tokens"):
        Limits(num_lanes=1, max_context=4096, chunk_tokens=48)
    harness = Harness(chunk_tokens=64)
    prompt = words(96, 1)
    harness.ask(prompt, marks=Marks(opener=96))
    sibling = harness.ask([*prompt[:65], *words(60, 2)], marks=Marks(opener=125))
    assert sibling.cached_tokens == 64


@catches("whole-prompt-hit")
def test_v05_the_last_token_is_read_once() -> None:
    for pages in (2, 3, 5):
        harness = Harness()
        prompt = words(64 * pages, 1)
        for tokens in (prompt, prompt, [*prompt, 5], prompt[:-1]):
            finish = harness.ask(tokens, marks=Marks(opener=len(tokens)))
            assert finish.cached_tokens < len(tokens)
        assert harness.ask(prompt).cached_tokens == 64 * (pages - 1)


@catches("wrong-slot", "stale-page")
def test_v07_one_token_to_read_is_a_prefill() -> None:
    harness = Harness(num_lanes=2)
    prompt = words(257, 1)
    harness.ask(prompt, marks=Marks(opener=257))
    alone = harness.submit([*prompt[:256], 7])
    harness.drain()
    decoding = harness.submit(words(40, 2), max_tokens=40)
    for _ in range(5):
        harness.turn()
    beside = harness.submit([*prompt[:256], 8])
    harness.drain()
    harness.assert_cold()
    assert harness.rows(alone) == harness.rows(beside) == 1
    assert decoding in harness.finishes


@catches("any-chunk-is-accepted")
def test_v08_sizes_that_do_not_fit_the_grid_are_refused_with_both_numbers() -> None:
    with pytest.raises(AssertionError, match="96 tokens is no multiple of the page of 64"):
        Limits(num_lanes=1, max_context=4096, chunk_tokens=96)
    with pytest.raises(ValueError, match="interval 48 is not 0 or a positive multiple of the page"):
        RetentionPolicy(48)


@catches("publish-unwritten")
def test_v10_only_what_was_written_is_published() -> None:
    harness = Harness(num_lanes=6, num_host_slots=20, decode_share=0)
    harness.device.loses = lambda position: position % 3 == 0
    decoding = [harness.submit(words(30, seed), max_tokens=60) for seed in range(4)]
    for _ in range(8):
        harness.turn()
    system = words(500, 9)
    prompts = [chat(system, words(60 + 50 * who, 20 + who)) for who in range(8)]
    mixed = [harness.submit(prompt, marks=marks) for prompt, marks in prompts]
    harness.drain()
    harness.assert_cold(*decoding, *mixed)
    images_stand_where_they_are_filed(harness)
    hits = [harness.ask(prompt, marks=marks).cached_tokens for prompt, marks in prompts]
    assert min(hits) >= floor(500)


@catches("wrong-slot")
def test_v17_reuse_overlap_and_company_change_no_answer() -> None:
    answers: dict[tuple[bool, bool, int], list[list[int]]] = {}
    for reuse in (True, False):
        for overlap in (True, False):
            for company in (1, 8):
                answers[reuse, overlap, company] = play_chats(reuse, overlap, company)
    first, *others = answers.values()
    assert len(first) == 24
    assert all(other == first for other in others)


def play_chats(reuse: bool, overlap: bool, company: int) -> list[list[int]]:
    """Answers of eight chats of three turns, so many at a time."""
    harness = Harness(num_lanes=4, num_pages=400, reuse=reuse, num_host_slots=20)
    system = words(150, 1)
    histories = [[*system, *words(40 + 30 * who, 2 + who)] for who in range(8)]
    given: list[list[int]] = [[] for _ in range(24)]
    for turn in range(3):
        for first in range(0, 8, company):
            ids = {}
            for who in range(first, first + company):
                prompt = histories[who]
                end = len(prompt)
                ids[who] = harness.submit(prompt, marks=Marks(150, end, end), max_tokens=9)
            while harness.world.sequences or harness.under_way:
                harness.turn() if overlap else harness.plan()
                while not overlap and harness.under_way:
                    harness.commit()
            for who, request_id in ids.items():
                given[8 * turn + who] = harness.answers[request_id]
                histories[who] += [*harness.answers[request_id], *words(50, 100 * turn + who)]
    hits = sum(harness.world.counters.hits.values())
    assert (hits > 12) if reuse else not hits
    return given


@catches("wrong-slot", "whole-prompt-hit")
def test_v22_a_trimmed_hit_resumes_where_its_image_stands() -> None:
    rng = random.Random(22)
    harness = Harness(interval_tokens=128, num_host_slots=24)
    prompt = words(900, 1)
    harness.ask(prompt, marks=Marks(200, 900, 900))
    trimmed = 0
    for trial in range(60):
        keep = rng.choice((rng.randint(1, 900), 128 * rng.randint(1, 6)))
        tokens = prompt[:keep] + words(rng.choice((0, 1, 60)), 50 + trial)
        finish = harness.ask(tokens, max_tokens=2)
        begun = next(start for work in harness.device.rounds[-3:] for start in work.starts)
        assert begun.position == finish.cached_tokens <= min(keep, len(tokens) - 1)
        trimmed += 0 < finish.cached_tokens < floor(keep)
    assert trimmed > 5


@catches("wrong-slot")
def test_l28_no_request_answers_for_another() -> None:
    for num_lanes in (1, 2, 3, 4):
        rng = random.Random(num_lanes)
        harness = Harness(num_lanes=num_lanes, num_host_slots=2, num_pages=60)
        talks = [words(rng.randint(70, 300), 1000 + who) for who in range(6)]
        for _ in range(60):
            prompt = rng.choice(talks)
            harness.submit(prompt, marks=Marks(opener=len(prompt)), max_tokens=2)
            for _ in range(rng.randint(0, 3)):
                harness.turn()
        harness.drain()
        harness.assert_cold()
        for work in harness.device.rounds:
            for start in work.starts:
                assert (start.slot is None) == (start.position == 0)
        assert sum(finish.cached_tokens > 0 for finish in harness.finishes.values()) > 5


@catches("stale-page", "wrong-slot")
def test_l29_thirty_edits_of_the_middle_leave_no_trace() -> None:
    harness = Harness(max_context=8192, num_pages=400, num_host_slots=12, interval_tokens=256)
    messages = [words(150, 1)]
    hits = 0
    for turn in range(30):
        messages += [words(40, 100 + turn), words(50, 200 + turn)]
        old = messages[1 + turn % 4]
        messages[1 + turn % 4] = old[: max(len(old) - 7, 1)]
        prompt = [token for message in messages for token in message]
        hits += harness.ask(prompt, marks=Marks(150, len(prompt), len(prompt))).cached_tokens > 0
    assert hits > 20


@catches("stale-page", "sampling-is-forgotten")
def test_l31_warm_answers_are_the_cold_one() -> None:
    harness = Harness(num_pages=400)
    tools, marks = chat(words(700, 1), words(40, 2))
    sampling = SamplingParams(seed=77)
    cold = cold_answer(tools, sampling, 64, frozenset())
    for turn in range(4):
        finish = harness.ask(tools, marks=marks, max_tokens=64, sampling=sampling)
        assert finish.cached_tokens == (promised(740) if turn else 0)
        assert harness.answers[finish.request_id] == cold


@catches("state-one-token-off", "pages-out-of-order")
def test_l32_any_stored_and_matched_length_gives_the_cold_answer() -> None:
    rng = random.Random(32)
    hits = 0
    for trial in range(40):
        harness = Harness(chunk_tokens=rng.choice((64, 128, 256)))
        page = 64 * rng.randint(1, 4)
        stored = words(page + rng.choice((-1, 0, 1, 30)), trial)
        matched = min(page + rng.choice((-1, 0, 1, 40)), len(stored))
        harness.ask(stored, marks=Marks(opener=len(stored)))
        warm = stored[:matched] + words(rng.randint(1, 90), 500 + trial)
        hits += harness.ask(warm, marks=Marks(opener=len(warm))).cached_tokens > 0
    assert hits > 10


@catches("match-by-hash-alone")
def test_l37_only_equal_tokens_match() -> None:
    def constant(before: bytes, page: bytes) -> bytes:
        return bytes(16)

    base = words(200, 1)
    for step in (256, 1 << 16, 1 << 24):
        for at in (0, 63, 64, 130):
            harness = Harness()
            other = [*base[:at], base[at] + step, *base[at + 1 :]]
            harness.ask(base, marks=Marks(opener=200))
            hit = harness.ask(other, marks=Marks(opener=200)).cached_tokens
            assert hit <= floor(at), (step, at)
    harness = Harness()
    swapped = [base[1], base[0], *base[2:]]
    for tokens, expected in ((base, 0), (swapped, 0), (base[64:], 0), (base, 192), (swapped, 192)):
        chain = chain_of(tokens, link=constant)
        marks = Marks(opener=len(tokens))
        assert harness.ask(chain, marks=marks).cached_tokens == expected


@catches("claim-consumes", "two-owners-of-a-slot")
def test_l38_a_stored_state_is_nobodys_live_state() -> None:
    harness = Harness(num_lanes=3, num_pages=400, num_host_slots=3)
    prompt = words(300, 1)
    harness.ask(prompt, marks=Marks(opener=300), max_tokens=200)
    (held,) = harness.world.index
    stored = harness.device.slots[held.slot]
    forks = [
        harness.submit([*prompt, *words(80, 2 + fork)], marks=Marks(opener=380), max_tokens=90)
        for fork in range(2)
    ]
    harness.drain()
    harness.assert_cold(*forks)
    assert all(harness.finishes[fork].cached_tokens == 256 for fork in forks)
    assert harness.device.slots[held.slot] == stored
    for seed in range(6):
        harness.now_ms += 1.0
        harness.ask(words(200, 60 + seed), marks=Marks(opener=200))
    images_stand_where_they_are_filed(harness)


@catches("freed-page-reused")
def test_l40_a_long_branch_overwrites_nothing_of_an_older_one() -> None:
    harness = Harness(max_context=8192, num_pages=160, num_host_slots=8)
    old = words(2000, 1)
    harness.ask(old, marks=Marks(200, 2000, 2000))
    branch = [*old[:200], *words(2500, 2)]
    assert harness.ask(branch, marks=Marks(200, 2700, 2700)).cached_tokens == 192
    back = harness.ask([*old, 7], marks=Marks(200, 2001, 2001))
    assert back.cached_tokens == promised(2000)


@catches("reuse-off-is-ignored")
def test_l44_warm_equals_warm_and_a_switch_gives_cold() -> None:
    harness = Harness()
    prompt, marks = chat(words(300, 1), words(60, 2))
    answers = []
    for reuse in (True, True, True, False):
        finish = harness.ask(prompt, marks=marks, reuse=reuse, max_tokens=30)
        answers.append(harness.answers[finish.request_id])
        if not reuse:
            assert finish.cached_tokens == 0
            assert harness.rows(finish.request_id) == 360
    assert answers[0] == answers[1] == answers[2] == answers[3]
