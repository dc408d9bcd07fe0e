"""Random traffic through the scheduler and the fake device, with every promise checked.

One seed decides everything: sizes, conversations, forks, retries, cancellations, pauses and the
clock. A violated promise raises; a run that ends returns what it saw, so that a test can prove that
the interesting things did happen.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ignisd.engine import scheduler
from ignisd.engine.check import check_planned, check_world
from ignisd.engine.files import Command
from ignisd.engine.room import flush, gainable
from ignisd.engine.types import (
    Event,
    Finish,
    Finished,
    FinishReason,
    Phase,
    Request,
    Round,
    Started,
    Token,
)
from ignisd.engine.world import World, new_world
from state.chain import chain_of, link_page
from state.retention import RetentionPolicy
from state.spec import PAGE_TOKENS, Class, Fingerprint
from tests.engine.sim_disk import random_files, random_tiers
from tests.engine.sim_pins import Pins
from tests.engine.traffic import Traffic, random_limits, sampling_of
from tests.fake_device import FakeDevice, cold_answer

STOP_IDS = frozenset({3, 77, 200})
FINGERPRINT = Fingerprint.of(model="fake")


def _colliding(before: bytes, page: bytes) -> bytes:
    """A digest that many pages share, so that only comparing tokens tells them apart."""
    return bytes(15) + bytes([sum(page[::4]) % 2])


@dataclass
class Client:
    """What one request was told so far."""

    request: Request
    cold: list[int]
    answer: list[int] = field(default_factory=list)
    started: Started | None = None
    finish: Finish | None = None


@dataclass(frozen=True)
class Outcome:
    """What a run saw."""

    world: World
    clients: dict[int, Client]
    num_rounds: int
    phases_cancelled: Counter[Phase]

    @property
    def hits(self) -> int:
        """Requests that reused something and were answered to the end."""
        return sum(
            1
            for client in self.clients.values()
            if client.finish is not None
            and client.finish.cached_tokens > 0
            and client.finish.reason in (FinishReason.STOP, FinishReason.LENGTH)
        )


class Simulation:
    """One run; see the module's docstring."""

    def __init__(self, seed: int, num_requests: int = 11) -> None:
        rng = random.Random(seed)
        self.rng = rng
        self.to_come = num_requests
        tight = rng.random() < 0.2
        max_pages = 4 if tight else rng.choice((4, 8, 16))
        chunk = rng.choice((64, 128, 192, 256))
        device, host = rng.choice(((0, 0), (0, 2), (1, 2), (0, 5), (3, 9)))
        limits = random_limits(rng, tight, max_pages, chunk)
        policy = RetentionPolicy(
            interval_tokens=rng.choice((0, 0, 64, 128)),
            min_interrupted_tokens=rng.choice((64, 192)),
        )
        num_pages = 1 + max_pages + (1 if tight else rng.choice((0, 2, 8, 30)))
        tiers = random_tiers(rng)
        self.world = new_world(
            limits,
            policy,
            FINGERPRINT,
            num_pages=num_pages,
            num_device_slots=device,
            num_host_slots=host,
            tiers=tiers,
        )
        self.device = FakeDevice(
            num_pages,
            limits.num_lanes,
            device + host,
            chunk,
            0 if tiers is None else tiers.arena.num_cells,
            loses=lambda position: rng.random() < 0.05,
        )
        self.files = random_files(rng, self.device, tiers)
        if self.files is not None and tiers is not None:
            shelf = self.files.shelf(FINGERPRINT, tiers.arena.image_cells)
            self.world = replace(self.world, tiers=replace(tiers, shelf=shelf))
        self.commands: list[Command] = []
        self.link = _colliding if rng.random() < 0.2 else link_page
        self.lengths = (60, 100) if tight else rng.choice(((0, 1, 2, 6, 20, 70), (0, 1, 5, 12)))
        self.traffic = Traffic(rng, limits.max_context)
        self.clients: dict[int, Client] = {}
        self.under_way: list[object] = []
        self.checked: tuple[object, ...] = (None,) * 5
        self.now_ms = 0.0
        self.phases_cancelled: Counter[Phase] = Counter()
        self.pins = Pins(seed)

    def run(self) -> Outcome:
        """Play until every request has ended; then everything must be given back."""
        try:
            return self._play()
        finally:
            if self.files is not None:
                self.files.close()

    def _play(self) -> Outcome:
        idle = 0
        bound = 400 + 60 * self.to_come
        for _ in range(bound):
            self._disturb()
            worked = self._turn()
            idle = 0 if worked or self.to_come else idle + 1
            if idle > 3 and not self.world.sequences:
                break
            if idle > 3:
                self._release()
        assert not self.world.sequences, f"{len(self.world.sequences)} requests never ended"
        self._settle()
        return Outcome(self.world, self.clients, len(self.device.rounds), self.phases_cancelled)

    def _disturb(self) -> None:
        rng = self.rng
        self.now_ms += rng.choice((0.0, 1.0, 7.0, 40.0))
        if self.to_come and rng.random() < 0.35:
            for _ in range(min(rng.choice((1, 1, 1, 3)), self.to_come)):
                self._submit()
        for command in self.commands:
            self.world = command(self.world, self.now_ms)
        self.commands = []
        open_ids = list(self.world.sequences)
        self._cancel(open_ids)
        if open_ids and rng.random() < 0.05:
            self.world = scheduler.hold(self.world, rng.choice(open_ids), rng.random() < 0.5)
        if rng.random() < 0.02:
            self._release()
        if rng.random() < 0.01:
            self.world = flush(self.world)
        self.world = self.pins.disturb(self.world)
        self._deliver()

    def _cancel(self, open_ids: list[int]) -> None:
        """Cancel now and then; what is short rather: a prefill that has read something, a move."""
        reading = [
            seq.request.id
            for seq in self.world.sequences.values()
            if (seq.phase is Phase.PREFILLING and seq.position > seq.kept_at)
            or seq.phase in (Phase.EVICTING, Phase.EVICTED, Phase.RESTORING)
        ]
        if not open_ids or self.rng.random() > (0.2 if reading else 0.015):
            return
        request_id = self.rng.choice(reading or open_ids)
        self.phases_cancelled[self.world.sequences[request_id].phase] += 1
        self.world = scheduler.cancel(self.world, request_id, self.now_ms)

    def _release(self) -> None:
        for request_id in list(self.world.sequences):
            self.world = scheduler.hold(self.world, request_id, held=False)

    def _submit(self) -> None:
        self.to_come -= 1
        rng = self.rng
        prompt = self.traffic.next()
        request_id = len(self.clients) + 1
        request = Request(
            id=request_id,
            name=f"request-{request_id}",
            chain=chain_of(prompt.tokens, b"" if rng.random() < 0.95 else b"pepper", self.link),
            marks=prompt.marks,
            sampling=sampling_of(rng, request_id),
            max_tokens=rng.choice(self.lengths),
            stop_ids=STOP_IDS,
            cls=rng.choice((Class.INTERACTIVE, Class.AGENT)),
            reuse=rng.random() > 0.08,
            arrival_ms=self.now_ms,
        )
        room = self.world.limits.max_context - len(prompt.tokens)
        cold = cold_answer(
            prompt.tokens, request.sampling, min(request.max_tokens, room), request.stop_ids
        )
        self.clients[request_id] = Client(request, cold)
        self.world = scheduler.submit(self.world, request, self.now_ms)

    def _turn(self) -> bool:
        """Plan and dispatch a round, then commit the one before; sometimes without overlap."""
        before = self.world
        self.world, work = scheduler.plan(before, self.now_ms)
        filed = self._file()
        self._check_world()
        check_planned(self.world, work, self.now_ms)
        self._check_parked(before)
        if work is not None:
            self._check_round(work)
            self.under_way.append(self.device.run(work))
        self._deliver()
        self.pins.check(self.world)
        depth = 1 if work is not None and self.rng.random() < 0.8 else 0
        self._check_disk()
        worked = bool(self.under_way) or filed
        while len(self.under_way) > depth:
            self.now_ms += self.rng.choice((1.0, 5.0, 30.0))
            result = self.device.fetch(self.under_way.pop(0))
            self.world, events = scheduler.commit(self.world, result, self.now_ms)
            self._hear(events)
        return worked

    def _file(self) -> bool:
        """Hand orders to the threads of files, and hear what they did."""
        self.world, orders = scheduler.take_orders(self.world)
        if self.files is None:
            assert not orders, f"{len(orders)} orders without a disk"
            return False
        self.files.give(orders)
        self.commands += self.files.turn()
        return bool(orders) or self.files.busy or bool(self.commands)

    def _check_disk(self) -> None:
        """What lies on the disk is no more than is charged, and that no more than the ceiling."""
        tiers = self.world.tiers
        if self.files is None or tiers is None or tiers.shelf is None:
            return
        if self.rng.random() < 0.1:
            tiers.shelf.check()
            sizes = (path.stat().st_size for path in self.files.root.rglob("*") if path.is_file())
            there = sum(sizes)
            assert there <= tiers.shelf.used_bytes, f"{there} of {tiers.shelf.used_bytes} bytes"

    def _check_world(self) -> None:
        """Every invariant; skipped while rounds only decode and no ledger has changed."""
        world = self.world
        ledgers = (world.pages, world.slots, world.index, world.pending, world.tiers)
        if any(new is not old for new, old in zip(ledgers, self.checked, strict=True)):
            check_world(world)
            self.checked = ledgers

    def _check_parked(self, before: World) -> None:
        """A lane waits for a page only when nothing retained could have given one."""
        running = self.world.running
        parked = [seq for seq in running if seq.parked and not seq.held]
        if parked:
            idle = gainable(before)
            needed = sum(len(seq.table) * PAGE_TOKENS <= seq.position for seq in before.running)
            assert idle < needed, f"{len(parked)} lanes are parked, {idle} pages were idle"

    def _check_round(self, work: Round) -> None:
        """A page that the round writes belongs to one sequence, and to captures of this round."""
        if work.prefill is not None:
            first, tokens = work.prefill.start, len(work.prefill.tokens)
            self._check_writes(work.prefill.table, first, tokens, work.number)
        for step in work.decode:
            self._check_writes(step.table, step.position, 1, work.number)
        lanes = [step.lane for step in work.decode]
        assert len(lanes) == len(set(lanes)), f"a lane steps twice: {lanes}"

    def _check_writes(self, table: tuple[int, ...], first: int, count: int, number: int) -> None:
        fresh = [one for one in self.world.pending if one.round_number == number]
        for page in table[first // PAGE_TOKENS : -(-(first + count) // PAGE_TOKENS)]:
            sharing = sum(page in one.table for one in fresh)
            assert self.world.pages.holders(page) - sharing == 1, f"page {page} is written, shared"

    def _deliver(self) -> None:
        self.world, events = scheduler.take_events(self.world)
        self._hear(events)

    def _hear(self, events: tuple[Event, ...]) -> None:
        for event in events:
            client = self.clients[event.request_id]
            assert client.finish is None, f"request {event.request_id} hears {event} after its end"
            if isinstance(event, Started):
                assert client.started is None, f"request {event.request_id} started twice"
                client.started = event
            elif isinstance(event, Token):
                assert client.started is not None, f"request {event.request_id} was not started"
                client.answer.append(event.token)
            elif isinstance(event, Finished):
                client.finish = event.finish
                self._check_answer(client)

    def _check_answer(self, client: Client) -> None:
        finish = client.finish
        assert finish is not None
        name = f"request {client.request.id} ({finish.reason}, cached {finish.cached_tokens})"
        known = client.cold[: len(client.answer)]
        assert client.answer == known, f"{name}: another answer than cold"
        if finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert client.answer == client.cold, f"{name}: {len(client.answer)} tokens"
            assert client.started is not None, f"{name} was never started"
            assert client.started.reuse == finish.reuse, f"{name}: two accounts of reuse"
            self._check_rows(client)
        if finish.reason is FinishReason.ERROR:
            assert self.world.counters.unplaced, f"{name}: {finish.message}"

    def _check_rows(self, client: Client) -> None:
        """Each position of the prompt beyond the reused ones was read exactly once."""
        finish = client.finish
        assert finish is not None
        at = finish.cached_tokens
        for work in self._chunks_of(client.request.id):
            if finish.evictions:
                at = work[0]  # computed anew
            assert work[0] == at, f"request {client.request.id} reads {work[0]}, stands at {at}"
            at += work[1]
        assert at == client.request.prompt_tokens, f"request {client.request.id} read to {at}"

    def _chunks_of(self, request_id: int) -> Iterator[tuple[int, int]]:
        for work in self.device.rounds:
            if work.prefill is not None and work.prefill.sequence_id == request_id:
                yield work.prefill.start, len(work.prefill.tokens)

    def _finish_files(self) -> None:
        """Let the threads of files end what they were told, on a disk that works."""
        if self.files is None:
            return
        self.files.disk.fails = 0.0
        for _ in range(200):
            if not self._file():
                return
            for command in self.commands:
                self.world = command(self.world, self.now_ms)
            self.commands = []
            self.now_ms += 20_000.0
            self.world, work = scheduler.plan(self.world, self.now_ms)
            if work is not None:
                result = self.device.fetch(self.device.run(work))
                self.world, _ = scheduler.commit(self.world, result, self.now_ms)
        raise AssertionError(f"files are still busy with {self.files.waiting}")

    def _check_no_file(self) -> None:
        """After a flush nothing is left on the disk."""
        if self.files is None:
            return
        self.now_ms += 20_000.0
        self.world, _ = scheduler.plan(self.world, self.now_ms)
        self._finish_files()
        assert self.world.tiers is not None
        assert self.world.tiers.shelf is not None
        left = [path.name for path in self.files.root.rglob("*") if path.is_file()]
        assert not left, f"{len(left)} files are left: {left}"
        used = self.world.tiers.shelf.used_bytes
        assert used == 0, f"{used} bytes are charged for no file"

    def _settle(self) -> None:
        """Everything has ended; after a flush every page, slot and lane is back."""
        unheard = [key for key, client in self.clients.items() if client.finish is None]
        assert not unheard, f"requests {unheard} never ended"
        assert not self.world.pending, f"{len(self.world.pending)} captures are left over"
        check_world(self.world)
        self._finish_files()
        self.world = empty = flush(self.world)
        check_world(empty)
        self._check_no_file()
        assert empty.pages.num_used == 0, f"{empty.pages.num_used} pages leaked"
        assert empty.slots.num_used == 0, f"{empty.slots.num_used} slots leaked"
        if empty.tiers is not None:
            arena = empty.tiers.arena
            assert arena.num_free == arena.num_cells, f"{arena.num_cells - arena.num_free} cells"
        told = self.world.counters
        assert told.submitted == sum(told.finished.values()) == len(self.clients)
        rows = sum(len(one.prefill.tokens) for one in self.device.rounds if one.prefill)
        assert told.computed_tokens == rows
