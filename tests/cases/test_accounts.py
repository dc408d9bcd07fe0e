"""What is told of reuse: the same number everywhere, counted once, and a reason for each miss."""

from collections.abc import Callable

from ignisd.engine.room import flush
from state.chain import chain_of
from state.retention import Marks
from state.reuse import MissReason
from tests.cases.prompts import chat, floor
from tests.engine.harness import Harness, words
from tests.planting import catches


@catches("lookups-counted-while-waiting")
def test_v103_a_waiting_request_is_looked_up_once() -> None:
    harness = Harness(num_lanes=1)
    prompt, marks = chat(words(200, 1), words(50, 2))
    harness.ask(prompt, marks=marks)
    harness.submit(words(60, 3), max_tokens=150)
    ids = [harness.submit(prompt, marks=marks) for _ in range(10)]
    for _ in range(100):
        harness.turn()
    assert len(harness.world.queue) == 10
    harness.drain()
    assert all(harness.finishes[key].cached_tokens == 192 for key in ids)
    assert harness.world.counters.lookups == 12
    assert harness.world.counters.queried_tokens == 250 + 60 + 10 * 250


@catches("cached-is-what-matched")
def test_v106_cached_tokens_are_one_number_from_the_first_event_on() -> None:
    harness = Harness()
    system = words(200, 1)
    for who in range(4):
        # Each parts from the one before inside a page that no image ends.
        prompt, marks = chat(system, [*words(150, 2), *words(60, 3 + who)])
        finish = harness.ask(prompt, marks=marks, max_tokens=20)
        read = harness.rows(finish.request_id)
        assert finish.cached_tokens + read == finish.prompt_tokens
        assert harness.started[finish.request_id].reuse == finish.reuse
    assert harness.world.counters.lost_tokens > 0


@catches("cached-is-what-matched", "double-finish")
def test_v107_the_counters_are_the_sums_of_the_answers() -> None:
    harness = Harness(num_lanes=3, interval_tokens=128)
    system = words(300, 1)
    for who in range(12):
        prompt, marks = chat(system, words(30 * (who % 4 + 1), 2 + who % 5))
        harness.submit(prompt, marks=marks, reuse=who != 7)
        if who % 3 == 0:
            harness.turn()
    harness.drain()
    cached = [finish.cached_tokens for finish in harness.finishes.values()]
    counters = harness.world.counters
    assert counters.device_tokens == sum(cached) > 0
    assert sum(counters.hits.values()) == sum(map(bool, cached))
    assert counters.computed_tokens + counters.device_tokens == counters.queried_tokens


def seen(
    harness: Harness, tokens: list[int], salt: bytes = b"", reuse: bool = True, **more: int
) -> tuple[MissReason, int, int | None, str | None]:
    """Reason, matched tokens, where the prompt parts and in which part of it."""
    starts = more.get("system", 0), 300
    marks = Marks(
        more.get("system"), None, len(tokens), tuple(sorted({0, *starts})), tools=(40, 90)
    )
    finish = harness.ask(chain_of(tokens, salt), marks=marks, reuse=reuse)
    assert finish.reuse.miss is not None, finish.reuse
    return (
        finish.reuse.miss.reason,
        finish.reuse.matched_tokens,
        finish.reuse.diverged_at,
        finish.reuse.segment,
    )


def filled() -> tuple[Harness, list[int]]:
    """A server that holds one conversation of 500 tokens whose first 200 are the system block."""
    harness = Harness(num_host_slots=1)
    prompt = words(500, 1)
    harness.ask(prompt, marks=Marks(None, None, 500))
    return harness, prompt


def other_at(prompt: list[int], at: int) -> list[int]:
    return [*prompt[:at], prompt[at] + 1000, *prompt[at + 1 :]]


@catches("every-miss-is-no-match", "reuse-off-is-ignored", "the-salt-is-left-out")
def test_v109_each_miss_has_its_reason_its_length_and_its_place() -> None:
    def evict(harness: Harness) -> None:
        harness.now_ms += 1.0
        harness.ask(words(300, 9), marks=Marks(opener=300))

    def nothing(harness: Harness) -> None:
        return None

    wanted: list[
        tuple[Callable[[Harness], None], Callable[[list[int]], list[int]], tuple[object, ...]]
    ] = [
        (nothing, lambda p: other_at(p, 0), (MissReason.NO_MATCH, 0, 0, "system")),
        (nothing, lambda p: other_at(p, 50), (MissReason.DIVERGED, 0, 50, "tools")),
        (nothing, lambda p: other_at(p, 95), (MissReason.STATE_MISSING, 64, 95, "system")),
        (nothing, lambda p: other_at(p, 250), (MissReason.STATE_MISSING, 192, 250, "message 1")),
        (nothing, lambda p: other_at(p, 310), (MissReason.STATE_MISSING, 256, 310, "message 2")),
        (nothing, lambda p: p[:60], (MissReason.TOO_SHORT, 0, None, None)),
        (evict, lambda p: p, (MissReason.EVICTED, 0, 0, "system")),
    ]
    for change, ask, told in wanted:
        harness, prompt = filled()
        change(harness)
        assert seen(harness, ask(prompt), system=200) == told
    harness, prompt = filled()
    assert seen(harness, prompt, reuse=False)[:2] == (MissReason.REUSE_OFF, 0)
    assert seen(harness, prompt, b"tenant")[:2] == (MissReason.SALT, 0)
    harness, prompt = filled()
    harness.world = flush(harness.world)
    assert seen(harness, prompt) == (MissReason.NO_MATCH, 0, None, None)
    full = Harness(num_host_slots=0)
    full.ask(prompt, marks=Marks(opener=500))
    assert seen(full, prompt)[0] is MissReason.NO_SLOT


@catches("volatile-prompts-unseen")
def test_v109_a_system_prompt_with_a_clock_is_reported_and_once_to_the_operator() -> None:
    harness = Harness(num_pages=400, num_host_slots=8)
    head, rest = words(90, 1), words(400, 2)
    reports = []
    for second in range(12):
        system = [*head, 7, second, *rest]
        prompt, marks = chat(system, words(60, 10 + second))
        reports.append(harness.ask(prompt, marks=marks).reuse.volatile_at)
    assert reports == [None] * 3 + [91] * 9
    assert harness.world.counters.volatile == 9
    (told,) = harness.world.notices
    assert told.event == "volatile system prompt"
    assert (told.facts["offset"], told.facts["in_a_row"]) == (91, 5)
    assert floor(harness.finishes[12].reuse.matched_tokens) <= 64


@catches("every-miss-is-no-match")
def test_v109_a_stable_system_prompt_is_never_called_volatile() -> None:
    harness = Harness(num_pages=400, num_host_slots=8)
    systems = [words(200, 1 + who) for who in range(5)]
    for turn in range(20):
        prompt, marks = chat(systems[turn % 5], words(60, 100 + turn))
        assert harness.ask(prompt, marks=marks).reuse.volatile_at is None
    short = harness.ask(words(30, 1), marks=Marks(opener=30))
    assert short.reuse.miss is not None
    assert short.reuse.miss.reason is MissReason.TOO_SHORT
