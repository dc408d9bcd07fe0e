"""Order, room, pace and ends, seen through the scheduler and a device that checks every state."""

from dataclasses import replace

import pytest

from ignisd.engine import scheduler
from ignisd.engine.room import gainable, make_room
from ignisd.engine.stats import SkipReason, Use
from ignisd.engine.types import FinishReason, Phase, SamplingParams, Tier
from ignisd.engine.world import Limits, with_sequence
from state.retained import Kind
from state.retention import Marks
from state.spec import Class
from tests.engine.harness import Harness, words
from tests.fake_device import cold_answer


def opener(tokens: list[int]) -> Marks:
    return Marks(opener=len(tokens))


def fill(harness: Harness, count: int, length: int = 200) -> None:
    """Leave `count` unrelated checkpoints behind."""
    for seed in range(count):
        harness.now_ms += 1.0
        harness.ask(words(length, 100 + seed), marks=Marks(opener=length))


def test_each_round_reads_one_chunk_and_steps_every_decoding_lane() -> None:
    harness = Harness(num_lanes=3, decode_share=0)
    early = [harness.submit(words(50, seed), max_tokens=60) for seed in range(2)]
    for _ in range(3):
        harness.turn()
    late = harness.submit(words(2000, 9))
    for _ in range(8):
        work = harness.turn()
        assert work is not None
        assert work.prefill is not None
        assert work.prefill.sequence_id == late
        assert [step.sequence_id for step in work.decode] == early
    harness.drain()
    harness.assert_cold()


def test_more_cuts_than_a_chunk_yields_shorten_the_chunk() -> None:
    harness = Harness(interval_tokens=64, max_captures_per_chunk=2, chunk_tokens=512)
    harness.ask(words(600, 1))
    chunks = [work.prefill for work in harness.device.rounds if work.prefill is not None]
    assert [(chunk.start, len(chunk.tokens)) for chunk in chunks][:4] == [
        (0, 128),
        (128, 128),
        (256, 128),
        (384, 128),
    ]
    assert all(len(chunk.captures) <= 2 for chunk in chunks)
    assert harness.world.counters.captured[Kind.PERIODIC] == 8


def test_chunks_off_the_grid_are_refused() -> None:
    with pytest.raises(AssertionError, match="100 tokens is no multiple of the page of 64"):
        Limits(num_lanes=1, max_context=1000, chunk_tokens=100)


def test_no_answer_one_token_and_an_instant_stop() -> None:
    harness = Harness()
    prompt = words(70, 1)
    first = cold_answer(prompt, SamplingParams(), 1, frozenset())[0]
    for max_tokens, stop_ids, reason, generated in (
        (0, frozenset[int](), FinishReason.LENGTH, 0),
        (1, frozenset[int](), FinishReason.LENGTH, 1),
        (9, frozenset({first}), FinishReason.STOP, 1),
    ):
        finish = harness.ask(prompt, max_tokens=max_tokens, stop_ids=stop_ids)
        assert (finish.reason, finish.generated_tokens) == (reason, generated)
    harness.assert_leak_free()


def test_the_step_past_a_stop_is_dropped() -> None:
    harness = Harness()
    prompt = words(70, 1)
    answer = cold_answer(prompt, SamplingParams(), 10, frozenset())
    request_id = harness.submit(prompt, max_tokens=10, stop_ids=frozenset({answer[4]}))
    harness.drain()
    assert harness.answers[request_id] == answer[:4]
    assert harness.finishes[request_id].generated_tokens == 5
    assert harness.world.counters.late_tokens == 1


def test_an_answer_ends_at_the_context() -> None:
    harness = Harness(max_context=256, num_pages=10)
    request_id = harness.submit(words(250, 1), max_tokens=100)
    harness.drain()
    finish = harness.finishes[request_id]
    assert (finish.reason, finish.generated_tokens) == (FinishReason.LENGTH, 6)


def test_every_length_near_the_pool_ends_or_is_refused_at_once() -> None:
    harness = Harness(num_pages=9, max_context=2048, step_tokens=64, num_lanes=1)
    for length in range(436, 530):
        rounds = len(harness.device.rounds)
        request_id = harness.submit(words(length, 1), max_tokens=20)
        harness.drain()
        finish = harness.finishes[request_id]
        if length + 20 <= 512:
            assert finish.reason is FinishReason.LENGTH, length
            assert len(harness.device.rounds) - rounds <= 3 + 20, length
        else:
            assert finish.reason is FinishReason.ERROR, length
            assert "has 8 pages (--vram-kv-pool-bytes)" in (finish.message or "")
            assert len(harness.device.rounds) == rounds
    harness.assert_leak_free()


def test_retained_state_never_delays_an_admission() -> None:
    harness = Harness(num_pages=33, num_host_slots=8)
    fill(harness, 8)
    assert harness.world.pages.num_free == 32 - 8 * 3
    newcomer = harness.submit(words(1500, 1))
    harness.plan()
    assert harness.world.sequences[newcomer].phase is Phase.PREFILLING
    assert 0 < len(harness.world.index) < 8
    harness.drain()
    harness.assert_cold()


def test_a_request_that_cannot_fit_yet_gives_up_nothing() -> None:
    harness = Harness(num_pages=33, num_host_slots=8)
    running = harness.submit(words(1200, 1), max_tokens=300)
    for _ in range(8):
        harness.turn()
    kept = {held.id for held in harness.world.index}
    waiting = harness.submit(words(1500, 2))
    for _ in range(20):
        harness.turn()
    assert harness.world.queue == (waiting,)
    assert {held.id for held in harness.world.index} == kept
    harness.drain()
    harness.assert_cold(running, waiting)


def test_only_states_whose_leaving_helps_are_given_up() -> None:
    harness = Harness(num_pages=33, num_host_slots=8)
    base = words(256, 1)
    harness.ask([*base, 1], marks=Marks(opener=257))
    harness.now_ms += 1.0
    harness.ask([*base, *words(257, 2)], marks=Marks(opener=513))
    harness.now_ms += 1.0
    harness.ask(words(300, 3), marks=Marks(opener=300))
    short, long, other = sorted(harness.world.index, key=lambda held: held.id)
    assert (short.length, long.length, other.length) == (256, 512, 256)
    free = harness.world.pages.num_free
    roomy = make_room(harness.world, free + 4, harness.now_ms)
    assert roomy is not None
    assert {held.id for held in roomy.index} == {short.id, other.id}
    everything = make_room(harness.world, 32, harness.now_ms)
    assert everything is not None
    assert not len(everything.index)
    assert gainable(harness.world) == 32
    assert make_room(harness.world, 33, harness.now_ms) is None


def test_slots_go_to_the_latest_and_an_agent_displaces_no_one_interactive() -> None:
    harness = Harness(num_host_slots=2)
    fill(harness, 3)
    assert [held.length for held in harness.world.index] == [192, 192]
    gone = {key: times for key, times in harness.world.counters.discarded.items() if times}
    assert list(gone.values()) == [1]
    assert [(tier, use) for tier, _, use in gone] == [(Tier.DEVICE, Use.UNUSED)]
    before = {held.id for held in harness.world.index}
    agent = words(200, 7)
    harness.ask(agent, marks=opener(agent), cls=Class.AGENT)
    assert {held.id for held in harness.world.index} == before
    assert harness.world.counters.skipped[SkipReason.NO_SLOT] == 1


def test_one_prompt_displaces_a_quarter_of_the_slots_with_periodic_states() -> None:
    harness = Harness(num_host_slots=8, interval_tokens=64)
    fill(harness, 4, length=130)
    periodic = [held.id for held in harness.world.index if held.kind is Kind.PERIODIC]
    checkpoints = {held.id for held in harness.world.index if held.kind is Kind.CHECKPOINT}
    assert (len(periodic), len(checkpoints)) == (4, 4)
    harness.ask(words(1000, 1))
    assert checkpoints <= {held.id for held in harness.world.index}
    assert harness.world.counters.skipped[SkipReason.QUOTA] > 0
    assert len(set(periodic) - {held.id for held in harness.world.index}) <= 3


def test_lanes_park_and_go_on() -> None:
    harness = Harness(
        num_pages=8, max_context=384, num_lanes=2, step_tokens=1, headroom_steps=0, num_host_slots=0
    )
    first = harness.submit(words(120, 1), max_tokens=80)
    second = harness.submit(words(120, 2), max_tokens=180)
    harness.drain()
    harness.assert_cold(first, second)
    assert harness.world.counters.parks == 1
    assert harness.world.counters.unplaced == 0
    harness.assert_leak_free()


def test_when_all_lanes_wait_for_pages_the_latest_of_the_lowest_class_gives_way() -> None:
    harness = Harness(
        num_pages=7, max_context=384, num_lanes=3, step_tokens=1, headroom_steps=0, num_host_slots=0
    )
    agent = harness.submit(words(100, 1), max_tokens=200, cls=Class.AGENT)
    harness.now_ms += 1.0
    first = harness.submit(words(100, 2), max_tokens=200)
    second = harness.submit(words(100, 3), max_tokens=200)
    harness.drain()
    harness.assert_cold(agent, first, second)
    assert list(harness.finishes) == [first, second, agent]
    assert harness.finishes[first].evictions == 0
    assert harness.finishes[agent].evictions >= 1
    assert harness.world.counters.unplaced == 0
    assert harness.world.counters.recomputed >= 2
    harness.assert_leak_free()


def test_headroom_is_left_for_whoever_ranks_above() -> None:
    harness = Harness(num_pages=33, num_lanes=2, step_tokens=256, headroom_steps=4)
    first = harness.submit(words(400, 1), max_tokens=1000)
    second = harness.submit(words(700, 2), max_tokens=5)
    for _ in range(300):
        harness.turn()
    assert harness.world.queue == (second,)
    harness.drain()
    harness.assert_cold(first, second)
    assert harness.world.counters.parks == 0


def test_interactive_before_agent_and_each_in_order_of_arrival() -> None:
    harness = Harness(num_lanes=1)
    order = [
        harness.submit(words(70, seed), max_tokens=2, cls=cls)
        for seed, cls in enumerate(
            (Class.AGENT, Class.AGENT, Class.INTERACTIVE, Class.AGENT, Class.INTERACTIVE)
        )
    ]
    harness.drain()
    assert list(harness.finishes) == [order[place] for place in (2, 4, 0, 1, 3)]


def test_an_agent_is_served_after_a_minute() -> None:
    harness = Harness(num_lanes=1)
    agent = harness.submit(words(70, 1), max_tokens=2, cls=Class.AGENT)
    for seed in range(40):
        harness.submit(words(70, 2 + seed), max_tokens=2)
        for _ in range(3):
            harness.turn(took_ms=1000.0)
    assert agent in harness.finishes
    admitted = harness.finishes[agent].timings.admitted_ms
    assert admitted is not None
    assert 60_000.0 <= admitted < 66_000.0


@pytest.mark.parametrize(("share", "least", "most"), [(0, 1, 1), (50, 1, 2), (80, 27, 33)])
def test_decode_share_leaves_time_to_decoding(share: int, least: int, most: int) -> None:
    harness = Harness(num_lanes=2, decode_share=share)
    harness.submit(words(50, 1), max_tokens=400)
    for _ in range(6):
        harness.turn(took_ms=10.0)
    big = harness.submit(words(2560, 2), max_tokens=1)
    alone = 0
    while big not in harness.finishes:
        work = harness.plan()
        assert work is not None
        alone += work.prefill is None
        harness.now_ms += 20.0 if harness.world.in_flight[0].prefill else 10.0
        if len(harness.under_way) > 1:
            harness.commit()
    assert least <= alone <= most
    harness.drain()
    harness.assert_cold()


@pytest.mark.parametrize("overlap", [False, True])
def test_cancel_in_every_phase_gives_everything_back(overlap: bool) -> None:
    phases: set[Phase] = set()
    for turns in range(14):
        harness = Harness(num_lanes=1, num_host_slots=2)
        blocker = harness.submit(words(60, 1), max_tokens=2)
        victim = harness.submit(words(1700, 2), max_tokens=20)
        for _ in range(turns):
            harness.turn()
        if overlap:
            harness.plan()
        phases.add(harness.world.sequences[victim].phase)
        harness.cancel(victim)
        harness.cancel(victim)
        assert harness.finishes[victim].reason is FinishReason.CANCELLED
        while harness.under_way:
            harness.commit()
        harness.drain()
        harness.assert_cold(blocker)
        harness.ask(words(1700, 2))
        harness.assert_leak_free()
    assert phases == {Phase.QUEUED, Phase.PREFILLING, Phase.DECODING}


def test_queued_requests_that_left_leave_nothing_locked() -> None:
    harness = Harness(num_lanes=1, num_pages=33)
    prompt = words(500, 1)
    harness.ask(prompt, marks=opener(prompt))
    blocker = harness.submit(words(900, 2), max_tokens=100)
    for _ in range(6):
        harness.turn()
    for request_id in [harness.submit(prompt, marks=opener(prompt)) for _ in range(100)]:
        harness.cancel(request_id)
    assert gainable(harness.world) == 32 - len(harness.world.sequences[blocker].table)
    harness.drain()
    harness.assert_leak_free()


def test_a_held_lane_waits_and_holds_nobody_up() -> None:
    harness = Harness()
    slow = harness.submit(words(50, 1), max_tokens=30)
    quick = harness.submit(words(50, 2), max_tokens=30)
    for _ in range(5):
        harness.turn()
    harness.world = scheduler.hold(harness.world, slow, held=True)
    for _ in range(40):
        harness.turn()
    assert quick in harness.finishes
    assert len(harness.answers[slow]) <= 5
    assert harness.world.counters.holds == 1
    harness.world = scheduler.hold(harness.world, slow, held=False)
    harness.drain()
    harness.assert_cold()


def test_results_must_come_in_order() -> None:
    harness = Harness()
    harness.submit(words(50, 1), max_tokens=5)
    harness.plan()
    result = harness.device.fetch(harness.under_way[0])
    with pytest.raises(AssertionError, match="result of round 2, not 1"):
        scheduler.commit(harness.world, replace(result, number=2), 0.0)


def test_a_world_is_never_changed() -> None:
    harness = Harness()
    prompt = words(300, 1)
    harness.ask(prompt, marks=opener(prompt))
    harness.submit(prompt, marks=opener(prompt))
    before = harness.world
    picture = (before.pages, dict(before.sequences), before.queue, len(before.index))
    first = scheduler.plan(before, 5.0)
    second = scheduler.plan(before, 5.0)
    assert first[0].pages == second[0].pages
    assert first[1] is not None
    assert second[1] is not None
    assert first[1].decode == second[1].decode
    assert picture == (before.pages, dict(before.sequences), before.queue, len(before.index))


def test_an_answer_that_differs_when_computed_anew_ends_with_an_error() -> None:
    harness = Harness(num_lanes=1)
    agent = harness.submit(words(100, 1), max_tokens=50, cls=Class.AGENT)
    for _ in range(20):
        harness.turn()
    told = len(harness.answers[agent])
    assert told > 5
    person = harness.submit(words(100, 2), max_tokens=2)
    while harness.world.sequences[agent].phase is not Phase.QUEUED:
        harness.turn()
    seq = harness.world.sequences[agent]
    other = replace(seq.request, sampling=SamplingParams(seed=9))
    harness.world = with_sequence(harness.world, replace(seq, request=other))
    harness.drain()
    harness.assert_cold(person)
    assert harness.finishes[agent].reason is FinishReason.ERROR
    assert "--reuse-kv-host-pool-bytes" in (harness.finishes[agent].message or "")
    assert len(harness.answers[agent]) >= told
    harness.assert_leak_free()
