"""Retention intervals: what is promised is kept, of every group, and what that costs is bounded."""

import random

from ignisd.engine.control import flushed
from ignisd.engine.types import Tier
from state.groups import GroupName
from state.retained import Kind
from state.retention import Cut, Marks, RetentionPolicy
from tests.cases.prompts import chat, floor
from tests.engine.below import Tiered
from tests.engine.harness import Harness, words
from tests.planting import catches
from tests.state.fake_hybrid import DRAFTER, EVERY, LINEAR, MODEL, WINDOW, FakeHybrid

INTERVALS = (0, 64, 192, 256, 1024)
"""Off, the page, one off the width of a chunk, that width (dense), and several chunks."""


@catches("a-chunk-yields-one-periodic-state", "no-periodic-cut")
def test_every_promised_point_is_emitted_whatever_the_chunk_and_the_load() -> None:
    emitted = 0
    for seed, (width, interval) in enumerate(
        (width, interval) for width in (64, 128, 256, 1024) for interval in (64, 128, 320, 1024)
    ):
        rng = random.Random(seed)
        harness = Harness(
            chunk_tokens=width,
            interval_tokens=interval,
            num_lanes=rng.randint(1, 3),
            max_captures_per_chunk=rng.randint(1, 3),
            decode_share=rng.choice((0, 25)),
            num_host_slots=300,
            num_pages=600,
        )
        prompts = [words(rng.randint(65, 2200), 10 * seed)]
        for who in range(1, 5):
            known = rng.choice(prompts)
            kept = known[: rng.randint(0, len(known))]
            prompts.append([*kept, *words(rng.randint(1, 900), 10 * seed + who)])
        for prompt in prompts:
            marks = Marks(opener=len(prompt)) if rng.random() < 0.7 else Marks()
            harness.submit(prompt, marks=marks, max_tokens=rng.randint(0, 6))
            for _ in range(rng.randint(0, 4)):
                harness.turn()
        harness.drain()
        harness.assert_cold()
        for request in harness.requests.values():
            for point in range(interval, request.prompt_tokens, interval):
                held = harness.world.index.find(request.chain, point)
                assert held is not None, f"{interval}: {point} of {request.prompt_tokens}"
                emitted += held.kind is Kind.PERIODIC
    assert emitted > 200


@catches("no-periodic-cut", "the-grid-of-writers-is-a-page-off")
def test_a_branch_at_any_depth_computes_at_most_an_interval_and_what_is_new() -> None:
    for width, interval in ((64, 256), (256, 192), (1024, 512)):
        harness = Harness(
            chunk_tokens=width, interval_tokens=interval, num_host_slots=400, num_pages=1200
        )
        root = words(2600, width)
        harness.ask(root, marks=Marks(opener=2600))
        for depth in range(40, 2600, 331):
            branch = [*root[:depth], *words(90, depth)]
            finish = harness.ask(branch, marks=Marks(opener=len(branch)))
            assert harness.rows(finish.request_id) <= interval + 63 + 90
            assert finish.cached_tokens >= depth // interval * interval


@catches("claim-consumes", "no-opener-cut", "hits-are-thrown-away")
def test_miss_miss_hit_never_appears() -> None:
    for interval in INTERVALS:
        for pages in (2, 5):
            for length in (64 * pages - 1, 64 * pages, 64 * pages + 1):
                for marks in (Marks(opener=length), Marks(turn_open=length, opener=length)):
                    harness = Harness(interval_tokens=interval, num_host_slots=16)
                    prompt = words(length, length + interval)
                    hits = [harness.ask(prompt, marks=marks).cached_tokens for _ in range(4)]
                    assert hits[0] == 0 < hits[1], f"{interval}, {length}: {hits}"
                    assert hits[1:] == [floor(length - 1)] * 3, f"{interval}, {length}: {hits}"


@catches("the-grid-of-writers-is-a-page-off")
def test_v34_the_point_that_is_kept_is_one_that_a_lookup_asks_for() -> None:
    for interval in (64, 128, 192):
        prompt = words(640, interval)
        for shared in range(interval, 570, 41):
            harness = Harness(interval_tokens=interval, num_host_slots=16)
            harness.ask(prompt, marks=Marks(opener=640))
            sibling = [*prompt[:shared], *words(80, shared)]
            finish = harness.ask(sibling, marks=Marks(opener=len(sibling)))
            assert finish.cached_tokens == shared // interval * interval > 0
            assert finish.reuse.kind is Kind.PERIODIC


@catches("image-of-the-neighbour", "no-periodic-cut")
def test_answers_are_exact_at_every_interval_from_every_tier() -> None:
    for interval in (0, 128, 256):
        harness = Tiered(
            num_host_slots=6,
            interval_tokens=interval,
            num_cells=60,
            disk_bytes=1 << 22,
            low_cells=20,
            num_pages=300,
        )
        prompts = [chat(words(300, who), words(330 + 64 * who, 9 + who)) for who in range(5)]
        seen = set()
        for turn in range(24):
            harness.now_ms += 10.0
            # A retry while it is on the device, and a return when others have pushed it down.
            prompt, marks = prompts[turn // 2 * 3 % 5]
            finish = harness.ask([*prompt, *words(turn % 3, turn)], marks=marks)
            seen.add(finish.reuse.tier)
            if turn == 14:
                for tier in (Tier.DEVICE, Tier.KV_RAM):
                    harness.world = flushed(harness.world, tier)
        assert {Tier.DEVICE, Tier.KV_RAM, Tier.KV_DISK} <= seen, f"{interval}: {seen}"
        captured = harness.world.counters.captured[Kind.PERIODIC]
        assert (captured > 0) == (interval > 0)
        harness.assert_cold()


@catches("the-first-group-decides", "one-group-holds-nobody-back")
def test_v38_four_groups_hit_where_the_oracle_says() -> None:
    deep = 0
    for seed in range(60):
        rng = random.Random(seed)
        fake = FakeHybrid()
        policy = RetentionPolicy(
            by_group=tuple(
                (group.name, 64 * rng.choice((0, 1, 2, 3, 4, 6))) for group in MODEL[1:]
            ),
            inert=frozenset({GroupName.DRAFTER}),
        )
        root = [rng.randrange(900) for _ in range(rng.randint(200, 1500))]
        prompts = [root]
        for _ in range(5):
            known = rng.choice(prompts)
            keep = rng.randint(0, len(known))
            prompts.append(known[:keep] + [rng.randrange(900) for _ in range(rng.randint(1, 400))])
        for prompt in prompts:
            opener = rng.choice((None, len(prompt)))
            fake.read(prompt, policy, Marks(opener=opener))
            # States of which some group has been given up, as its own interval would.
            place = rng.randrange(64, 64 + len(prompt)) // 64 * 64
            if place < len(prompt):
                lacks = rng.choice((GroupName.WINDOW, GroupName.LINEAR, GroupName.DRAFTER))
                fake.keep(prompt, Cut(place, Kind.PERIODIC, EVERY - {lacks}))
        for prompt in prompts:
            for tokens in (prompt, prompt[: rng.randint(1, len(prompt))], [*prompt, 1, 2, 3]):
                assert fake.hit(tokens) == fake.oracle(tokens)
                deep += fake.hit(tokens) > 0
    assert deep > 200


@catches("one-interval-for-all-groups")
def test_v43_the_interval_of_an_inert_group_changes_its_own_occupancy_alone() -> None:
    prompt = list(range(4000))
    seen = set()
    occupied = []
    for own in (0, 512, 1024):
        fake = FakeHybrid()
        policy = RetentionPolicy(
            by_group=((WINDOW.name, 512), (LINEAR.name, 512), (DRAFTER.name, own)),
            inert=frozenset({GroupName.DRAFTER}),
        )
        fake.read(prompt, policy, Marks(opener=4000))
        hits = tuple(fake.hit([*prompt[:keep], 9999]) for keep in range(64, 4000, 70))
        held = {
            group.name: sum(len(has.get(group.name, ())) for has in fake.items.values())
            for group in MODEL
        }
        occupied.append(held.pop(GroupName.DRAFTER) // DRAFTER.items_per_point)
        seen.add((hits, tuple(held.items())))
        assert max(hits) > 0
    # The end of the prompt, and seven periodic points or three of them.
    assert occupied == [1, 8, 4]
    assert len(seen) == 1
