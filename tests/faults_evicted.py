"""Faults of live sequences that give way: whom, what goes down of them, and how they go on."""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

from ignisd.engine import (
    admission,
    ahead,
    captures,
    demotion,
    eviction,
    restoring,
    scheduler,
    world,
)
from ignisd.engine.answer import Answer
from ignisd.engine.moves import Lower
from ignisd.engine.types import DecodeLane, Phase, Round
from ignisd.engine.world import Sequence, World, with_sequence
from state.spec import PAGE_TOKENS, Class
from state.tiers import arena
from state.tiers.stored import Stored
from tests.planting import mutant

Plant = AbstractContextManager[Any]


def _everywhere(name: str, wrong: Any, *modules: ModuleType) -> Plant:
    """Something that several modules import, replaced in all of them."""
    stack = ExitStack()
    for module in modules:
        stack.enter_context(patch.object(module, name, wrong))
    return stack


@mutant
def pages_free_before_their_last_window() -> Plant:
    """The pages of a sequence on its way down are free when its last window is sent."""
    real = eviction._window

    def window(world: World, seq: Sequence) -> World:
        world = real(world, seq)
        after = world.sequences[seq.request.id]
        assert world.tiers is not None
        if all(stored_id != after.stored_id for _, stored_id in world.tiers.landings):
            return world
        world = replace(world, pages=world.pages.drop(after.table))
        return with_sequence(world, replace(after, table=(), position=0))

    return patch.object(eviction, "_window", window)


@mutant
def image_after_its_lane() -> Plant:
    """The state of a lane goes down a round after the lane was given away."""
    real = scheduler.plan
    late: list[Lower] = []

    def plan(world: World, now_ms: float, *more: Any) -> tuple[World, Round | None]:
        world, work = real(world, now_ms, *more)
        if work is None:
            return world, work
        now = [replace(one, lane=None, image_cells=()) if one.lane is not None else one
               for one in work.lowers]  # fmt: skip
        before, late[:] = (
            list(late),
            [replace(one, pages=(), cells=()) for one in work.lowers if one.lane is not None],
        )
        return world, replace(work, lowers=(*before, *now))

    return patch.object(scheduler, "plan", plan)


@mutant
def victim_steps_on() -> Plant:
    """A sequence takes one step more in the round in which it gives its lane up."""
    real = scheduler.plan

    def plan(before: World, now_ms: float, *more: Any) -> tuple[World, Round | None]:
        world, work = real(before, now_ms, *more)
        if work is None:
            return world, work
        steps = list(work.decode)
        taken = {step.lane for step in steps} | {start.lane for start in work.starts}
        for key, seq in before.sequences.items():
            fits = seq.issued > 0 and seq.position < len(seq.table) * PAGE_TOKENS
            goes = seq.phase is Phase.EVICTING and seq.lane is not None
            if goes and fits and seq.lane not in taken:
                steps.append(DecodeLane(key, seq.lane or 0, seq.position, seq.table))
        return world, replace(work, decode=tuple(steps))

    return patch.object(scheduler, "plan", plan)


@mutant
def resumed_without_what_it_said() -> Plant:
    """An answer goes on as if it had just begun: penalties see only its last token."""
    real = restoring._resumed

    def resumed(*args: Any) -> Any:
        world, start = real(*args)
        return world, start if start.answer is None else replace(start, answer=start.answer[-1:])

    return patch.object(restoring, "_resumed", resumed)


@mutant
def resumed_behind_later_arrivals() -> Plant:
    """Who had to give way queues up again at the end."""
    real = world.standing

    def standing(seq: Sequence, *more: Any) -> Any:
        cls, arrival_ms, number = real(seq, *more)
        return (2 if seq.phase is Phase.EVICTED else cls), arrival_ms, number

    return patch.object(admission, "standing", standing)


@mutant
def told_again_after_a_replay() -> Plant:
    """A sequence that is computed anew delivers its answer from the beginning."""
    real = eviction.compute_anew

    def compute_anew(world: World, seq: Sequence) -> World:
        forgotten = replace(seq, answer=Answer(), generated=0)
        return real(world, forgotten)

    return _everywhere("compute_anew", compute_anew, eviction, admission)


@mutant
def people_give_way_to_people() -> Plant:
    """A request that finds no lane evicts whoever came last, of its own class too."""

    def evict(world: World, seq: Sequence, wanted_pages: int, now_ms: float) -> World:
        if eviction.goes_down(world):
            return world
        return eviction._begin(world, eviction._movable(world), wanted_pages, now_ms)

    return patch.object(admission, "evict_for_entry", evict)


@mutant
def nobody_is_spared() -> Plant:
    """An agent's request that has waited for its turn loses it at once to the next person."""
    return patch.object(admission, "_spared_until", lambda *args: 0.0)


@mutant
def the_first_gives_way() -> Plant:
    """Of several that could give way the one goes that came first and has read its prompt."""

    def begin(world: World, lower: list[Sequence], wanted_pages: int, now_ms: float) -> World:
        if not lower:
            return world
        victim = min(lower, key=lambda seq: (seq.phase is not Phase.DECODING, seq.request.id))
        return with_sequence(
            world, replace(victim, phase=Phase.EVICTING, parked=False, waits_from_ms=now_ms)
        )

    return patch.object(eviction, "_begin", begin)


@mutant
def evicted_for_nothing() -> Plant:
    """Sequences give way to a request that does not fit even without all of them."""
    real = eviction._begin
    return patch.object(
        eviction, "_begin", lambda world, lower, wanted, now_ms: real(world, lower, 0, now_ms)
    )


@mutant
def resumed_though_its_reader_waits() -> Plant:
    """A sequence whose reader is behind takes a lane in which it does not step."""
    real = admission.admit_all

    def admit_all(world: World, now_ms: float, *more: Any) -> Any:
        held = [seq.request.id for seq in world.sequences.values() if seq.held]
        for key in held:
            world = with_sequence(world, replace(world.sequences[key], held=False))
        world, starts = real(world, now_ms, *more)
        for key in held:
            world = with_sequence(world, replace(world.sequences[key], held=True))
        return world, starts

    return patch.object(scheduler, "admit_all", admit_all)


@mutant
def an_end_on_the_way_down_leaks() -> Plant:
    """What has gone down of a sequence that ends meanwhile stays there."""
    real = world.unstored

    def unstored(world: World, seq: Sequence) -> World:
        return world if seq.phase is Phase.EVICTING else real(world, seq)

    return patch.object(world, "unstored", unstored)


@mutant
def live_work_makes_way_for_what_is_retained() -> Plant:
    """The arena drops what a sequence was to go on from, for a state that nobody asked for."""

    def ranks_below(one: Stored, *more: Any) -> bool:
        return True

    stack = ExitStack()
    stack.enter_context(
        _everywhere("may_give_way", lambda stored: True, ahead, demotion, eviction, restoring)
    )
    stack.enter_context(patch.object(arena, "ranks_below", ranks_below))
    return stack


@mutant
def waits_where_it_could_be_computed() -> Plant:
    """A sequence that finds no room below stays where it is, and who waits for its lane waits."""
    return patch.object(eviction, "compute_anew", lambda world, seq: world)


@mutant
def reuse_told_of_every_admission() -> Plant:
    """A request that is computed anew reports what it claimed then, not what it was told first."""
    real = admission._admit

    def admit(world: World, seq: Sequence, *more: Any) -> Any:
        return real(world, replace(seq, told=False), *more)

    return patch.object(admission, "_admit", admit)


@mutant
def agents_never_age() -> Plant:
    """An agent's request waits for as long as people keep coming."""
    real = world.standing

    def standing(seq: Sequence, *more: Any) -> Any:
        _, arrival_ms, number = real(seq, *more)
        return int(seq.request.cls is Class.AGENT), arrival_ms, number

    return _everywhere("standing", standing, admission, eviction, scheduler)


@mutant
def resumed_from_an_empty_lane() -> Plant:
    """A sequence that goes on gets its pages back and a cleared state."""
    real = restoring._resumed

    def resumed(*args: Any) -> Any:
        world, start = real(*args)
        return world, replace(start, image_cells=(), position=0)

    return patch.object(restoring, "_resumed", resumed)


@mutant
def answer_room_is_not_counted() -> Plant:
    """A request is admitted by its prompt alone, and finds no page for its answer."""

    def entry_pages(world: World, seq: Sequence) -> int:
        return max(1, seq.request.prompt_tokens // PAGE_TOKENS)

    return _everywhere("entry_pages", entry_pages, admission, scheduler)


@mutant
def window_holds_decoding_up() -> Plant:
    """No lane steps in a round that moves a window."""
    real = scheduler._plan_decode

    def plan_decode(world: World, now_ms: float) -> Any:
        if world.tiers is not None and world.tiers.lowers:
            return world, ()
        return real(world, now_ms)

    return patch.object(scheduler, "_plan_decode", plan_decode)


@mutant
def the_aged_wait_for_who_came_later() -> Plant:
    """An agent's request that has waited its time is next, and takes no lane from anybody."""
    real = eviction.below_entry

    def lower(world: World, seq: Sequence, now_ms: float) -> list[Sequence]:
        return real(world, seq, now_ms) if seq.request.cls is Class.INTERACTIVE else []

    return patch.object(eviction, "below_entry", lower)


@mutant
def running_counts_as_waiting() -> Plant:
    """An agent's sequence that ran for long and gives way is next at once, and is spared."""

    def since_it_came(seq: Sequence, limits: Any, now_ms: float) -> bool:
        return bool(now_ms - seq.request.arrival_ms >= limits.ageing_ms)

    return _everywhere("aged", since_it_came, world, admission, eviction)


@mutant
def half_a_prompt_leaves_with_its_client() -> Plant:
    """A request that leaves on its way down, or below, leaves nothing of what it has read."""

    def only_in_its_lane(world: World, seq: Sequence) -> Any:
        if seq.phase is Phase.PREFILLING:
            world = captures.interrupt(world, seq)
        return world, seq

    return patch.object(scheduler, "keep_read", only_in_its_lane)


@mutant
def what_sinks_is_taken_for_whole() -> Plant:
    """What was left on its way down is sent no further, and is found before all of it came."""

    def landed(world: World) -> World:
        tiers = world.tiers
        for one in world.sinking:
            assert tiers is not None
            landings = (*tiers.landings, (world.next_round, one.stored_id))
            tiers = replace(tiers, landings=landings)
            world = replace(world, pages=world.pages.drop(one.table))
        return replace(world, tiers=tiers, sinking=())

    return patch.object(scheduler, "plan_sinking", landed)
