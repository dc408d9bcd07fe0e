"""Publication before the write, identical requests at once, prefills that are given up."""

import random

from state.retained import Kind
from state.retention import Marks
from tests.cases.prompts import chat, floor, promised
from tests.engine.harness import Harness, words
from tests.planting import catches


@catches("publish-early", "partings-in-flight-unseen")
def test_v26_a_request_of_the_same_round_hits_nothing_that_is_only_planned() -> None:
    harness = Harness(num_lanes=2)
    shared = words(1500, 1)
    both = [
        harness.submit([*shared, *words(80, 2 + who)], marks=Marks(opener=1580)) for who in range(2)
    ]
    while not harness.world.pending:
        harness.plan()
        assert not len(harness.world.index)
        while len(harness.under_way) > 1:
            harness.commit()
    harness.drain()
    harness.assert_cold(*both)
    assert [harness.finishes[key].cached_tokens for key in both] == [0, floor(1500)]
    assert harness.rows(*both) == 1580 + 1580 - floor(1500)


@catches("publish-early", "cancelled-prefill-is-lost")
def test_v28_a_retry_hits_only_what_the_abandoned_prefill_had_read() -> None:
    rng = random.Random(28)
    harness = Harness(num_pages=400, max_context=12_000)
    for trial in range(12):
        prompt = words(40 * 256, trial)
        marks = Marks(opener=len(prompt))
        victim = harness.submit(prompt, marks=marks)
        for _ in range(rng.randint(1, 30)):
            harness.turn()
        harness.cancel(victim)
        read = harness.rows(victim)
        retry = harness.ask(prompt, marks=marks)
        assert retry.cached_tokens <= read
        if read >= 1024:
            assert retry.cached_tokens == read
        assert len(harness.world.index) <= 8
    assert harness.world.counters.hits[Kind.INTERRUPTED] > 4


@catches("everybody-leads", "partings-in-flight-unseen")
def test_l20_a_lost_prefix_is_read_once_for_all_who_wait_for_it() -> None:
    harness = Harness(num_lanes=4, num_pages=400, max_context=8192, num_host_slots=16)
    history = words(5000, 1)
    tails = [words(140, 10 + who) for who in range(12)]
    for known in (True, False):
        if known:
            harness.ask(history, marks=Marks(opener=5000))
        else:
            harness = Harness(num_lanes=4, num_pages=400, max_context=8192, num_host_slots=16)
        ids = [harness.submit([*history, *tail], marks=Marks(opener=5140)) for tail in tails]
        harness.drain()
        harness.assert_cold(*ids)
        lost = 0 if known else 5000
        assert harness.rows(*ids) <= lost + sum(len(tail) + 64 for tail in tails)


@catches("cancelled-prefill-is-lost", "cancel-flushes")
def test_l22_abandoned_prefills_leave_their_last_boundary_and_everything_else() -> None:
    rng = random.Random(22)
    harness = Harness(num_pages=900, max_context=50_000, chunk_tokens=1024)
    others = [words(300, 50 + who) for who in range(3)]
    for prompt in others:
        harness.ask(prompt, marks=Marks(opener=300))
    kept = {held.id for held in harness.world.index}
    prompt = words(47_000, 1)
    marks = Marks(opener=47_000)
    reached = 0
    for _ in range(5):
        victim = harness.submit(prompt, marks=marks)
        for _ in range(rng.randint(3, 9)):
            harness.turn()
        assert harness.world.sequences[victim].reuse.cached_tokens == reached
        reached += harness.rows(victim)
        harness.cancel(victim)
        harness.turn()
        assert kept <= {held.id for held in harness.world.index}
    assert harness.ask(prompt, marks=marks).cached_tokens == reached > 10_000
    assert harness.ask(prompt, marks=marks).cached_tokens == promised(47_000)
    assert all(harness.ask(other, marks=Marks(opener=300)).cached_tokens == 256 for other in others)


@catches("cancelled-prefill-is-lost")
def test_l23_a_retry_resumes_within_a_chunk_of_where_it_stopped() -> None:
    for turns in range(5, 12):
        harness = Harness(chunk_tokens=256)
        prompt, marks = chat(words(100, 1), words(3000, 2))
        victim = harness.submit(prompt, marks=marks)
        for _ in range(turns):
            harness.turn()
        read = harness.rows(victim)
        harness.cancel(victim)
        assert harness.ask(prompt, marks=marks).cached_tokens >= read - 256
