"""Sequences that give way to others and go on later, as if nothing had happened."""

from ignisd.engine.types import FinishReason, Phase, SamplingParams
from state.retention import Marks
from state.spec import PAGE_TOKENS, Class
from tests.engine.below import Tiered
from tests.engine.harness import words
from tests.planting import catches

PENALTIES = SamplingParams(
    presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.2, seed=64
)


def interrupted_by(harness: Tiered, victim: int, prompt: list[int], max_tokens: int = 3) -> int:
    """A person's request that takes the victim's place, and has it when this returns."""
    person = harness.submit(prompt, max_tokens=max_tokens)
    harness.until(lambda: harness.phase(victim) not in (Phase.DECODING, Phase.PREFILLING))
    return person


@catches("image-after-its-lane")
def test_v58_a_decoding_request_goes_on_where_it_stopped() -> None:
    for stop_at in (1, PAGE_TOKENS - 1, PAGE_TOKENS, PAGE_TOKENS + 1):
        harness = Tiered(num_lanes=1, window_pages=1)
        prompt = words(130, stop_at)
        agent = harness.submit(prompt, max_tokens=stop_at + 90, cls=Class.AGENT)
        harness.until_stepped(agent, stop_at)
        interrupted_by(harness, agent, words(90, 2))
        harness.drain()
        harness.assert_cold()
        finish = harness.finishes[agent]
        assert (finish.evictions, finish.generated_tokens) == (1, stop_at + 90)
        assert harness.rows(agent) == 130, "its prompt was read once"
        assert harness.world.counters.resumed == 1
        harness.assert_leak_free()


@catches("image-after-its-lane", "resumed-from-an-empty-lane")
def test_v59_a_prompt_that_was_half_read_is_read_on() -> None:
    harness = Tiered(num_lanes=1, chunk_tokens=64, window_pages=1)
    prompt = words(320, 1)
    agent = harness.submit(prompt, marks=Marks(130, None, 320), cls=Class.AGENT)
    harness.until(lambda: harness.rows(agent) >= 128)
    interrupted_by(harness, agent, words(300, 2))
    read = harness.rows(agent)
    assert 128 <= read < 320
    harness.drain()
    harness.assert_cold()
    assert harness.rows(agent) == 320
    assert harness.world.counters.computed_tokens == 620
    assert harness.ask(prompt).cached_tokens == 256, "its cuts were made all the same"
    harness.assert_leak_free()


@catches("waits-where-it-could-be-computed", "told-again-after-a-replay")
def test_v59_without_room_below_all_is_computed_anew_and_counted() -> None:
    harness = Tiered(num_lanes=1, num_cells=3)
    agent = harness.submit(words(130, 1), max_tokens=80, cls=Class.AGENT, reuse=False)
    harness.until_stepped(agent, 30)
    said = len(harness.answers[agent])
    person = interrupted_by(harness, agent, words(90, 2))
    harness.until(lambda: person in harness.finishes)
    assert len(harness.answers[agent]) <= said + 2
    harness.drain()
    harness.assert_cold()
    counters = harness.world.counters
    assert (counters.recomputed, counters.evictions, counters.resumed) == (1, 0, 0)
    assert said <= counters.replayed_tokens <= said + 2
    assert harness.rows(agent) == 260
    harness.assert_leak_free()


@catches("answer-room-is-not-counted")
def test_v61_near_the_ceiling_a_prompt_is_read_once_or_refused_at_once() -> None:
    capacity = 20 * PAGE_TOKENS
    for length in (*range(capacity - 26, capacity, 5), capacity, capacity + 1):
        harness = Tiered(num_pages=21, max_context=capacity, num_cells=60, num_lanes=2)
        chat = harness.submit(words(70, 9), max_tokens=60)
        asked = harness.submit(words(length, 1), max_tokens=20, cls=Class.AGENT)
        harness.drain()
        finish = harness.finishes[asked]
        if length > capacity:
            assert finish.reason is FinishReason.ERROR
            assert f"has {length} tokens" in (finish.message or "")
            assert harness.rows(asked) == 0
        else:
            harness.assert_cold(chat)
            assert finish.reason is FinishReason.LENGTH
            assert harness.rows(asked) == length
        assert harness.world.counters.recomputed == 0


@catches("resumed-without-what-it-said")
def test_v64_penalties_look_at_what_was_said_before_the_pause() -> None:
    harness = Tiered(num_lanes=1)
    agent = harness.submit(words(100, 1), max_tokens=150, cls=Class.AGENT, sampling=PENALTIES)
    for pause in range(2):
        harness.until_stepped(agent, 40 * (pause + 1))
        interrupted_by(harness, agent, words(90, 2 + pause))
        harness.until_phase(Phase.DECODING, agent)
    harness.drain()
    harness.assert_cold()
    assert harness.finishes[agent].evictions == 2


@catches("told-again-after-a-replay")
def test_v64_penalties_are_the_same_when_all_is_computed_anew() -> None:
    harness = Tiered(num_lanes=1, num_cells=3)
    agent = harness.submit(words(100, 1), max_tokens=90, cls=Class.AGENT, sampling=PENALTIES)
    harness.until_stepped(agent, 40)
    interrupted_by(harness, agent, words(90, 2))
    harness.drain()
    harness.assert_cold()
    assert harness.world.counters.recomputed == 1


@catches("told-again-after-a-replay", "double-finish")
def test_v65_a_reader_hears_each_token_once_whatever_happened() -> None:
    for num_cells in (200, 3):
        harness = Tiered(num_lanes=1, num_cells=num_cells)
        agent = harness.submit(words(100, 1), max_tokens=120, cls=Class.AGENT)
        heard = [0]
        for pause in range(3):
            harness.until_said(agent, 30 * (pause + 1))
            interrupted_by(harness, agent, words(90, 2 + pause))
            harness.until_stepped(agent, harness.stepped(agent) + 1)
            heard.append(len(harness.answers[agent]))
        harness.drain()
        assert heard == sorted(heard), "nothing is taken back"
        harness.assert_cold()
        finish = harness.finishes[agent]
        assert finish.generated_tokens == len(harness.answers[agent]) == 120
        assert finish.evictions == 3


@catches("the-first-gives-way", "people-give-way-to-people")
def test_v67_who_was_planned_for_this_round_gives_way_once_and_by_rank() -> None:
    harness = Tiered(num_lanes=2, num_pages=40, num_cells=400, max_context=2048)
    agents = [harness.submit(words(200, who), max_tokens=40, cls=Class.AGENT) for who in range(2)]
    harness.until(lambda: all(harness.stepped(one) > 3 for one in agents))
    harness.now_ms += 1.0
    people = [harness.submit(words(200, 10 + who), max_tokens=40) for who in range(4)]
    ended: list[int] = []
    gone: list[int] = []
    while harness.world.sequences:
        harness.turn()
        down = [key for key in harness.world.sequences if harness.phase(key) is Phase.EVICTING]
        assert len(down) <= 1
        gone += [key for key in down if key not in gone]
        ended += [key for key in harness.finishes if key not in ended]
    assert gone == agents[::-1], "the latest goes first"
    assert set(ended[:4]) == set(people)
    harness.assert_cold()
    assert sorted(harness.finishes[one].evictions for one in agents) == [1, 1]
    assert all(harness.finishes[one].evictions == 0 for one in people)
    harness.assert_leak_free()


@catches("resumed-behind-later-arrivals")
def test_v68_who_gave_way_goes_on_before_whoever_came_later() -> None:
    harness = Tiered(num_lanes=1)
    first = harness.submit(words(100, 1), max_tokens=60, cls=Class.AGENT)
    harness.until_stepped(first, 10)
    later = []
    for who in range(4):
        harness.now_ms += 1.0
        later.append(harness.submit(words(90, 10 + who), max_tokens=30, cls=Class.AGENT))
    interrupted_by(harness, first, words(90, 2))
    while first in harness.world.sequences:
        harness.turn()
        assert not any(harness.rows(one) for one in later)
        if len(later) < 30:
            later.append(harness.submit(words(90, 50), max_tokens=3, cls=Class.AGENT))
    harness.drain()
    harness.assert_cold()
    assert list(harness.finishes)[1] == first


@catches("pages-free-before-their-last-window", "victim-steps-on")
def test_v70_pages_are_free_when_the_last_window_has_landed() -> None:
    harness = Tiered(num_lanes=2, window_pages=1, num_pages=26, max_context=1024, num_cells=60)
    agent = harness.submit(words(600, 1), max_tokens=200, cls=Class.AGENT, reuse=False)
    harness.until_stepped(agent, 20)
    person = harness.submit(words(800, 2))
    harness.until_phase(Phase.EVICTING, agent)
    windows = 0
    while harness.phase(agent) is Phase.EVICTING:
        held = harness.world.sequences[agent].table
        assert len(held) >= 10
        work = harness.turn()
        windows += bool(work and work.lowers)
        if person in harness.world.sequences:
            taken = harness.world.sequences[person].table
            assert not set(held) & set(taken)
    assert windows >= 4
    harness.drain()
    harness.assert_cold()
    harness.assert_leak_free()


@catches("an-end-on-the-way-down-leaks", "orphans-stay")
def test_v70_who_leaves_on_the_way_down_or_up_leaves_nothing_there() -> None:
    for phase in (Phase.EVICTING, Phase.EVICTED, Phase.RESTORING):
        harness = Tiered(num_lanes=1, window_pages=1)
        agent = harness.submit(words(500, 1), max_tokens=100, cls=Class.AGENT)
        harness.until_stepped(agent, 4)
        person = harness.submit(words(90, 2), max_tokens=9)
        harness.until_phase(phase, agent)
        harness.turn()
        assert harness.phase(agent) is phase
        harness.cancel(agent)
        harness.drain()
        harness.settle()
        harness.assert_cold(person)
        assert not [one for one in harness.arena.index if one.is_live]
        harness.assert_leak_free()
