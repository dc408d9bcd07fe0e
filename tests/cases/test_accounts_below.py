"""What is told and counted of reuse when state comes from below or a request had to give way."""

from functools import partial

from ignisd.engine.types import Phase, Tier
from ignisd.http.keys import owner_of
from ignisd.http.salts import chain_salt
from state.chain import chain_of
from state.retained import Kind
from state.retention import Marks
from state.reuse import MissReason
from state.spec import Class
from tests.cases.prompts import chat, floor, promised
from tests.cases.test_disk import KEPT, asked, filed, filing
from tests.engine.below import Tiered
from tests.engine.harness import words
from tests.planting import catches


def _gave_way(harness: Tiered, request_id: int) -> bool:
    return harness.phase(request_id) is not Phase.DECODING


@catches("reuse-told-of-every-admission")
def test_v101_a_request_that_gave_way_tells_what_it_claimed_first() -> None:
    for num_cells in (200, 3):
        harness = Tiered(num_lanes=1, num_cells=num_cells, num_pages=300, num_host_slots=6)
        base = words(300, 1)
        harness.ask(base, marks=Marks(opener=300))
        prompt = [*base, *words(250, 2)]
        agent = harness.submit(prompt, marks=Marks(opener=550), max_tokens=120, cls=Class.AGENT)
        for pause in range(3):
            harness.until_said(agent, 25 * (pause + 1))
            harness.submit(words(80, 5 + pause), max_tokens=3, reuse=False)
            harness.until(partial(_gave_way, harness, agent))
        harness.drain()
        harness.assert_cold()
        finish = harness.finishes[agent]
        assert (finish.evictions, finish.cached_tokens) == (3, promised(300))
        counters = harness.world.counters
        assert counters.resumed + counters.recomputed == 3
        assert (counters.recomputed > 0) is (num_cells == 3)
        assert (counters.lookups, counters.device_tokens) == (5, 256)


@catches("counted-when-a-restore-begins")
def test_v103_a_restore_is_counted_once_and_one_that_fails_not_at_all() -> None:
    harness = filing(num_lanes=1, single_flight_tokens=64)
    filed(harness, 1, 2)
    before = harness.world.counters
    harness.slow_files = True
    first = harness.submit(words(300, 1), marks=Marks(opener=300))
    waiting = [harness.submit(words(300, 1), marks=Marks(opener=300)) for _ in range(4)]
    for _ in range(50):
        harness.turn()
    assert harness.phase(first) is Phase.RESTORING
    assert harness.world.counters.lookups == before.lookups
    harness.slow_files = False
    harness.drain()
    counters = harness.world.counters
    assert counters.lookups - before.lookups == 5
    assert counters.queried_tokens - before.queried_tokens == 5 * 300
    cached = sum(harness.finishes[key].cached_tokens for key in (first, *waiting))
    counted = counters.device_tokens + counters.ram_tokens + counters.disk_tokens
    assert counted - before.device_tokens - before.ram_tokens - before.disk_tokens == cached
    harness.disk.always = {"read": 5}
    before = counters
    assert asked(harness, 2) == 0
    after = harness.world.counters
    assert sum(after.hits.values()) == sum(before.hits.values())
    assert after.misses[MissReason.CORRUPT] - before.misses[MissReason.CORRUPT] == 1
    assert (after.lookups - before.lookups, after.disk_tokens) == (1, before.disk_tokens)


@catches("reuse-told-of-every-admission")
def test_v104_what_a_request_left_itself_is_no_hit() -> None:
    for num_cells in (200, 3):
        harness = Tiered(num_lanes=1, num_cells=num_cells, num_pages=300)
        for who in range(6):
            prompt = words(200, 10 + who)
            agent = harness.submit(prompt, marks=Marks(opener=200), max_tokens=40, cls=Class.AGENT)
            harness.until_said(agent, 10)
            harness.submit(words(80, 50 + who), max_tokens=3)
            harness.drain()
        harness.assert_cold()
        counters = harness.world.counters
        assert counters.resumed + counters.recomputed == 6
        assert not any(counters.hits.values())
        assert counters.device_tokens + counters.ram_tokens + counters.disk_tokens == 0
        assert all(finish.cached_tokens == 0 for finish in harness.finishes.values())


@catches("tier-of-a-restore-unsaid")
def test_v106_a_restored_request_is_told_the_same_from_its_start_to_its_end() -> None:
    for harness, tier in ((Tiered(num_host_slots=1), Tier.KV_RAM), (filing(), Tier.KV_DISK)):
        for who in (1, 2):
            asked(harness, who)
        harness.settle()
        tokens = [*words(300, 1)[:290], *words(200, 7)]
        finish = harness.ask(tokens, marks=Marks(opener=490), max_tokens=20)
        assert harness.started[finish.request_id].reuse == finish.reuse
        assert (finish.cached_tokens, finish.reuse.tier) == (KEPT, tier)
        assert harness.rows(finish.request_id) == 490 - KEPT


@catches("restored-tokens-uncounted")
def test_v107_the_counters_of_all_tiers_are_the_sums_of_the_answers() -> None:
    harness = filing(num_host_slots=3, num_cells=60, low_cells=25, num_lanes=3, num_pages=300)
    for turn in range(40):
        prompt = words(200 + 100 * (turn % 5), turn % 4)
        harness.submit(prompt, marks=Marks(opener=len(prompt)), reuse=turn % 11 != 7)
        for _ in range(turn % 9):
            harness.turn()
    harness.drain()
    harness.assert_cold()
    counters, finishes = harness.world.counters, harness.finishes.values()
    told = {tier: sum(f.cached_tokens for f in finishes if f.reuse.tier is tier) for tier in Tier}
    assert told == {
        Tier.DEVICE: counters.device_tokens,
        Tier.KV_RAM: counters.ram_tokens,
        Tier.KV_DISK: counters.disk_tokens,
    }
    assert min(told.values()) > 0
    assert sum(counters.hits.values()) == sum(f.cached_tokens > 0 for f in finishes)
    assert sum(counters.restored.values()) == sum(
        f.reuse.tier in (Tier.KV_RAM, Tier.KV_DISK) for f in finishes
    )
    assert counters.computed_tokens + sum(told.values()) == counters.queried_tokens


@catches("floor-unsaid", "floor-ignored")
def test_v109_what_lies_below_and_is_too_little_is_the_reason() -> None:
    harness = Tiered(num_host_slots=1, ram_floor_tokens=512)
    for who in (1, 2):
        asked(harness, who)
    finish = harness.ask(words(300, 1), marks=Marks(opener=300))
    assert finish.reuse.miss is not None
    assert (finish.cached_tokens, finish.reuse.miss.reason) == (0, MissReason.BELOW_FLOOR)
    harness = Tiered(num_host_slots=2, ram_floor_tokens=128)
    prompt = words(700, 1)
    harness.ask(prompt[:260], marks=Marks(opener=260))
    harness.ask(prompt, marks=Marks(opener=700))
    harness.ask(words(300, 9), marks=Marks(opener=300))
    lengths = {at: harness.in_ram(prompt, at) is not None for at in (256, 640)}
    assert sum(lengths.values()) == 1
    again = harness.ask(prompt, marks=Marks(opener=700))
    assert again.cached_tokens in (256, 640)


@catches("floor-ignored", "ties-go-down")
def test_v109_ties_go_up_and_below_the_floor_the_tier_above_serves() -> None:
    prompt = words(900, 1)
    for length, tier in ((300, Tier.DEVICE), (400, Tier.KV_RAM)):
        harness = Tiered(num_host_slots=2, ram_floor_tokens=128, num_cells=300)
        harness.ask(prompt[:length], marks=Marks(opener=length))
        for who in (5, 6):
            harness.ask(words(100, who), marks=Marks(opener=100))
        assert harness.in_ram(prompt, promised(length)) is not None
        harness.ask(prompt[:200], marks=Marks(opener=200))
        assert harness.on_device(prompt, 192)
        finish = harness.ask(prompt[:length], marks=Marks(opener=length))
        assert finish.reuse.tier is tier
        assert finish.cached_tokens == (192 if tier is Tier.DEVICE else promised(length))
        if tier is Tier.DEVICE:
            assert finish.reuse.shortfall is MissReason.BELOW_FLOOR
        else:
            again = harness.ask(prompt[:length], marks=Marks(opener=length))
            assert again.reuse.tier is Tier.DEVICE, "it lies on both now"


@catches("every-miss-is-no-match", "floor-unsaid")
def test_v109_what_left_every_tier_was_evicted_and_what_found_no_slot_says_so() -> None:
    gone = Tiered(num_host_slots=1, num_cells=3)
    for who in (1, 2):
        asked(gone, who)
    told = gone.ask(words(300, 1), marks=Marks(opener=300)).reuse
    assert told.miss is not None
    assert (told.miss.reason, told.cached_tokens) == (MissReason.EVICTED, 0)
    full = Tiered(num_host_slots=0)
    asked(full, 1)
    told = full.ask(words(300, 1), marks=Marks(opener=300)).reuse
    assert told.miss is not None
    assert told.miss.reason is MissReason.NO_SLOT
    floored = Tiered(num_host_slots=1, ram_floor_tokens=512)
    for who in (1, 2):
        asked(floored, who)
    told = floored.ask([*words(300, 1)[:270], *words(90, 7)], marks=Marks(opener=360)).reuse
    assert told.miss is not None
    assert told.miss.reason is MissReason.BELOW_FLOOR


@catches("parts-from-the-device-alone")
def test_v109_a_restored_prompt_parts_nowhere_before_what_was_restored() -> None:
    harness = Tiered(num_host_slots=1)
    for who in (1, 2):
        asked(harness, who)
    told = harness.ask([*words(300, 1)[:280], *words(90, 7)], marks=Marks(opener=370)).reuse
    assert told.tier is Tier.KV_RAM
    assert told.diverged_at is None or told.diverged_at >= told.cached_tokens
    system = words(200, 50)
    reports = []
    for turn in range(8):
        prompt, marks = chat(system, words(60, 60 + turn))
        reports.append(harness.ask(prompt, marks=marks).reuse.volatile_at)
        asked(harness, 3 + turn)
    assert reports == [None] * 8, "a system block that comes back from below is no new one"


@catches("the-salt-is-left-out", "salts-share-cells")
def test_v100_salts_are_kept_apart_in_every_tier() -> None:
    tokens = words(300, 1)
    for harness in (Tiered(num_host_slots=1), filing()):
        for salt in (b"", b"tenant"):
            harness.ask(chain_of(tokens, salt), marks=Marks(opener=300))
        asked(harness, 9)
        harness.settle()
        stranger = harness.ask(chain_of(tokens, b"other"), marks=Marks(opener=300))
        assert stranger.cached_tokens == 0
        for salt in (b"tenant", b""):
            finish = harness.ask(chain_of(tokens, salt), marks=Marks(opener=300))
            assert finish.cached_tokens == KEPT
        harness.assert_leak_free()


@catches("salts-are-not-tagged")
def test_v100_no_salt_of_a_client_is_the_scope_of_a_key() -> None:
    key = b"secret"
    owner = owner_of(key).decode("latin-1")
    salts = [
        chain_salt(None, None),
        chain_salt("x", None),
        chain_salt(None, b"x"),
        chain_salt("x", b"x"),
        chain_salt(None, key),
        chain_salt(owner, None),
        chain_salt("", None),
        chain_salt("", key),
    ]
    assert len(set(salts)) == len(salts)
    digests = {chain_of(words(64, 1), salt).digests[-1] for salt in salts}
    assert len(digests) == len(salts)


@catches("everybody-restores")
def test_l20_who_waits_for_the_same_state_below_waits_for_one_restore() -> None:
    harness = Tiered(num_lanes=4, num_pages=400, max_context=8192, num_host_slots=8, num_cells=300)
    history = words(2000, 1)
    harness.ask(history, marks=Marks(opener=2000))
    for who in range(60, 68):
        asked(harness, who)
    assert harness.in_ram(history, floor(2000)) is not None
    harness.window(4)
    before = harness.world.counters.raised_pages
    tails = [words(100, 20 + who) for who in range(4)]
    ids = [harness.submit([*history, *tail], marks=Marks(opener=2100)) for tail in tails]
    harness.drain()
    harness.assert_cold(*ids)
    assert harness.world.counters.raised_pages - before == floor(2000) // 64
    assert harness.rows(*ids) <= 4 * (100 + 2000 - floor(2000))
    assert harness.world.counters.hits[Kind.CHECKPOINT] == 4
