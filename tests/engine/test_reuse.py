"""What a request resumes from, seen through the scheduler and a device that checks every state."""

from ignisd.engine.stats import DEGRADED_SKIPS
from ignisd.engine.types import FinishReason, SamplingParams
from state.chain import chain_of
from state.retained import Kind
from state.retention import Marks
from state.reuse import MissReason
from state.spec import Class
from tests.engine.harness import Harness, words
from tests.fake_device import cold_answer


def chat(system: list[int], *turns: list[int]) -> tuple[list[int], Marks]:
    """A prompt whose opener is its end."""
    tokens = system + [word for turn in turns for word in turn]
    return tokens, Marks(len(system), len(tokens), len(tokens))


def test_repeats_hit_at_every_length_around_the_page() -> None:
    for length in (65, 66, 127, 128, 129, 200, 255, 256, 257, 320):
        harness = Harness()
        prompt = words(length)
        marks = Marks(opener=length)
        first, second, third = (harness.ask(prompt, marks=marks) for _ in range(3))
        assert first.cached_tokens == 0, length
        assert length - 64 <= second.cached_tokens < length, length
        assert third.cached_tokens == second.cached_tokens, length
        longer = harness.ask([*prompt, 5], marks=Marks(opener=length + 1))
        assert longer.cached_tokens >= second.cached_tokens, length
        shorter = harness.ask(prompt[:-1], marks=Marks(opener=length - 1))
        assert shorter.cached_tokens <= length - 2, length
        harness.assert_leak_free()


def test_short_prompts_miss_and_say_why() -> None:
    harness = Harness()
    for length in (1, 2, 63, 64):
        for _ in range(2):
            finish = harness.ask(words(length), marks=Marks(opener=length))
            assert finish.cached_tokens == 0
            assert finish.reuse.miss is not None
            assert finish.reuse.miss.reason is MissReason.TOO_SHORT
    assert not len(harness.world.index)


def test_plain_prompt_is_kept_before_its_seam() -> None:
    harness = Harness()
    prompt = words(132)
    harness.ask(prompt)
    assert harness.ask([*prompt[:100], *words(48, 9)]).cached_tokens == 64
    assert harness.ask(prompt).cached_tokens == 64


def test_turns_and_siblings_resume_where_promised() -> None:
    harness = Harness()
    system = words(300, 1)
    prompt, marks = chat(system, words(90, 2))
    harness.ask(prompt, marks=marks)
    answer = cold_answer(prompt, SamplingParams(), 3, frozenset())
    follow_up, marks = chat(system, prompt[300:], answer, words(70, 3))
    turn = harness.ask(follow_up, marks=marks)
    assert turn.cached_tokens == 390 // 64 * 64
    assert turn.reuse.kind in (Kind.CHECKPOINT, Kind.TURN_OPEN)
    sibling, marks = chat(system, words(90, 4))
    branch = harness.ask(sibling, marks=marks)
    assert branch.cached_tokens == 300 // 64 * 64
    assert branch.reuse.kind is Kind.PREFIX
    harness.assert_leak_free()


def test_a_claim_consumes_nothing() -> None:
    harness = Harness(num_lanes=3)
    prompt, marks = chat(words(200, 1), words(30, 2))
    harness.ask(prompt, marks=marks)
    before = {held.id: harness.device.slots[held.slot] for held in harness.world.index}
    forks = [harness.submit([*prompt, fork], marks=Marks(opener=230)) for fork in range(3)]
    harness.drain()
    harness.assert_cold()
    assert [harness.finishes[fork].cached_tokens for fork in forks] == [192, 192, 192]
    for held in harness.world.index:
        if held.id in before:
            assert harness.device.slots[held.slot] == before[held.id]
    assert before.keys() <= {held.id for held in harness.world.index}


def test_reuse_off_neither_uses_nor_leaves() -> None:
    harness = Harness()
    prompt, marks = chat(words(200, 1), words(30, 2))
    off = harness.ask(prompt, marks=marks, reuse=False)
    assert not len(harness.world.index)
    harness.ask(prompt, marks=marks)
    kept = len(harness.world.index)
    again = harness.ask([*prompt, *words(100, 5)], marks=Marks(opener=330), reuse=False)
    for finish in (off, again):
        assert finish.cached_tokens == 0
        assert finish.reuse.miss is not None
        assert finish.reuse.miss.reason is MissReason.REUSE_OFF
    assert len(harness.world.index) == kept


def test_server_wide_switch_keeps_nothing() -> None:
    harness = Harness(reuse=False)
    prompt, marks = chat(words(200, 1), words(30, 2))
    assert [harness.ask(prompt, marks=marks).cached_tokens for _ in range(2)] == [0, 0]
    assert not len(harness.world.index)


def test_digests_that_collide_give_right_answers() -> None:
    def same(before: bytes, page: bytes) -> bytes:
        return bytes(16)

    harness = Harness()
    first = chain_of(words(200, 1), link=same)
    other = chain_of(words(200, 2), link=same)
    marks = Marks(opener=200)
    assert harness.ask(first, marks=marks).cached_tokens == 0
    assert harness.ask(other, marks=marks).cached_tokens == 0
    assert harness.ask(first, marks=marks).cached_tokens == 192


def test_what_was_not_written_is_not_published() -> None:
    harness = Harness()
    prompt, marks = chat(words(200, 1), words(30, 2))
    harness.device.loses = lambda position: True
    harness.ask(prompt, marks=marks)
    assert not len(harness.world.index)
    assert sum(harness.world.counters.skipped.values()) == 1
    harness.device.loses = lambda position: False
    assert harness.ask(prompt, marks=marks).cached_tokens == 0
    assert harness.ask(prompt, marks=marks).cached_tokens == 192


def test_nothing_is_findable_before_its_round_is_committed() -> None:
    harness = Harness()
    prompt, marks = chat(words(200, 1), words(30, 2))
    harness.submit(prompt, marks=marks)
    work = harness.plan()
    assert work is not None
    assert work.prefill is not None
    assert [capture.position for capture in work.prefill.captures] == [192]
    assert not len(harness.world.index)
    harness.commit()
    assert [held.length for held in harness.world.index] == [192]


def test_identical_prompts_at_once_are_read_once() -> None:
    harness = Harness(num_lanes=4)
    system = words(1000, 1)
    ids = []
    for sibling in range(12):
        prompt, marks = chat(system, words(40, 2 + sibling))
        ids.append(harness.submit(prompt, marks=marks))
    harness.drain()
    harness.assert_cold()
    assert harness.rows(*ids) <= 1000 + 12 * (40 + 64)
    assert sum(harness.finishes[key].cached_tokens > 0 for key in ids) == 11


def test_a_follower_takes_over_when_the_leader_leaves() -> None:
    harness = Harness(num_lanes=4)
    prompt, marks = chat(words(3000, 1), words(40, 2))
    leader, *followers = [harness.submit(prompt, marks=marks) for _ in range(4)]
    for _ in range(2):
        harness.turn()
    assert len(harness.world.queue) == 3
    harness.cancel(leader)
    harness.drain()
    harness.assert_cold(*followers)
    assert harness.rows(*followers) <= 3040 + 2 * 100


def test_followers_of_a_leader_without_slots_do_not_wait_for_ever() -> None:
    harness = Harness(num_lanes=4, num_host_slots=0)
    prompt, marks = chat(words(1000, 1), words(40, 2))
    for _ in range(4):
        harness.submit(prompt, marks=marks)
    harness.drain()
    harness.assert_cold()
    assert not len(harness.world.index)


def test_cancelled_prefill_is_kept_and_resumed() -> None:
    harness = Harness(num_pages=400, max_context=12_000)
    prompt = words(9000, 1)
    marks = Marks(opener=9000)
    reached = 0
    for _ in range(5):
        victim = harness.submit(prompt, marks=marks)
        for _ in range(6):
            harness.turn()
        seq = harness.world.sequences[victim]
        assert seq.reuse.cached_tokens == reached
        reached = seq.position
        harness.cancel(victim)
    finish = harness.ask(prompt, marks=marks)
    assert finish.cached_tokens == reached > 5 * 1024
    assert finish.reuse.kind is Kind.INTERRUPTED
    assert harness.ask(prompt, marks=marks).cached_tokens == 9000 // 64 * 64
    harness.assert_leak_free()


def test_a_short_cancelled_prefill_leaves_nothing() -> None:
    harness = Harness()
    prompt = words(2000, 1)
    victim = harness.submit(prompt, marks=Marks(opener=2000))
    for _ in range(3):
        harness.turn()
    assert harness.world.sequences[victim].position == 768
    harness.cancel(victim)
    harness.drain()
    assert not len(harness.world.index)
    harness.assert_leak_free()


def test_cancelled_after_its_capture_keeps_its_checkpoint() -> None:
    for turns in (1, 2, 3, 5):
        harness = Harness()
        prompt = words(250, 1)
        victim = harness.submit(prompt, marks=Marks(opener=250), max_tokens=50)
        for _ in range(turns):
            harness.turn()
        harness.cancel(victim)
        harness.drain()
        assert harness.finishes[victim].reason is FinishReason.CANCELLED
        assert harness.ask(prompt, marks=Marks(opener=250)).cached_tokens == 192, turns


def test_a_waiting_request_is_looked_up_once_in_the_counters() -> None:
    harness = Harness(num_lanes=1)
    harness.submit(words(100, 1), max_tokens=200)
    queued = [harness.submit(words(100, 1)) for _ in range(10)]
    for _ in range(100):
        harness.turn()
    assert harness.world.counters.lookups == 1
    assert len(harness.world.queue) == 10
    harness.drain()
    assert harness.world.counters.lookups == 11
    assert harness.world.counters.queried_tokens == 1100
    assert all(harness.finishes[key].cached_tokens == 64 for key in queued)


def test_tokens_are_counted_by_source() -> None:
    harness = Harness()
    prompt = words(300, 1)
    for _ in range(3):
        harness.ask(prompt, marks=Marks(opener=300))
    counters = harness.world.counters
    assert counters.device_tokens == 2 * 256
    assert counters.computed_tokens == 3 * 300 - 2 * 256
    assert counters.hits[Kind.CHECKPOINT] == 2
    assert counters.generated_tokens == 9


def test_append_only_turns_always_resume_at_the_opener_before() -> None:
    for chunk_tokens in (64, 128, 256):
        for pages in (1, 3, 7, 20):
            harness = Harness(chunk_tokens=chunk_tokens)
            system, marks = words(20, 1), Marks()
            prompt = system + words(64 * pages - 20 + 5, 2)
            promised = 0
            for turn in range(3):
                marks = Marks(20, len(prompt), len(prompt))
                finish = harness.ask(prompt, marks=marks)
                assert finish.cached_tokens >= promised, (chunk_tokens, pages, turn)
                promised = len(prompt) // 64 * 64
                answer = harness.answers[len(harness.requests)]
                prompt = prompt + answer + words(30, 3 + turn)
            assert not sum(harness.world.counters.skipped.values())


def test_a_hot_prefix_survives_a_prompt_with_many_periodic_states() -> None:
    harness = Harness(num_host_slots=8, interval_tokens=64, num_pages=400)
    system = words(300, 1)
    for turn in range(6):
        harness.now_ms += 1.0
        prompt, marks = chat(system, words(40, 10 + turn))
        hot = harness.ask(prompt, marks=marks)
        assert hot.cached_tokens >= (256 if turn else 0), turn
        harness.ask(words(2600, 50 + turn))


def test_a_match_that_cannot_be_admitted_holds_nothing() -> None:
    harness = Harness(num_pages=33, num_lanes=2)
    prompt = words(500, 1)
    harness.ask(prompt, marks=Marks(opener=500))
    running = harness.submit(words(1300, 2), max_tokens=260)
    for _ in range(8):
        harness.turn()
    waiting = harness.submit([*prompt, *words(400, 3)], marks=Marks(opener=900))
    for _ in range(200):
        harness.turn()
    assert harness.world.queue == (waiting,)
    harness.drain()
    harness.assert_cold(running, waiting)
    assert harness.finishes[waiting].cached_tokens == 448
    harness.assert_leak_free()


def test_an_interrupted_state_at_an_opener_takes_the_higher_kind() -> None:
    harness = Harness()
    prompt = words(1300, 1)
    longer = [*prompt, *words(400, 2)]
    victim = harness.submit(longer, marks=Marks(opener=1700))
    while harness.rows(victim) < 1280:
        harness.turn()
    harness.cancel(victim)
    harness.drain()
    assert [held.kind for held in harness.world.index] == [Kind.INTERRUPTED]
    finish = harness.ask(prompt, marks=Marks(turn_open=1300, opener=1300))
    assert (finish.cached_tokens, finish.reuse.kind) == (1280, Kind.INTERRUPTED)
    (held,) = harness.world.index
    assert (held.kind, held.hits, held.superseded) == (Kind.TURN_OPEN, 1, False)
    harness.ask([*longer, 5], marks=Marks(1300, 1701, 1701))
    assert [one.kind for one in harness.world.index if one.length == 1280] == [Kind.PREFIX]


def test_live_prefixes_hold_at_most_half_of_the_slots() -> None:
    harness = Harness(num_host_slots=8, num_pages=400)
    systems = [words(200, 1 + who) for who in range(8)]

    def visit(who: int, turn: int) -> int:
        harness.now_ms += 1.0
        prompt, marks = chat(systems[who], words(20, 100 * turn + who))
        return harness.ask(prompt, marks=marks).cached_tokens

    for turn in range(3):
        for who in range(8):
            visit(who, turn)
    live = [held for held in harness.world.index if held.kind is Kind.PREFIX and held.hits]
    assert len(live) == 8
    talk = words(300, 50)
    for turn in range(4):
        harness.now_ms += 1.0
        talk = [*talk, *words(100, 60 + turn)]
        finish = harness.ask(talk, marks=Marks(opener=len(talk)))
        assert finish.cached_tokens == ((len(talk) - 101) // 64 * 64 if turn else 0)
    # The four that were used last are as safe as they ever were.
    for seed in range(20):
        harness.now_ms += 1.0
        harness.ask(words(150, 200 + seed), marks=Marks(opener=150))
    assert [visit(who, 9) > 0 for who in range(8)] == [False] * 4 + [True] * 4


def test_people_who_left_do_not_keep_agents_from_the_slots() -> None:
    harness = Harness(num_host_slots=4)
    for seed in range(4):
        harness.ask(words(150, seed), marks=Marks(opener=150))
    agent = words(200, 9)

    def visit() -> int:
        return harness.ask(agent, marks=Marks(opener=200), cls=Class.AGENT).cached_tokens

    assert [visit(), visit()] == [0, 0]
    harness.now_ms += 300_001.0
    assert [visit(), visit()] == [0, 192]


def test_three_skips_in_a_row_are_visible_until_something_is_kept() -> None:
    harness = Harness(num_host_slots=1)
    harness.ask(words(150, 1), marks=Marks(opener=150))
    for skipped in range(3):
        assert harness.world.skipped_in_row == skipped
        harness.ask(words(150, 2 + skipped), marks=Marks(opener=150), cls=Class.AGENT)
    assert harness.world.skipped_in_row >= DEGRADED_SKIPS
    harness.now_ms += 1.0
    harness.ask(words(150, 9), marks=Marks(opener=150))
    assert harness.world.skipped_in_row == 0


def test_a_junction_that_saves_little_takes_no_slot_from_others() -> None:
    for shared, kept in ((350, False), (600, True)):
        harness = Harness(num_host_slots=3)
        system = words(200, 1)
        for who in range(2):
            harness.now_ms += 1.0
            tail = [*words(shared, 2)[200:], *words(200, 3 + who)]
            prompt, marks = chat(system, tail)
            harness.ask(prompt, marks=marks)
            if not who:
                harness.ask(words(100, 9), marks=Marks(opener=100))
        kinds = [held.kind for held in harness.world.index]
        assert (Kind.JUNCTION in kinds) is kept, shared


def test_a_junction_learnt_in_flight_serves_everybody_behind_the_leader() -> None:
    harness = Harness(num_lanes=4, max_context=8192, num_pages=400)
    shared = words(2000, 1)
    prompts = [[*shared, *words(300, 2 + who)] for who in range(5)]
    ids = [harness.submit(prompt, marks=Marks(opener=2300)) for prompt in prompts]
    harness.drain()
    harness.assert_cold(*ids)
    assert [harness.finishes[key].cached_tokens for key in ids] == [0] + [1984] * 4
    assert harness.rows(*ids) == 5 * 2300 - 4 * 1984
    assert [held.kind for held in harness.world.index].count(Kind.JUNCTION) == 1
