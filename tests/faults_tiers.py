"""Faults of retained state that goes down and comes up again, and of its files."""

from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

from ignisd.engine import (
    admission,
    ahead,
    demotion,
    files,
    restoring,
    room,
    scheduler,
    spilling,
    tiers,
    windows,
)
from ignisd.engine.files import FileThreads
from ignisd.engine.moves import Lower, Raise
from ignisd.engine.tiers import Tiers
from ignisd.engine.types import LaneStart
from ignisd.engine.world import World
from state import ranking, reuse
from state.retained import Rank
from state.tiers.format import StateCorrupt
from state.tiers.jobs import fetch as fetch_file
from state.tiers.jobs import store as store_file
from state.tiers.shelf import Shelf
from tests.planting import mutant

Plant = AbstractContextManager[Any]


def _everywhere(name: str, wrong: Any, *modules: ModuleType) -> Plant:
    """Something that several modules import, replaced in all of them."""
    stack = ExitStack()
    for module in modules:
        stack.enter_context(patch.object(module, name, wrong))
    return stack


@mutant
def image_stays_behind() -> Plant:
    """The pages of a state go down and its image does not, and it is found all the same."""

    def lower(**told: Any) -> Lower:
        return Lower(**{**told, "image_cells": (), "slot": None, "lane": None})

    return _everywhere("Lower", lower, demotion, windows)


@mutant
def image_of_the_neighbour() -> Plant:
    """A restore starts from the image that lies beside the right one."""

    def start(**told: Any) -> LaneStart:
        cells = tuple(cell + 1 for cell in told.get("image_cells", ()))
        return LaneStart(**{**told, "image_cells": cells})

    return patch.object(restoring, "LaneStart", start)


@mutant
def pages_rise_in_another_order() -> Plant:
    """The pages of a restored state come up the last first."""

    def up(stored_id: int, cells: tuple[int, ...], pages: tuple[int, ...]) -> Raise:
        return Raise(stored_id, cells[::-1], pages)

    return patch.object(restoring, "Raise", up)


@mutant
def a_restore_consumes() -> Plant:
    """What was restored does not stay below."""
    real = restoring._claimed

    def claimed(world: World, seq: Any, stored: Any, *more: Any) -> Any:
        world, start = real(world, seq, stored, *more)
        assert world.tiers is not None
        return replace(world, tiers=tiers.given_up(world.tiers, stored.id)), start

    return patch.object(restoring, "_claimed", claimed)


@mutant
def file_given_back_while_it_is_read() -> Plant:
    """What is flushed goes at once, while a thread reads its file into its cells."""
    real = tiers._busy

    def busy(below: Tiers, stored_id: int) -> bool:
        return real(replace(below, reading=below.reading - {stored_id}), stored_id)

    return patch.object(tiers, "_busy", busy)


@mutant
def cells_given_back_while_they_are_read() -> Plant:
    """What is given up goes at once, while a round still reads its cells."""
    real = tiers._busy

    def busy(below: Tiers, stored_id: int) -> bool:
        untouched = {key: at for key, at in below.touched.items() if key != stored_id}
        return real(replace(below, touched=untouched), stored_id)

    return patch.object(tiers, "_busy", busy)


@mutant
def corrupt_file_served() -> Plant:
    """A file that fails its checks is used as it is."""
    real = fetch_file

    def fetch(*args: Any) -> None:
        with suppress(StateCorrupt):
            real(*args)

    return patch.object(files, "fetch", fetch)


@mutant
def flush_forgets_kv_ram() -> Plant:
    """A flush leaves what lies in the arena."""
    return patch.object(room, "emptied", lambda below: below)


@mutant
def flush_forgets_kv_disk() -> Plant:
    """A flush leaves the files."""
    real = tiers.emptied

    def emptied(below: Tiers) -> Tiers:
        if below.shelf is None:
            return real(below)
        shelf = below.shelf
        return replace(real(replace(below, shelf=None)), shelf=shelf)

    return patch.object(room, "emptied", emptied)


@mutant
def window_ignored() -> Plant:
    """A round moves as much as there is to move."""
    return patch.object(Tiers, "affordable_pages", lambda self: 1 << 30)


@mutant
def demoted_though_it_lies_below() -> Plant:
    """A state goes down again although it lies there, and is written again."""
    return _everywhere("lies_below", lambda below, victim: False, demotion, ahead, spilling)


@mutant
def nothing_goes_ahead() -> Plant:
    """A state of many windows is lost when its place is wanted."""
    return patch.object(scheduler, "plan_ahead", lambda world, now_ms: world)


@mutant
def claimed_on_its_way_and_gone() -> Plant:
    """A large state leaves the device when it has landed, though it was claimed meanwhile."""
    real = ahead.landed_ahead

    def landed_ahead(world: World, one: Any) -> World:
        victim = world.index.get(one.retained_id)
        return real(world, one if victim is None else replace(one, hits=victim.hits))

    return patch.object(scheduler, "landed_ahead", landed_ahead)


@mutant
def orphans_stay() -> Plant:
    """What was given up while something touched it is never given back."""
    real = tiers._settled

    def settled(below: Tiers, stored_id: int) -> Tiers:
        return below if stored_id in below.orphans else real(below, stored_id)

    return patch.object(tiers, "_settled", settled)


@mutant
def a_read_file_is_held_for_ever() -> Plant:
    """A file that was read once makes way for nobody any more."""
    return patch.object(Shelf, "release", lambda self, id: self)


@mutant
def a_completion_needs_its_request() -> Plant:
    """A file that comes for a request which has left ends the engine."""
    real = restoring.file_read

    def file_read(world: World, stored_id: int, *more: Any) -> World:
        waiting = [seq for seq in world.sequences.values() if seq.stored_id == stored_id]
        assert waiting, f"state {stored_id} was read for nobody"
        return real(world, stored_id, *more)

    return patch.object(files, "file_read", file_read)


@mutant
def files_hold_the_engine_up() -> Plant:
    """Files are written and read by whoever orders it."""

    def submit(self: FileThreads, order: Any, tell: Any) -> None:
        tell(self.execute(order))

    return patch.object(FileThreads, "submit", submit)


@mutant
def a_failed_file_stops_everything() -> Plant:
    """A file that cannot be written is an error of whoever ordered it."""
    real = store_file

    def store(*args: Any) -> Any:
        outcome = real(*args)
        if outcome.trouble is not None:
            raise OSError(outcome.message)
        return outcome

    return patch.object(files, "store", store)


@mutant
def spilled_without_need() -> Plant:
    """What lies in the arena is written to files at once, though it has room enough."""
    return patch.object(spilling, "_is_low", lambda below: True)


@mutant
def the_worst_is_written_first() -> Plant:
    """When the daemon ends, what is next to give way is written before what is worth most."""
    real = spilling._candidates

    def candidates(world: World, now_ms: float) -> Any:
        return reversed(list(real(world, now_ms)))

    return patch.object(spilling, "_candidates", candidates)


@mutant
def room_is_made_though_there_is_some() -> Plant:
    """Whenever pages are asked for, the lowest ranked state leaves, free pages or not."""
    real = room.make_room

    def make_room(world: World, num_pages: int, now_ms: float) -> World | None:
        lowest = next(room.victims(world, now_ms), None)
        if num_pages > 0 and lowest is not None:
            world = room.give_up(world, lowest[1], now_ms)
        return real(world, num_pages, now_ms)

    return _everywhere("make_room", make_room, admission, scheduler)


@mutant
def a_match_holds_pages_while_it_waits() -> Plant:
    """A request that matches and cannot enter keeps its share of the pages that it matched."""
    real = admission._paged

    def paged(world: World, seq: Any, shared: tuple[int, ...], now_ms: float) -> Any:
        done = real(world, seq, shared, now_ms)
        if done is None and shared:
            object.__setattr__(world, "pages", world.pages.share(shared))
        return done

    return patch.object(admission, "_paged", paged)


@mutant
def kinds_do_not_rank() -> Plant:
    """The least recently used state gives way, whatever it is kept for."""
    return patch.object(ranking, "rank", lambda *args: Rank.CHECKPOINT)


@mutant
def old_turns_keep_their_rank() -> Plant:
    """What a later checkpoint of the same conversation has taken the place of holds its own."""
    return patch.object(reuse, "_sunk", lambda entries, members: entries)


@mutant
def cells_go_before_their_file_is_whole() -> Plant:
    """A state leaves the arena as soon as its file was ordered."""
    real = spilling._written_out

    def written_out(world: World, *args: Any) -> World:
        world = real(world, *args)
        assert world.tiers is not None
        held = world.tiers.arena.release(args[1].id)
        gone = replace(world.tiers, arena=held.drop(args[1].id))
        return replace(world, tiers=gone)

    return patch.object(spilling, "_written_out", written_out)


@mutant
def nothing_bounds_the_files() -> Plant:
    """Files are written for as long as there is something to write."""
    real = Shelf.plan

    def plan(self: Shelf, *args: Any) -> Any:
        return real(replace(self, ceiling_bytes=1 << 60), *args)

    return patch.object(Shelf, "plan", plan)


@mutant
def a_second_copy_is_made_in_advance() -> Plant:
    """A large state that has gone down stays on the device as well."""
    return patch.object(scheduler, "landed_ahead", lambda world, one: world)


@mutant
def the_worst_goes_down_first() -> Plant:
    """What gives way first takes the window of the round, and the newest turn is lost."""

    real = room.who_leaves

    def worst_first(world: World, num_pages: int, now_ms: float) -> Any:
        leaving = real(world, num_pages, now_ms)
        return leaving and leaving[::-1]

    return patch.object(room, "who_leaves", worst_first)
