"""How long the scheduler takes to plan: python -m tests.engine.measure

A full house: 32 sequences run and 64 wait, over a pool of 10,000 pages; 2,000 states are retained,
64 of them on the device, which is the most that `auto` gives four lanes, the others in the arena.
Every round is planned and committed as the loop does it, on a device that answers at once. Prints
the median and the 99th percentile of the processor time of each step.
"""

import argparse
import statistics
import time
from dataclasses import dataclass, replace

import numpy as np

from ignisd.engine import scheduler
from ignisd.engine.tiers import TierLimits, Tiers
from ignisd.engine.types import Request, Round, RoundResult, SamplingParams
from ignisd.engine.world import Limits, World, new_world
from state.chain import chain_of
from state.retained import Kind, Retained
from state.retention import Marks, RetentionPolicy
from state.spec import PAGE_TOKENS, Class, Fingerprint
from state.tiers.arena import Arena
from state.tiers.stored import stored_of

NUM_RUNNING = 32
NUM_WAITING = 64
NUM_PAGES = 10_001
NUM_STATES = 2_000
NUM_SLOTS = 64
STATE_PAGES = 4
CELL_BYTES = 64


@dataclass(frozen=True, slots=True)
class Timed:
    """Microseconds of each plan and each commit."""

    plan_us: list[float]
    commit_us: list[float]


def full_house() -> World:
    """A world with nothing in flight, its slots taken and its arena in use."""
    rng = np.random.default_rng(0)
    arena = Arena.empty(NUM_STATES * (STATE_PAGES + 1), 1, CELL_BYTES)
    world = new_world(
        Limits(num_lanes=NUM_RUNNING, max_context=16_384, chunk_tokens=1024, step_tokens=64),
        RetentionPolicy(),
        Fingerprint.of(test="measure"),
        num_pages=NUM_PAGES,
        num_device_slots=0,
        num_host_slots=NUM_SLOTS,
        tiers=Tiers(TierLimits(image_bytes=CELL_BYTES), arena),
    )
    for number in range(1, NUM_STATES + 1):
        tokens = rng.integers(0, 1000, STATE_PAGES * PAGE_TOKENS)
        world = _with_state(world, number, tokens.tolist(), number <= NUM_SLOTS)
    return replace(world, next_retained_id=NUM_STATES + 1)


def _with_state(world: World, number: int, tokens: list[int], on_device: bool) -> World:
    chain = chain_of(tokens)
    retained = Retained(
        id=number,
        kind=Kind.CHECKPOINT,
        chain=chain,
        length=chain.num_tokens,
        table=tuple(range(1, STATE_PAGES + 1)),
        slot=0,
        cls=Class.INTERACTIVE,
        conversation=0,
        superseded=False,
        hits=0,
        published_ms=float(number),
        used_ms=float(number),
        fingerprint=world.index.fingerprint,
    )
    if on_device:
        pages, table = world.pages.take(STATE_PAGES)
        taken = world.slots.take(number)
        assert taken is not None
        retained = replace(retained, table=table, slot=taken[1])
        return replace(world, pages=pages, slots=taken[0], index=world.index.insert(retained))
    assert world.tiers is not None
    stored = stored_of(retained)
    placement = world.tiers.arena.plan(stored, 0.0, 1e9)
    assert placement is not None
    arena, _ = world.tiers.arena.place(stored, placement)
    return replace(world, tiers=replace(world.tiers, arena=arena.land(number)))


def _request(number: int, rng: np.random.Generator, now_ms: float) -> Request:
    tokens = rng.integers(0, 1000, int(rng.integers(100, 900))).tolist()
    return Request(
        id=number,
        name="measure",
        chain=chain_of(tokens),
        marks=Marks(64, len(tokens), len(tokens)),
        sampling=SamplingParams(),
        max_tokens=int(rng.integers(50, 200)),
        arrival_ms=now_ms,
    )


def answered(work: Round) -> RoundResult:
    """What a device would say."""
    tokens = {step.sequence_id: 7 for step in work.decode}
    rows, captured = 0, [save.slot for save in work.saves]
    if work.prefill is not None:
        rows = len(work.prefill.tokens)
        captured += [capture.slot for capture in work.prefill.captures]
        if work.prefill.last:
            tokens[work.prefill.sequence_id] = 7
    return RoundResult(work.number, tokens, tuple(captured), rows)


def timed(num_rounds: int) -> Timed:
    """Keep the house full for so many rounds."""
    world, rng = full_house(), np.random.default_rng(1)
    timed = Timed([], [])
    number, under_way = 0, None
    for turn in range(num_rounds + 200):
        now_ms = 10_000.0 + turn
        while len(world.queue) < NUM_WAITING:
            number += 1
            world = scheduler.submit(world, _request(number, rng, now_ms), now_ms)
        began = time.thread_time()
        world, work = scheduler.plan(world, now_ms)
        planned = time.thread_time()
        assert work is not None, "a full house plans nothing"
        if under_way is not None:
            world, _ = scheduler.commit(world, under_way, now_ms)
        done = time.thread_time()
        under_way = answered(work)
        if turn >= 200 and len(world.running) == NUM_RUNNING:
            timed.plan_us.append(1e6 * (planned - began))
            timed.commit_us.append(1e6 * (done - planned))
    return timed


def _line(name: str, values: list[float]) -> str:
    ordered = sorted(values)
    tail = ordered[int(0.99 * (len(ordered) - 1))]
    return f"{name:<8}{statistics.median(ordered):>10.0f} us median{tail:>10.0f} us p99"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="How long the scheduler takes to plan.")
    parser.add_argument("--rounds", type=int, default=2000)
    found = timed(parser.parse_args().rounds)
    print(
        f"{NUM_RUNNING} running, {NUM_WAITING} waiting, {NUM_PAGES - 1} pages, "
        f"{NUM_STATES} states, {len(found.plan_us)} rounds"
    )
    print(_line("plan", found.plan_us))
    print(_line("commit", found.commit_us))


if __name__ == "__main__":
    main()
