"""Faults of what is looked for in the tiers, and of what is told and counted of it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

from ignisd.engine import (
    accounts,
    admission,
    check,
    restoring,
    scheduler,
)
from ignisd.engine.types import Phase, Request, RoundResult, Tier
from ignisd.engine.world import Below, World, count
from ignisd.http import salts
from state import groups
from state.reuse import Miss, MissReason
from state.tiers import index as tier_index
from tests.planting import mutant

Plant = AbstractContextManager[Any]


def _everywhere(name: str, wrong: Any, *modules: ModuleType) -> Plant:
    """Something that several modules import, replaced in all of them."""
    stack = ExitStack()
    for module in modules:
        stack.enter_context(patch.object(module, name, wrong))
    return stack


def _looks_below(wrong: Callable[[World, Request, Any, Any], Any]) -> Plant:
    real = restoring.look_below
    return patch.object(
        admission, "look_below", lambda world, request, found: wrong(world, request, found, real)
    )


@mutant
def counted_when_a_restore_begins() -> Plant:
    """A restore is counted when it is admitted, whatever becomes of it."""
    real = admission._restore

    def restore(world: World, seq: Any, found: Any, below: Below, *more: Any) -> Any:
        after = real(world, seq, found, below, *more)
        if after is None:
            return None
        return accounts.account(after, seq.request, found, (below.stored, below.tier))[0]

    return patch.object(admission, "_restore", restore)


@mutant
def ties_go_down() -> Plant:
    """A state that is on the device as well is restored from below."""

    def look(world: World, request: Request, found: Any, real: Any) -> Any:
        less = Miss(MissReason.NO_MATCH) if found.length else found
        _, below = real(world, request, less)
        if below is not None and below.stored.length >= found.length:
            return found, below
        return real(world, request, found)

    return _looks_below(look)


@mutant
def floor_ignored() -> Plant:
    """A restore takes whatever is a token longer, whatever that costs."""

    def look(world: World, request: Request, found: Any, real: Any) -> Any:
        if world.tiers is None:
            return real(world, request, found)
        limits = replace(world.tiers.limits, ram_floor_tokens=1, disk_floor_tokens=1)
        found, below = real(
            replace(world, tiers=replace(world.tiers, limits=limits)), request, found
        )
        return found, below

    return _looks_below(look)


@mutant
def floor_unsaid() -> Plant:
    """A request is not told that what lies below was too little to be worth its time."""

    def look(world: World, request: Request, found: Any, real: Any) -> Any:
        return found, real(world, request, found)[1]

    return _looks_below(look)


@mutant
def everybody_restores() -> Plant:
    """Requests that wait for the same state of a lower tier each bring it up."""
    real = admission.awaits_leader

    def awaits_leader(world: World, *more: Any) -> bool:
        others = {
            key: seq for key, seq in world.sequences.items() if seq.phase is not Phase.RESTORING
        }
        return real(replace(world, sequences=others), *more)

    return _everywhere("awaits_leader", awaits_leader, admission, check)


@mutant
def tier_of_a_restore_unsaid() -> Plant:
    """What came from a file is told to have been in host memory."""
    real = accounts.account

    def account(world: World, request: Any, found: Any, restored: Any) -> Any:
        return real(world, request, found, (restored[0], Tier.KV_RAM))

    return patch.object(restoring, "account", account)


@mutant
def restored_tokens_uncounted() -> Plant:
    """Tokens that a lower tier saved are in the answer and in no counter."""

    def counted(world: World, **amounts: int) -> World:
        saved = ("ram_tokens", "disk_tokens")
        return count(world, **{name: by for name, by in amounts.items() if name not in saved})

    return patch.object(scheduler, "count", counted)


@mutant
def a_page_more_is_asked_for_below() -> Plant:
    """A lower tier is asked only for what leaves a whole page to read."""
    real = groups.where_to_resume
    return patch.object(
        tier_index, "where_to_resume", lambda tokens, *more: real(tokens - 64, *more)
    )


@mutant
def kept_for_who_asked_for_none() -> Plant:
    """A request that asked for no reuse leaves its state to others all the same."""
    real = accounts.cuts_of

    def cuts(world: World, request: Request, found: Any) -> Any:
        return real(world, replace(request, reuse=True), found)

    return patch.object(admission, "cuts_of", cuts)


@mutant
def parts_from_the_device_alone() -> Plant:
    """A restored request is told where it parts from what the device has, before what it reuses."""
    real = accounts.account

    def account(world: World, request: Any, found: Any, restored: Any = None) -> Any:
        world, told = real(world, request, found, restored)
        return world, replace(told, diverged_at=found.diverged_at)

    return patch.object(restoring, "account", account)


@mutant
def salts_are_not_tagged() -> Plant:
    """What a client sends and whose key it uses are mixed without a mark between them."""
    stack = ExitStack()
    stack.enter_context(patch.object(salts, "_BY_CLIENT", b""))
    stack.enter_context(patch.object(salts, "_BY_KEY", b""))
    return stack


@mutant
def time_of_a_restore_untold() -> Plant:
    """What comes up in one round is told to have taken no time."""
    real = scheduler._started

    def started(world: World, result: RoundResult) -> World:
        return real(world, replace(result, raised_ms=0.0))

    return patch.object(scheduler, "_started", started)
