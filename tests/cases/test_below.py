"""What goes down to host memory and comes up again: the right bytes, once, and for whom."""

import random

from ignisd.engine.stats import NotDemoted
from ignisd.engine.types import Phase, Tier
from state.retention import Marks
from state.spec import Class
from tests.cases.prompts import chat, floor, promised
from tests.engine.below import Tiered, check_bytes, moved_bytes
from tests.engine.harness import words
from tests.planting import catches


@catches("image-stays-behind")
def test_v04_what_is_found_below_has_its_state_as_well_as_its_pages() -> None:
    harness = Tiered(num_host_slots=2, interval_tokens=128)
    for who in range(6):
        harness.ask(words(400, who), marks=Marks(opener=400))
        check_bytes(harness)
    assert len(harness.arena.index) >= 4
    before = harness.world.counters.raised_pages
    deepest = max(at for at in (128, 256, 384) if harness.in_ram(words(400, 0), at))
    again = harness.ask(words(400, 0), marks=Marks(opener=400))
    assert (again.cached_tokens, again.reuse.tier) == (deepest, Tier.KV_RAM)
    assert harness.world.counters.raised_pages - before == deepest // 64


@catches("a-placed-state-is-findable", "two-owners-of-a-slot")
def test_v20_slots_are_taken_again_while_their_copies_are_under_way() -> None:
    harness = Tiered(num_lanes=3, num_host_slots=1, num_pages=300)
    prompts = [words(150 + 70 * who, who) for who in range(5)]
    for _ in range(6):
        ids = [harness.submit(prompt, marks=Marks(opener=len(prompt))) for prompt in prompts]
        harness.drain()
        harness.assert_cold(*ids)
    counters = harness.world.counters
    assert sum(counters.restored.values()) > 10
    assert sum(counters.demoted.values()) + counters.demoted_present > 10
    harness.assert_leak_free()


@catches("publish-unwritten", "capture-before-write")
def test_v23_every_stored_image_is_that_of_its_position() -> None:
    harness = Tiered(num_lanes=4, num_host_slots=2, num_pages=300, decode_share=0)
    harness.device.loses = lambda position: position % 5 == 0
    system, compared = words(500, 9), 0
    for who in range(10):
        prompt, marks = chat(system, words(60 + 50 * who, 20 + who))
        harness.submit(prompt, marks=marks, max_tokens=20)
        for _ in range(8):
            harness.turn()
            compared += check_bytes(harness)
    harness.drain()
    harness.assert_cold()
    assert compared > 100


@catches("image-of-the-neighbour", "a-restore-consumes", "demoted-though-it-lies-below")
def test_v71_ten_prompts_come_back_from_host_memory_each_with_its_own_answer() -> None:
    harness = Tiered(num_host_slots=1, num_cells=300, window_pages=2)
    prompts = [words(200 + 64 * (who % 3), who) for who in range(10)]
    for prompt in prompts:
        harness.ask(prompt, marks=Marks(opener=len(prompt)))
    harness.ask(words(100, 50), marks=Marks(opener=100))
    rng = random.Random(71)
    for _ in range(2):
        order = rng.sample(prompts, 10)
        for prompt in order:
            finish = harness.ask(prompt, marks=Marks(opener=len(prompt)), max_tokens=20)
            assert finish.reuse.tier is Tier.KV_RAM
            assert finish.cached_tokens == promised(len(prompt))
        harness.ask(words(100, 50), marks=Marks(opener=100))
    counters = harness.world.counters
    assert counters.restored_from(Tier.KV_RAM) >= 20
    assert sum(counters.demoted.values()) <= 11, "what lies below already is not copied again"


@catches("a-placed-state-is-findable", "image-after-its-lane", "freed-page-reused")
def test_v73_what_went_down_is_what_was_written_whatever_ran_beside_it() -> None:
    rng = random.Random(73)
    harness = Tiered(num_lanes=3, num_host_slots=2, num_pages=45, window_pages=2, max_context=1024)
    compared = 0
    for _ in range(40):
        prompt = words(rng.randint(70, 700), rng.randrange(12))
        harness.submit(
            prompt,
            marks=Marks(opener=len(prompt)),
            max_tokens=rng.choice((2, 30)),
            cls=rng.choice((Class.AGENT, Class.INTERACTIVE)),
        )
        for _ in range(6):
            harness.turn()
        compared += check_bytes(harness)
    harness.drain()
    harness.assert_cold()
    counters = harness.world.counters
    assert compared > 200
    assert min(counters.evictions, counters.resumed, counters.restored_from(Tier.KV_RAM)) > 0


@catches("what-is-held-leaves")
def test_v74_what_is_being_restored_is_damaged_by_nothing_that_comes_down() -> None:
    harness = Tiered(num_host_slots=1, num_cells=12, num_lanes=2, num_pages=18, max_context=1024)
    kept, other = words(550, 1), words(210, 2)
    harness.ask(kept, marks=Marks(opener=550))
    harness.ask(other, marks=Marks(opener=210))
    assert harness.in_ram(kept, 512) is not None
    harness.window(4)
    restoring = harness.submit(kept, marks=Marks(opener=550))
    harness.until_phase(Phase.RESTORING, restoring)
    fresh = harness.submit(words(450, 3), marks=Marks(opener=450), max_tokens=1)
    harness.until(lambda: fresh in harness.finishes)
    harness.drain()
    harness.assert_cold()
    assert harness.finishes[restoring].cached_tokens == 512
    assert harness.world.counters.not_demoted[NotDemoted.NO_ROOM] > 0, "the other one was dropped"
    harness.assert_leak_free()


@catches("a-page-more-is-asked-for-below")
def test_v77_what_goes_down_is_asked_for_where_it_lies() -> None:
    harness = Tiered(num_host_slots=1, num_cells=400)
    lengths = [64 * pages + more for pages in (2, 3, 6) for more in (-1, 0, 1, 40)]
    prompts = [words(length, length) for length in lengths]
    for prompt in prompts:
        harness.ask(prompt, marks=Marks(opener=len(prompt)))
    harness.ask(words(70, 7), marks=Marks(opener=70))
    for prompt in prompts:
        finish = harness.ask(prompt, marks=Marks(opener=len(prompt)))
        assert (finish.cached_tokens, finish.reuse.tier) == (promised(len(prompt)), Tier.KV_RAM)
    counters = harness.world.counters
    assert counters.raised_pages == sum(promised(length) for length in lengths) // 64


@catches("decoded-pages-are-shared", "a-live-sequence-is-found-by-its-tokens")
def test_v82_what_an_answer_wrote_is_nobody_elses_and_a_continuation_hits_the_opener() -> None:
    harness = Tiered(num_lanes=2, num_host_slots=4, num_pages=300)
    prompt = words(140, 1)
    agents = [
        harness.submit(prompt, marks=Marks(opener=140), max_tokens=400, cls=Class.AGENT)
        for _ in range(2)
    ]
    harness.until(lambda: all(len(harness.answers[one]) > 280 for one in agents))
    for who in range(2):
        harness.submit(words(80, 2 + who), max_tokens=60)
    harness.until(lambda: all(harness.phase(one) is Phase.EVICTED for one in agents))
    live = [one for one in harness.arena.index if one.is_live]
    assert [one.num_common for one in live] == [2, 2]
    places = [harness.arena.located(one.id).page_cells for one in live]
    assert len(set(places[0]) & set(places[1])) == 2, "they share their prompt and no more"
    said = harness.answers[agents[0]][:280]
    following = harness.submit([*prompt, *said, *words(40, 3)], marks=Marks(opener=460))
    harness.drain()
    harness.assert_cold()
    assert harness.finishes[following].cached_tokens == floor(140)
    harness.assert_leak_free()


@catches("window-ignored")
def test_v70_no_round_moves_more_than_a_window() -> None:
    harness = Tiered(num_lanes=2, num_host_slots=2, window_pages=2, num_pages=40, max_context=1536)
    rng = random.Random(70)
    for _ in range(25):
        prompt = words(rng.randint(70, 1000), rng.randrange(8))
        cls = rng.choice((Class.AGENT, Class.INTERACTIVE))
        harness.submit(prompt, marks=Marks(opener=len(prompt)), max_tokens=30, cls=cls)
        for _ in range(10):
            harness.turn()
    harness.drain()
    harness.assert_cold()
    moved = [moved_bytes(work, harness.arena.image_cells) for work in harness.device.rounds]
    image = harness.tiers.limits.image_bytes
    assert max(moved) <= harness.tiers.limits.window_bytes + image, "one image may exceed it"
    assert sum(size > 0 for size in moved) > 20


@catches("flush-forgets-kv-ram", "orphans-stay")
def test_v85_a_flush_empties_host_memory_also_under_traffic() -> None:
    harness = Tiered(num_host_slots=2, num_lanes=2, window_pages=1, num_cells=80)
    prompts = [words(300, who) for who in range(5)]
    for prompt in prompts:
        harness.ask(prompt, marks=Marks(opener=300))
    harness.settle()
    assert len(harness.arena.index) >= 3
    restoring = harness.submit(prompts[0], marks=Marks(opener=300), max_tokens=40)
    harness.until_phase(Phase.RESTORING, restoring)
    harness.flush()
    kept = [one.length for one in harness.arena.index]
    assert kept == [256], "what is being read can only go when it was"
    assert harness.ask(prompts[1], marks=Marks(opener=300)).cached_tokens == 0
    harness.drain()
    harness.assert_cold()
    harness.flush()
    harness.settle()
    assert harness.arena.used_bytes == 0
    assert not len(harness.world.index)
    for prompt in prompts:
        assert harness.ask(prompt, marks=Marks(opener=300), max_tokens=1).cached_tokens == 0
        harness.flush()
