"""Reuse that should have happened: what is retained lies where the lookup lands."""

import random

from state.retained import Kind
from state.retention import Marks
from state.reuse import MissReason
from tests.cases.prompts import chat, floor, promised
from tests.engine.harness import Harness, words
from tests.planting import catches


@catches("claim-consumes", "no-opener-cut")
def test_v31_every_repeat_hits_at_the_same_place() -> None:
    harness = Harness()
    prompt, marks = chat(words(200, 1), words(333, 2))
    hits = [harness.ask(prompt, marks=marks).cached_tokens for _ in range(4)]
    assert hits == [0, *[promised(533)] * 3]


@catches("no-opener-cut", "hits-are-thrown-away")
def test_v32_prompts_around_a_multiple_of_the_page_hit() -> None:
    for pages in (3, 4, 9):
        for length in (64 * pages - 1, 64 * pages, 64 * pages + 1):
            harness = Harness()
            prompt = words(length, length)
            harness.ask(prompt, marks=Marks(opener=length))
            for more in (0, 1, 64):
                tokens = prompt + words(more, 7)
                cached = harness.ask(tokens, marks=Marks(opener=len(tokens))).cached_tokens
                assert cached > 0
                assert cached >= length - 2 * 64


@catches("no-junctions", "lost-tokens-uncounted")
def test_v35_the_second_request_reveals_a_junction_and_the_third_hits_it() -> None:
    for shared in range(70, 590, 40):
        harness = Harness()
        prefix = words(shared, 1)
        prompts = [prefix + words(600 - shared, 2 + who) for who in range(3)]
        first, second, third = (harness.ask(prompt, marks=Marks(opener=600)) for prompt in prompts)
        assert first.cached_tokens == second.cached_tokens == 0
        assert second.reuse.lost_tokens == floor(shared)
        assert harness.world.counters.lost_tokens == floor(shared)
        assert second.reuse.diverged_at is not None
        assert shared <= second.reuse.diverged_at < shared + 4
        assert second.reuse.miss is not None
        assert second.reuse.miss.reason is MissReason.STATE_MISSING
        assert third.cached_tokens >= floor(shared)
        assert third.reuse.kind is Kind.JUNCTION
        assert third.reuse.lost_tokens == 0


@catches("no-prefix-cut", "every-miss-is-no-match")
def test_v37_short_prompts_hit_and_shorter_ones_say_why_not() -> None:
    harness = Harness()
    system = words(300, 1)
    first, second = (
        harness.ask(prompt, marks=marks)
        for prompt, marks in (chat(system, words(50, 2 + who)) for who in range(2))
    )
    assert (first.cached_tokens, second.cached_tokens) == (0, 256)
    tiny = harness.ask(words(64, 9), marks=Marks(opener=64))
    assert tiny.reuse.miss is not None
    assert tiny.reuse.miss.reason is MissReason.TOO_SHORT


@catches("no-periodic-cut", "every-miss-is-no-match")
def test_v40_siblings_that_part_ever_earlier() -> None:
    shared = words(2560, 1)
    for interval in (512, 0):
        harness = Harness(interval_tokens=interval, num_host_slots=24, num_pages=400)
        harness.ask(shared + words(100, 2), marks=Marks(opener=2660))
        for earlier in range(1, 9):
            prompt = shared[: 2560 - 64 * earlier] + words(200, 10 + earlier)
            finish = harness.ask(prompt, marks=Marks(opener=len(prompt)))
            if interval:
                assert finish.cached_tokens >= 2560 - 64 * earlier - interval
            else:
                # The junctions of the siblings before lie above where this one parts.
                assert finish.reuse.miss is not None
                assert finish.reuse.miss.reason is MissReason.STATE_MISSING
                assert finish.reuse.lost_tokens == 2560 - 64 * earlier


@catches("no-share-of-slots")
def test_v41_a_prompt_of_many_states_leaves_others_theirs() -> None:
    harness = Harness(num_host_slots=8, interval_tokens=64, num_pages=400)
    system = words(300, 1)
    periodic: set[int] = set()
    for turn in range(9):
        harness.now_ms += 1.0
        if turn % 3 == 0:
            prompt, marks = chat(system, words(40, 10 + turn))
            assert harness.ask(prompt, marks=marks).cached_tokens == (256 if turn else 0)
        before = {held.id for held in harness.world.index if held.kind is Kind.PERIODIC}
        harness.ask(words(2600, 50 + turn))
        left = before & {held.id for held in harness.world.index}
        assert len(before - left) <= 3
        periodic |= before
    assert len(periodic) > 4


@catches("longer-replaces-shorter")
def test_v44_a_longer_state_leaves_its_prefixes() -> None:
    harness = Harness()
    system = words(200, 1)
    for who in range(4):
        prompt, marks = chat(system, words(150, 2 + who))
        assert harness.ask(prompt, marks=marks).cached_tokens == (192 if who else 0)
        assert harness.ask(prompt, marks=marks).cached_tokens == promised(350)


@catches("one-cut-a-prompt")
def test_v46_a_junction_and_the_end_of_the_prompt_in_one_chunk() -> None:
    harness = Harness(chunk_tokens=512)
    shared = words(400, 1)
    first, second, third = (shared + words(100, 2 + who) for who in range(3))
    harness.ask(first, marks=Marks(opener=500))
    parted = harness.ask(second, marks=Marks(opener=500))
    assert parted.reuse.lost_tokens == floor(400)
    assert harness.ask(second, marks=Marks(opener=500)).cached_tokens == promised(500)
    assert harness.ask(third, marks=Marks(opener=500)).cached_tokens == floor(400)


@catches("no-opener-cut")
def test_l01_an_extended_prompt_is_not_read_again() -> None:
    for length in (65, 66, 80, 127, 128, 129, 191, 192, 193, 320):
        harness = Harness()
        first = words(length, 1)
        harness.ask(first, marks=Marks(None, length, length))
        second = first + harness.answers[1] + words(20, 2)
        finish = harness.ask(second, marks=Marks(None, len(second), len(second)))
        assert finish.cached_tokens == promised(length) > 0
        assert harness.rows(finish.request_id) <= 3 + 20 + 64


@catches("claim-consumes", "hits-are-thrown-away")
def test_l02_the_same_prompt_three_times() -> None:
    for length in (70, 128, 200, 700):
        harness = Harness()
        prompt = words(length, 1)
        finishes = [harness.ask(prompt, marks=Marks(opener=length)) for _ in range(3)]
        for finish in finishes[1:]:
            assert 0 < length - finish.cached_tokens <= 64
        assert harness.answers[2] == harness.answers[3]


@catches("every-miss-is-no-match", "no-opener-cut")
def test_l04_below_the_minimum_the_reason_says_so() -> None:
    for length in (5, 40, 63):
        harness = Harness()
        first = words(length, 1)
        finish = harness.ask(first, marks=Marks(opener=length))
        assert finish.reuse.miss is not None
        assert finish.reuse.miss.reason is MissReason.TOO_SHORT
        second = first + words(100, 2)
        harness.ask(second, marks=Marks(opener=len(second)))
        third = second + words(30, 3)
        assert harness.ask(third, marks=Marks(opener=len(third))).cached_tokens >= 64


@catches("no-opener-cut", "latest-goes-first")
def test_l05_reuse_outlives_idleness_and_other_traffic() -> None:
    harness = Harness(num_host_slots=8)
    long, marks = chat(words(200, 1), words(1500, 2))
    for who in range(12):
        harness.now_ms += 1.0
        harness.ask(words(200, 50 + who), marks=Marks(opener=200))
    harness.now_ms += 1.0
    harness.ask(long, marks=marks)
    for who in range(5):
        harness.now_ms += 1.0
        harness.ask(words(200, 90 + who), marks=Marks(opener=200))
    harness.now_ms += 3_600_000.0
    back = [*long, *words(60, 3)]
    assert harness.ask(back, marks=Marks(200, 1760, 1760)).cached_tokens == promised(1700)


@catches("no-periodic-cut")
def test_l07_an_edit_deep_in_the_history_costs_one_interval() -> None:
    harness = Harness(
        max_context=40_000,
        num_pages=1200,
        num_host_slots=40,
        chunk_tokens=1024,
        interval_tokens=2048,
    )
    prompt = words(32_000, 1)
    harness.ask(prompt, marks=Marks(300, 32_000, 32_000))
    edited = prompt[:16_300] + words(9, 2) + prompt[16_320:]
    finish = harness.ask(edited, marks=Marks(300, len(edited), len(edited)))
    assert finish.cached_tokens >= 16_300 - 2048


@catches("one-cut-a-prompt", "no-turn-open-cut")
def test_l08_every_promised_boundary_can_be_branched_from() -> None:
    rng = random.Random(8)
    for chunk_tokens in (64, 256, 2048):
        for trial in range(4):
            system, user, tools = (rng.randint(70, 500) for _ in range(3))
            end = system + user + tools
            prompt = words(end, trial)
            marks = Marks(system, system + user, end)
            for boundary in (system, system + user, end - 1):
                harness = Harness(chunk_tokens=chunk_tokens)
                harness.ask(prompt, marks=marks)
                branch = prompt[: boundary + 1] + words(90, 99)
                cached = harness.ask(branch, marks=Marks(opener=len(branch))).cached_tokens
                assert cached >= boundary - 64, (chunk_tokens, boundary)


@catches("no-junctions")
def test_l10_prompts_that_differ_in_a_trailing_timestamp() -> None:
    harness = Harness()
    shared = words(2044, 1)
    hits = []
    for who in range(5):
        prompt = shared + words(8, 2 + who)
        hits.append(harness.ask(prompt, marks=Marks(opener=2052)).cached_tokens)
    assert hits[:2] == [0, 0]
    assert hits[2:] == [floor(2044)] * 3


@catches("no-prefix-cut", "everybody-leads")
def test_l17_a_shared_system_prompt_serves_other_questions() -> None:
    for together in (False, True):
        harness = Harness(num_lanes=4)
        system = words(3000, 1)
        prompts = [chat(system, words(80, 2 + who)) for who in range(4)]
        if together:
            ids = [harness.submit(prompt, marks=marks) for prompt, marks in prompts]
            harness.drain()
            hits = [harness.finishes[key].cached_tokens for key in ids]
        else:
            hits = [harness.ask(prompt, marks=marks).cached_tokens for prompt, marks in prompts]
        harness.assert_cold()
        assert hits == [0, *[floor(3000)] * 3]


@catches("hits-are-thrown-away", "no-opener-cut")
def test_l19_a_short_extension_of_a_short_prompt() -> None:
    harness = Harness()
    prompt = words(560, 1)
    harness.ask(prompt, marks=Marks(opener=560))
    longer = prompt + words(20, 2)
    assert harness.ask(longer, marks=Marks(opener=580)).cached_tokens == promised(560)


@catches("no-opener-cut")
def test_l25_what_was_stepped_past_the_stop_is_in_no_key() -> None:
    harness = Harness()
    prompt, marks = chat(words(100, 1), words(90, 2))
    harness.ask(prompt, marks=marks, max_tokens=30)
    stop = frozenset(harness.answers[1][9:10])
    finish = harness.ask(prompt, marks=marks, max_tokens=30, stop_ids=stop)
    answer = harness.answers[finish.request_id]
    assert harness.world.counters.late_tokens > 0
    for held in harness.world.index:
        assert held.chain.tokens.tolist() == prompt[: held.length]
    turn = [*prompt, *answer, *words(40, 3)]
    second = harness.ask(turn, marks=Marks(100, len(turn), len(turn)))
    assert harness.rows(second.request_id) <= len(answer) + 40 + 64


@catches("whole-prompt-hit")
def test_l26_an_exact_hit_leaves_a_token_to_read() -> None:
    harness = Harness()
    prompt = words(256, 1)
    harness.ask([*prompt, 5], marks=Marks(opener=257))
    for length in (256, 255, 257, 1):
        finish = harness.ask(prompt[:length] if length < 257 else [*prompt, 5])
        assert finish.cached_tokens < length
    assert harness.ask([*prompt, 5], marks=Marks(opener=257)).cached_tokens == 256
