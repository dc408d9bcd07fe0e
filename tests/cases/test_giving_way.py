"""Who gives way when pages, slots and cells are short, and what is given back of it."""

import random
from collections import Counter

from ignisd.engine.stats import Use
from ignisd.engine.types import Phase
from state.chain import chain_of
from state.retained import Kind
from state.retention import Marks
from state.spec import Class
from tests.cases.prompts import chat, floor, promised
from tests.engine.below import Tiered
from tests.engine.harness import Harness, words
from tests.planting import catches


@catches("room-is-made-though-there-is-some")
def test_v47_what_answers_used_is_taken_before_what_is_retained() -> None:
    harness = Harness(num_pages=85, num_host_slots=12)
    talks = [words(640, 10 + who) for who in range(4)]
    for turn in range(4):
        for who, talk in enumerate(talks):
            prompt = [*talk, *words(30, 100 * turn + who)]
            finish = harness.ask(prompt, marks=Marks(640, 670, 670), max_tokens=70)
            assert turn == 0 or finish.cached_tokens >= 0.9 * 640
    retained = {page for held in harness.world.index for page in held.table}
    assert len(retained) <= 0.6 * 84
    gone = harness.world.counters.discarded
    assert not any(times for (_, _, use), times in gone.items() if use is Use.USED)


@catches("old-turns-keep-their-rank")
def test_v49_a_hit_keeps_fresh_what_it_used_and_nothing_beside_it() -> None:
    harness = Harness(num_host_slots=4, num_pages=400)
    cold, marks = chat((), words(300, 1))
    harness.ask(cold, marks=marks)
    hot = words(200, 2)
    for turn in range(3):
        hot += words(100, 3 + turn)
        harness.ask(hot, marks=Marks(None, None, len(hot)))
    for _ in range(50):
        assert harness.ask(hot, marks=Marks(None, None, 500)).cached_tokens == promised(500)
    harness.ask(words(300, 9), marks=Marks(opener=300))
    harness.ask(words(300, 10), marks=Marks(opener=300))
    lengths = sorted(held.length for held in harness.world.index)
    assert lengths == [256, 256, 256, promised(500)], "the old turns of the hot branch gave way"
    assert harness.ask(cold, marks=marks).cached_tokens == promised(300)


@catches("two-owners-of-a-slot", "freed-page-reused", "an-abandoned-image-stays")
def test_v50_free_retained_and_used_are_the_whole_pool_after_every_step() -> None:
    rng = random.Random(50)
    harness = Tiered(
        num_pages=60,
        num_host_slots=4,
        num_cells=30,
        window_pages=3,
        num_lanes=3,
        interval_tokens=128,
    )
    prompts = [words(rng.randint(70, 700), who % 9) for who in range(30)]
    done: Counter[str] = Counter()
    for _ in range(400):
        does = rng.choice(("ask", "turn", "turn", "turn", "turn", "leave"))
        done[does] += 1
        if does == "ask" and len(harness.world.sequences) < 8:
            prompt = rng.choice(prompts)
            cls = rng.choice((Class.AGENT, Class.INTERACTIVE))
            harness.submit(prompt, marks=Marks(opener=len(prompt)), max_tokens=30, cls=cls)
        elif does == "leave" and harness.world.sequences and rng.random() < 0.3:
            harness.cancel(rng.choice(list(harness.world.sequences)))
        else:
            harness.turn()
        pages, slots, arena = harness.world.pages, harness.world.slots, harness.arena
        assert pages.num_free + pages.num_used == pages.num_pages - 1
        assert slots.num_free + slots.num_used == slots.num_slots
        used = {cell for one in arena.index for cell in arena.located(one.id).cells}
        used |= {cell for key in arena.pending for cell in arena.located(key).cells}
        assert arena.num_free + len(used) == arena.num_cells
    counters = harness.world.counters
    assert min(counters.evictions, sum(counters.demoted.values()), counters.resumed) > 3
    harness.drain()
    harness.assert_leak_free()


@catches("two-owners-of-a-slot", "claim-consumes")
def test_v52_room_for_one_more_takes_nothing_from_those_who_run() -> None:
    harness = Harness(num_lanes=4, num_host_slots=5, num_pages=120)
    prompt, hits = words(300, 1), 0
    for again in range(5):
        running = [
            harness.submit([*prompt, *words(30, 10 * again + who)], marks=Marks(300, None, 330),
                           max_tokens=120)
            for who in range(3)
        ]  # fmt: skip
        for _ in range(12):
            harness.turn()
        extra = harness.submit(words(900, 50 + again), marks=Marks(opener=900), max_tokens=2)
        harness.drain()
        harness.assert_cold(extra, *running)
        hits += sum(harness.finishes[key].cached_tokens == 256 for key in running)
    assert hits >= 12
    harness.assert_leak_free()


@catches("freed-page-reused", "cancel-that-leaks")
def test_v53_forks_of_a_prefix_in_use_leave_no_holder_behind() -> None:
    rng = random.Random(53)
    harness = Harness(num_lanes=4, num_host_slots=6, num_pages=150)
    base = words(900, 1)
    flying: list[int] = []
    for fork in range(60):
        keep = rng.randint(1, 900)
        prompt = [*base[:keep], *words(rng.randint(1, 90), 100 + fork)]
        flying.append(harness.submit(prompt, marks=Marks(min(keep, 300), None, len(prompt)),
                                     max_tokens=rng.randint(1, 40)))  # fmt: skip
        for _ in range(rng.randint(0, 12)):
            harness.turn()
        if rng.random() < 0.2:
            harness.cancel(flying.pop(rng.randrange(len(flying))))
    harness.drain()
    harness.assert_cold(*[key for key in flying if key in harness.finishes])
    assert sum(finish.cached_tokens > 0 for finish in harness.finishes.values()) > 20
    harness.assert_leak_free()


@catches("hits-are-thrown-away", "a-match-holds-pages-while-it-waits")
def test_v55_a_hit_that_cannot_enter_holds_nothing() -> None:
    harness = Harness(num_lanes=2, num_pages=24, max_context=1088, num_host_slots=2)
    prompt = words(300, 1)
    harness.ask(prompt, marks=Marks(opener=300))
    harness.submit(words(600, 2), max_tokens=450, reuse=False)
    for _ in range(5):
        harness.turn()
    waiting = harness.submit([*prompt, *words(500, 3)], marks=Marks(opener=800), max_tokens=2)
    used = harness.world.pages.num_used
    for _ in range(100):
        harness.turn()
        assert harness.world.sequences[waiting].table == ()
        grown = harness.world.pages.num_used - used
        assert grown <= 8, "only the lane that runs takes pages"
    harness.drain()
    harness.assert_cold()
    assert harness.finishes[waiting].cached_tokens == 256
    harness.assert_leak_free()


@catches("full-slots-keep-requests-out", "retained-state-delays")
def test_v56_slots_and_pages_full_of_idle_states_delay_nobody() -> None:
    harness = Harness(num_lanes=1, num_pages=41, num_host_slots=8, max_context=2048)
    for who in range(8):
        harness.ask(words(300, who), marks=Marks(opener=300))
    assert harness.world.slots.num_free == 0
    assert harness.world.pages.num_free < 12
    fresh = harness.submit(words(1500, 50), marks=Marks(opener=1500))
    harness.turn()
    assert harness.world.sequences[fresh].phase is Phase.PREFILLING
    harness.drain()
    harness.assert_cold(fresh)


@catches("kinds-do-not-rank")
def test_v56_what_is_retained_gives_way_by_its_rank() -> None:
    harness = Harness(num_host_slots=3, num_pages=400)
    system = words(200, 1)
    for who in range(2):
        prompt, marks = chat(system, words(80, 10 + who))
        harness.ask(prompt, marks=marks)
    assert [held.hits for held in harness.world.index if held.kind is Kind.PREFIX] == [1]
    for who in range(6):
        harness.now_ms += 1.0
        prompt, marks = chat(words(20, 90 + who), words(130, 20 + who))
        harness.ask(prompt, marks=Marks(None, None, len(prompt)))
        assert harness.world.index.find(chain_of(system), floor(200)) is not None
