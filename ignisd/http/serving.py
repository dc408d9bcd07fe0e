"""A model that serves, and the line of requests that wait for one."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self

from ignisd.chat.checkpoint import ModelInfo
from ignisd.engine.control import TooManyPins
from ignisd.engine.stats import EngineStats
from ignisd.engine.stream import Stream
from ignisd.engine.types import Request, Tier
from ignisd.engine.world import World
from ignisd.errors import Draining, IgnisError


class Engine(Protocol):
    """As much of the engine as HTTP uses; calls are made on the event loop and return soon."""

    @property
    def world(self) -> World:
        """What the scheduler sees, as of now."""
        ...

    def submit(self, request: Request) -> Stream:
        """Take a request in.

        Raises:
            Overloaded: the queue is full.
            Draining: no new requests are taken.
            EngineFailure: the engine is dead.
        """
        ...

    def stats(self) -> EngineStats:
        """A picture of the engine."""
        ...

    def flush(self, tier: Tier | None = None) -> "asyncio.Future[tuple[World, World]]":
        """Give up what is retained, in one tier or in all, before the next round; the worlds
        before and after that."""
        ...

    def pin(
        self, state_id: int, pinned: bool
    ) -> "asyncio.Future[tuple[World, TooManyPins | None]]":
        """Pin a state before the next round, or take that back; the world then, or what hinders."""
        ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What loading settled, for the control plane.

    Args:
        page_bytes, image_bytes: sizes of the two halves of retained state.
        inexact: what broke the promise of exact reuse on this backend; empty where it holds.
        memory: the plan, as name, memory and bytes.
        settled: by the key of a setting that was `auto`, what it came to.
        kv_ram: sizes and rates of the arena, and whether it is locked; None without one.
        kv_disk: what it was told to be and what was found there; None without one.
        rates: what reading, a decode step and a move took at load; empty where not measured.
    """

    page_bytes: int = 0
    image_bytes: int = 0
    inexact: tuple[str, ...] = ()
    memory: tuple[tuple[str, str, int], ...] = ()
    settled: Mapping[str, object] = field(default_factory=dict)
    kv_ram: Mapping[str, object] | None = None
    kv_disk: Mapping[str, object] | None = None
    rates: Mapping[str, float] = field(default_factory=dict)


class Serving:
    """A loaded model and the engine that runs it, for as long as they serve.

    Who prepares a request holds a claim on it. While there are claims the engine is not stopped,
    as what was prepared for one model must not go to another.
    """

    def __init__(
        self, engine: Engine, model: ModelInfo, facts: Facts, on_cut: Callable[[IgnisError], None]
    ) -> None:
        self.engine = engine
        self.model = model
        self.facts = facts
        self.closing: Callable[[], IgnisError] = Draining
        self._on_cut = on_cut
        self._num_claims = 0
        self._unclaimed = asyncio.Event()
        self._unclaimed.set()

    @property
    def num_claims(self) -> int:
        """Requests that are being prepared for it."""
        return self._num_claims

    def claim(self) -> None:
        """A request is being prepared."""
        self._num_claims += 1
        self._unclaimed.clear()

    def leave(self) -> None:
        """It has been handed over, or given up."""
        self._num_claims -= 1
        if not self._num_claims:
            self._unclaimed.set()

    async def unclaimed(self) -> None:
        """Wait until no request is being prepared."""
        await self._unclaimed.wait()

    def cut(self) -> IgnisError:
        """What a request is told that was under way when the engine was stopped."""
        error = self.closing()
        self._on_cut(error)
        return error


class Place:
    """A place in the line of those who wait for a model. Leaving `with` gives it up.

    Args:
        line: of which it is a part.
        name: of the model that is wanted; None is whichever comes.
    """

    def __init__(self, line: "list[Place]", name: str | None) -> None:
        self._line = line
        self.name = name
        self._granted: asyncio.Future[Serving] = asyncio.get_running_loop().create_future()
        line.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self in self._line:
            self._line.remove(self)
        if self._granted.done() and self._granted.exception() is None:
            self._granted.result().leave()
        self._granted.cancel()

    @property
    def settled(self) -> bool:
        """Whether it was granted or refused."""
        return self._granted.done()

    def grant(self, serving: Serving) -> None:
        """The model is there; nobody stops it until the place is given up."""
        self._line.remove(self)
        serving.claim()
        self._granted.set_result(serving)

    def refuse(self, error: IgnisError) -> None:
        """It will not come."""
        self._line.remove(self)
        self._granted.set_exception(error)

    async def wait(self) -> Serving:
        """What serves the model. Stays claimed until the place is given up.

        Raises:
            IgnisError: it will not come.
        """
        if not self._granted.done():
            await asyncio.wait({self._granted})
        return self._granted.result()
