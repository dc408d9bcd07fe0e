"""Faults of switching models, of resting, and of who waits for what."""

import asyncio
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from ignisd.holder import Choice, Holder
from ignisd.http.service import Service
from ignisd.http.serving import Place, Serving
from ignisd.lifecycle import Lifecycle
from tests.planting import mutant

Plant = AbstractContextManager[Any]


@mutant
def who_waits_keeps_the_claim() -> Plant:
    """Who leaves the line as the model comes keeps its claim, and the engine is never at rest."""

    def leave(self: Place, *_: object) -> None:
        if self in self._line:
            self._line.remove(self)

    return patch.object(Place, "__exit__", leave)


@mutant
def a_load_ends_with_its_client() -> Plant:
    """Whoever gives up waiting for a model takes it away from the others."""
    bring, leave = Lifecycle.bring, Place.__exit__
    asked: list[Lifecycle] = []

    def remembered(self: Lifecycle, *args: Any, **more: Any) -> None:
        asked.append(self)
        bring(self, *args, **more)

    def leave_with_it(self: Place, *error: object) -> None:
        given_up = not self.settled
        leave(self, *error)
        if given_up and asked and asked[-1]._change is not None:
            asked[-1]._change.cancel()

    planted = ExitStack()
    planted.enter_context(patch.object(Lifecycle, "bring", remembered))
    planted.enter_context(patch.object(Place, "__exit__", leave_with_it))
    return planted


@mutant
def a_switch_waits_for_nobody() -> Plant:
    """What is being prepared for a model is overtaken by the switch to another."""

    async def unclaimed(self: Serving) -> None:
        """Nobody counts."""

    return patch.object(Serving, "unclaimed", unclaimed)


@mutant
def the_old_model_goes_first() -> Plant:
    """A model is given up before it is known whether the next one can be loaded."""

    async def check(self: Holder, choice: Choice) -> "asyncio.Future[None]":
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        passed.set_result(None)
        return passed

    return patch.object(Holder, "check", check)


@mutant
def no_way_back() -> Plant:
    """After a load that fails nothing is served."""

    async def go_back(self: Lifecycle, last: Choice) -> None:
        self._service.set_unloaded()

    return patch.object(Lifecycle, "_go_back", go_back)


@mutant
def rest_while_answering() -> Plant:
    """A model is unloaded although it answers, if only no request has come for a while."""
    return patch.object(Holder, "busy", False)


@mutant
def totals_begin_anew() -> Plant:
    """With each model all counters fall back to nothing."""
    released = Service.set_released

    def set_released(self: Service, why: str) -> None:
        released(self, why)
        self.rested = None

    return patch.object(Service, "set_released", set_released)
