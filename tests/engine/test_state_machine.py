"""The whole state engine against brute force: scheduler, ledgers, index, arena and files together.

Requests come, grow, fork, leave and are paused in any order, files are written and read at any
moment or fail; after every step all invariants hold, and what a prompt would resume from is what a
search over every token of everything retained finds. In the end every answer is the cold one.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ignisd.engine import scheduler
from ignisd.engine.admission import look_up
from ignisd.engine.restoring import look_below
from ignisd.engine.room import flush
from ignisd.engine.tiers import TierLimits, Tiers
from ignisd.engine.types import Phase, Request, SamplingParams, Tier
from state.chain import Chain, chain_of
from state.retention import Marks
from state.spec import PAGE_TOKENS, Class
from state.tiers.arena import Arena
from tests.engine.harness import FINGERPRINT, Harness, words
from tests.engine.sim_disk import SimulatedFiles
from tests.fake_device import CELL_BYTES, cold_answer

RAM_FLOOR, DISK_FLOOR = 64, 128
LONGEST = 700


def tokens_shared(one: Chain, other: Chain) -> int:
    """Leading tokens that two chains share, counted one by one; none across salts."""
    if one.salt != other.salt:
        return 0
    pairs = zip(one.tokens.tolist(), other.tokens.tolist(), strict=False)
    shared = 0
    for mine, theirs in pairs:
        if mine != theirs:
            break
        shared += 1
    return shared


class StateEngine(RuleBasedStateMachine):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        limits = TierLimits(
            image_bytes=CELL_BYTES,
            window_bytes=4 * CELL_BYTES,
            ram_floor_tokens=RAM_FLOOR,
            disk_floor_tokens=DISK_FLOOR,
            low_cells=12,
        )
        self.harness = Harness(
            num_pages=20,
            num_host_slots=3,
            num_lanes=2,
            max_context=900,
            step_tokens=64,
            single_flight_tokens=128,
            tiers=Tiers(limits, Arena.empty(24, 1, CELL_BYTES)),
        )
        tiers = self.harness.world.tiers
        assert tiers is not None
        self.files = SimulatedFiles(random.Random(1), self.harness.device, 0.0)
        shelf = self.files.shelf(FINGERPRINT, 1)
        self.harness.world = replace(self.harness.world, tiers=replace(tiers, shelf=shelf))
        self.prompts: list[list[int]] = []
        self.left: set[int] = set()

    def teardown(self) -> None:
        """Everything ends, answers are the cold ones, and nothing stays behind."""
        self.files.disk.fails = 0.0
        try:
            for request_id in list(self.harness.world.sequences):
                self.harness.world = scheduler.hold(self.harness.world, request_id, held=False)
            for _ in range(1500):
                if not (self._settle() or self.harness.turn() or self.harness.world.sequences):
                    break
            open_ids = list(self.harness.world.sequences)
            assert not open_ids, f"requests {open_ids} never ended"
            stayed = set(self.harness.requests) - self.left
            if stayed:
                self.harness.assert_cold(*stayed)
            self.harness.world = flush(self.harness.world)
            for _ in range(8):
                self._settle()
                self.harness.turn(20_000.0)
            self.harness.assert_leak_free()
            assert not [path for path in self.files.root.rglob("*.state*") if path.is_file()]
        finally:
            self.files.close()

    def _settle(self) -> bool:
        """Let the threads of files do everything that they were told."""
        self._hand_over()
        done = False
        while self.files.busy:
            for command in self.files.turn():
                done = True
                self.harness.world = command(self.harness.world, self.harness.now_ms)
        return done

    def _hand_over(self) -> None:
        self.harness.world, orders = scheduler.take_orders(self.harness.world)
        self.files.give(orders)

    @rule(
        seed=st.integers(0, 3),
        length=st.integers(1, LONGEST),
        max_tokens=st.integers(0, 40),
        agent=st.booleans(),
    )
    def new_conversation(self, seed: int, length: int, max_tokens: int, agent: bool) -> None:
        """A prompt of which others may share the beginning."""
        self._submit(words(LONGEST, seed)[:length], max_tokens, agent)

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), more=st.integers(1, 150), max_tokens=st.integers(1, 80))
    def next_turn(self, data: st.DataObject, more: int, max_tokens: int) -> None:
        """A conversation goes on, from its end or from where somebody edits it."""
        known = data.draw(st.sampled_from(self.prompts[-8:]))
        keep = data.draw(st.sampled_from((len(known), max(len(known) // 2, 1))))
        grown = known[:keep] + words(more, 7)
        self._submit(grown[:LONGEST], max_tokens, data.draw(st.booleans()))

    def _submit(self, tokens: list[int], max_tokens: int, agent: bool) -> None:
        self.prompts.append(tokens)
        self.harness.submit(
            tokens,
            marks=Marks(min(64, len(tokens)), len(tokens), len(tokens)),
            max_tokens=max_tokens,
            cls=Class.AGENT if agent else Class.INTERACTIVE,
        )

    @rule(count=st.integers(1, 12), took_ms=st.sampled_from((0.0, 1.0, 40.0)))
    def turn(self, count: int, took_ms: float) -> None:
        """Some rounds pass."""
        for _ in range(count):
            self.harness.turn(took_ms)
            self._hand_over()

    @rule(fails=st.sampled_from((0.0, 0.0, 0.2)))
    def files_move(self, fails: float) -> None:
        """The threads of files do some of what they were told, on a disk of some temper."""
        self.files.disk.fails = fails
        for command in self.files.turn():
            self.harness.world = command(self.harness.world, self.harness.now_ms)

    @precondition(lambda self: self.harness.world.sequences)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A client leaves, in whatever phase its request is."""
        request_id = data.draw(st.sampled_from(sorted(self.harness.world.sequences)))
        self.left.add(request_id)
        self.harness.cancel(request_id)

    @precondition(lambda self: self.harness.world.sequences)
    @rule(data=st.data(), held=st.booleans())
    def pause(self, data: st.DataObject, held: bool) -> None:
        """A reader falls behind, or catches up."""
        request_id = data.draw(st.sampled_from(sorted(self.harness.world.sequences)))
        self.harness.world = scheduler.hold(self.harness.world, request_id, held)

    @rule()
    def flush_all(self) -> None:
        """Everything retained is given up."""
        self.harness.world = flush(self.harness.world)

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), more=st.integers(1, 80))
    def what_would_match(self, data: st.DataObject, more: int) -> None:
        """What a prompt would resume from is what brute force finds."""
        known = data.draw(st.sampled_from(self.prompts))
        tokens = known + words(more, data.draw(st.integers(0, 9)))
        request = self._probe(tokens)
        found = look_up(self.harness.world, request)
        _, below = look_below(self.harness.world, request, found)
        device, ram, disk = (max(lengths, default=0) for lengths in self._lengths(request.chain))
        assert found.length == device
        tier, length = None, device
        for place, held, floor in ((Tier.KV_RAM, ram, RAM_FLOOR), (Tier.KV_DISK, disk, DISK_FLOOR)):
            if held > length and held >= length + floor:
                tier, length = place, held
        assert (below and below.tier, below.stored.length if below else device) == (tier, length)

    def _probe(self, tokens: list[int]) -> Request:
        return Request(
            id=10**6,
            name="probe",
            chain=chain_of(tokens),
            marks=Marks(),
            sampling=SamplingParams(),
            max_tokens=1,
        )

    def _lengths(self, chain: Chain) -> Iterator[list[int]]:
        """Per tier, the lengths of every state whose tokens are a strict prefix of a prompt's.

        What was given up while a file of it is written lies in the arena until then, found by none.
        """
        tiers = self.harness.world.tiers
        assert tiers is not None
        assert tiers.shelf is not None
        in_arena = [one for one in tiers.arena.index if one.id not in tiers.orphans]
        for tier in (self.harness.world.index, in_arena, tiers.shelf.index):
            yield [
                one.length
                for one in tier
                if getattr(one, "kind", None) is not None
                and one.length < chain.num_tokens
                and one.length % PAGE_TOKENS == 0
                and tokens_shared(one.chain, chain) >= one.length
            ]

    @invariant()
    def told_tokens_are_cold(self) -> None:
        """What was delivered so far begins the cold answer."""
        for request_id in self.harness.world.sequences:
            request = self.harness.requests[request_id]
            told = self.harness.answers[request_id]
            cold = cold_answer(
                request.chain.tokens.tolist(), request.sampling, len(told), request.stop_ids
            )
            assert told == cold, f"request {request_id} was told other tokens than cold"

    @invariant()
    def phases_hold_what_they_may(self) -> None:
        """Who waits holds nothing on the device."""
        for seq in self.harness.world.sequences.values():
            waits = seq.phase in (Phase.QUEUED, Phase.EVICTED)
            assert not waits or (seq.lane is None and not seq.table), f"{seq.request.id}"


TestStateEngine = StateEngine.TestCase
TestStateEngine.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
