"""What stands behind the handlers: an engine and a model, or the reason why there is none yet."""

import asyncio
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ignisd.chat.checkpoint import ModelInfo
from ignisd.engine.control import TooManyPins
from ignisd.engine.stats import EngineStats
from ignisd.engine.stream import Stream
from ignisd.engine.types import Request, Tier
from ignisd.engine.world import World
from ignisd.errors import Draining, EngineFailure, Loading
from ignisd.http import condition


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
    """

    page_bytes: int = 0
    image_bytes: int = 0
    inexact: tuple[str, ...] = ()
    memory: tuple[tuple[str, str, int], ...] = ()
    settled: Mapping[str, object] = field(default_factory=dict)
    kv_ram: Mapping[str, object] | None = None
    kv_disk: Mapping[str, object] | None = None


class ServicePhase(enum.StrEnum):
    """Where the daemon stands: LOADING, then READY, then DRAINING; FAILED from any of them."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Service:
    """The daemon as the handlers see it. It belongs to the event loop, and the daemon moves it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.phase = ServicePhase.LOADING
        self.progress = 0.0
        self.failure = ""
        self.facts = Facts()
        self._engine: Engine | None = None
        self._model: ModelInfo | None = None

    @property
    def engine(self) -> Engine | None:
        """The engine, once there is one; it stays while draining."""
        return self._engine

    @property
    def model(self) -> ModelInfo | None:
        """The served model, once it is loaded."""
        return self._model

    @property
    def exact(self) -> bool | None:
        """Whether reuse changes no bit on this backend; None until that has been probed."""
        return None if self._engine is None else not self.facts.inexact

    @property
    def degraded(self) -> Mapping[str, str]:
        """What does not work as it should at present although requests are answered, and why."""
        if self._engine is None:
            return {}
        return condition.degraded(self._engine.stats(), self._engine.world)

    @property
    def notes(self) -> Mapping[str, str]:
        """What works and is not as it could be, and why."""
        return condition.notes(self.facts.kv_ram)

    def report_progress(self, progress: float) -> None:
        """How much of the model is loaded, 0 to 1."""
        self.progress = min(1.0, max(0.0, progress))

    def set_ready(self, engine: Engine, model: ModelInfo, facts: Facts | None = None) -> None:
        """Requests are served from now on."""
        self._engine, self._model = engine, model
        self.facts = facts or Facts()
        self.phase, self.progress = ServicePhase.READY, 1.0

    def set_draining(self) -> None:
        """New requests are refused from now on; those under way go on."""
        self.phase = ServicePhase.DRAINING

    def set_failed(self, message: str) -> None:
        """The daemon cannot serve any more; `message` says why, without paths or traces."""
        self.phase, self.failure = ServicePhase.FAILED, message

    def require(self) -> tuple[Engine, ModelInfo]:
        """The engine and the model, for a new request.

        Raises:
            Loading, Draining, EngineFailure: there is nothing to serve it with.
        """
        match self.phase:
            case ServicePhase.LOADING:
                raise Loading(self.progress)
            case ServicePhase.DRAINING:
                raise Draining
            case ServicePhase.FAILED:
                raise EngineFailure(f"The engine has failed: {self.failure}.")
            case ServicePhase.READY:
                assert self._engine is not None
                assert self._model is not None
                return self._engine, self._model
