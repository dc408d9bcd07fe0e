"""What stands behind the handlers: a model that serves, or the reason why there is none now."""

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ignisd.chat.checkpoint import ModelInfo
from ignisd.engine.stats import EngineStats
from ignisd.errors import (
    Draining,
    EngineFailure,
    IgnisError,
    Loading,
    ModelNotFound,
    ModelSwitching,
    Unloaded,
)
from ignisd.http import condition
from ignisd.http.serving import Engine, Facts, Place, Serving
from state.retained import Kind

_RETRY_S = 5


class Models(Protocol):
    """Who knows which models there are and loads them; calls are made on the event loop."""

    @property
    def implicit(self) -> bool:
        """Whether a request may switch by naming another model."""
        ...

    def names(self) -> Sequence[str]:
        """The names of all known models."""
        ...

    def bring(self, name: str | None, *, asked: bool = False) -> None:
        """See to it that a model is served soon; who waits in line for it is told.

        Args:
            name: of the model; None is the one that was served last.
            asked: a switch was asked for, and not only an answer.

        Raises:
            ModelNotFound: there is no such model, or a request may not switch to it.
            ModelSwitching: another one is being loaded.
        """
        ...

    def retry_after_s(self) -> int:
        """In how many seconds a model will probably be there."""
        ...


class ServicePhase(enum.StrEnum):
    """Where the daemon stands.

    LOADING at the start, then READY. From there by way of SWITCHING to READY, or by UNLOADING to
    UNLOADED and by WAKING back to READY. DRAINING and FAILED are the ends.
    """

    LOADING = "loading"
    READY = "ready"
    SWITCHING = "switching"
    UNLOADING = "unloading"
    UNLOADED = "unloaded"
    WAKING = "waking"
    DRAINING = "draining"
    FAILED = "failed"


RESTING = (ServicePhase.UNLOADING, ServicePhase.UNLOADED, ServicePhase.WAKING)
"""A request for an answer waits, as the model is loaded for it."""


@dataclass(slots=True)
class Tally:
    """Totals since the start.

    Args:
        loads: of models, by how they ended.
        load_s: time that took.
        unloads: by why.
        cut: requests that were cut off, by the code of the error that they were told.
    """

    loads: Counter[str] = field(default_factory=Counter)
    load_s: float = 0.0
    unloads: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is remembered of a model that was loaded: its context, and when that was."""

    context_tokens: int
    created_s: int


class Service:
    """The daemon as the handlers see it. It belongs to the event loop, and the daemon moves it.

    Args:
        name: of the model that is loaded first.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.phase = ServicePhase.LOADING
        self.progress = 0.0
        self.failure = ""
        self.target = name
        self.models: Models | None = None
        self.tally = Tally()
        self.num_entered = 0
        self.rested: EngineStats | None = None
        self.failures: dict[str, str] = {}
        self.seen: dict[str, Seen] = {}
        self._line: list[Place] = []
        self._serving: Serving | None = None

    @property
    def engine(self) -> Engine | None:
        """The engine, while there is one; it stays while draining."""
        return None if self._serving is None else self._serving.engine

    @property
    def model(self) -> ModelInfo | None:
        """The served model, while it is loaded."""
        return None if self._serving is None else self._serving.model

    @property
    def facts(self) -> Facts:
        """What loading settled; nothing while there is no model."""
        return Facts() if self._serving is None else self._serving.facts

    @property
    def exact(self) -> bool | None:
        """Whether reuse changes no bit on this backend; None until that has been probed."""
        return None if self._serving is None else not self.facts.inexact

    @property
    def degraded(self) -> Mapping[str, str]:
        """What does not work as it should at present although requests are answered, and why."""
        if self.engine is None:
            return {}
        return condition.degraded(self.engine.stats(), self.engine.world)

    @property
    def notes(self) -> Mapping[str, str]:
        """What works and is not as it could be, and why."""
        return condition.notes(self.facts.kv_ram)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a model."""
        return len(self._line)

    @property
    def names(self) -> Sequence[str]:
        """The known models, the one that is served or was last before the others."""
        known = () if self.models is None else self.models.names()
        return (self.name, *(name for name in known if name != self.name))

    def report_progress(self, progress: float) -> None:
        """How much of the model is loaded, 0 to 1."""
        self.progress = min(1.0, max(0.0, progress))

    def set_ready(self, engine: Engine, model: ModelInfo, facts: Facts | None = None) -> Serving:
        """Requests are served from now on, those first that wait for this model."""
        serving = Serving(engine, model, facts or Facts(), self._count_cut)
        self._serving, self.name, self.target = serving, model.name, model.name
        self.seen[model.name] = Seen(model.context_tokens, model.created_s)
        self.failures.pop(model.name, None)
        self.phase, self.progress = ServicePhase.READY, 1.0
        for place in list(self._line):
            if place.name in (None, model.name):
                place.grant(serving)
        return serving

    def set_switching(self, target: str) -> None:
        """Only requests for another model are taken from now on, and wait."""
        self._move(ServicePhase.SWITCHING)
        self.target, self.progress = target, 0.0

    def set_unloading(self) -> None:
        """The model is about to be unloaded; requests for answers wait from now on."""
        self._move(ServicePhase.UNLOADING)

    def set_unloaded(self) -> None:
        """No model is loaded, and none is on its way."""
        self._move(ServicePhase.UNLOADED)
        self.target = self.name

    def set_waking(self) -> None:
        """The model is being loaded again."""
        self._move(ServicePhase.WAKING)
        self.progress = 0.0

    def set_released(self, why: str) -> None:
        """The engine has stopped, and the model is gone; its totals stay."""
        assert self.engine is not None
        stats = self.engine.stats()
        self.rested = replace(stats, retained=dict.fromkeys(Kind, 0), retained_tokens=0)
        self._serving = None
        self.tally.unloads[why] += 1

    def set_draining(self) -> None:
        """New requests are refused from now on; those under way go on."""
        self._move(ServicePhase.DRAINING)
        self.refuse_waiting(Draining())

    def set_failed(self, message: str) -> None:
        """The daemon cannot serve any more; `message` says why, without paths or traces."""
        self.phase, self.failure = ServicePhase.FAILED, message
        self.refuse_waiting(self._failed())

    def refuse_waiting(self, error: IgnisError) -> None:
        """Tell all who wait that no model will come."""
        for place in list(self._line):
            place.refuse(error)

    def check(self) -> None:
        """Spare a request that cannot be served the sending of its body.

        Raises:
            Loading, ModelSwitching, Draining, EngineFailure: nothing serves, or will for it.
        """
        waits = self.phase in (ServicePhase.READY, *RESTING)
        if self.phase is ServicePhase.SWITCHING:
            waits = self.models is not None and self.models.implicit
        if not waits:
            raise self.refusal()

    def line_up(self, name: str | None = None, *, asked: bool = False) -> Place:
        """Wait for a model, and have it loaded if need be; there is no wait where it serves.

        Args:
            name: of the model; None is the one that serves or was the last to.
            asked: to switch is what the request is for.
        """
        place = Place(self._line, name)
        self.num_entered += 1
        try:
            self._bring(place, asked)
        except IgnisError as error:
            place.refuse(error)
        return place

    def _bring(self, place: Place, asked: bool) -> None:
        if self.phase in (ServicePhase.LOADING, ServicePhase.DRAINING, ServicePhase.FAILED):
            raise self.refusal()
        if self.phase is ServicePhase.READY and place.name in (None, self.name):
            place.grant(self.require())
        elif self.models is None:
            raise ModelNotFound(place.name or "", self.name)
        else:
            self.models.bring(place.name, asked=asked)

    def require(self) -> Serving:
        """What serves now, for a question that loads nothing.

        Raises:
            Loading, ModelSwitching, Unloaded, Draining, EngineFailure: nothing does.
        """
        match self.phase:
            case ServicePhase.READY:
                assert self._serving is not None
                return self._serving
            case ServicePhase.UNLOADING | ServicePhase.UNLOADED | ServicePhase.WAKING:
                raise Unloaded
            case _:
                raise self.refusal()

    def refusal(self) -> IgnisError:
        """Why a request is not served now, where it is refused at once."""
        match self.phase:
            case ServicePhase.SWITCHING:
                return ModelSwitching(self.target, retry_after_s=self.retry_after_s())
            case ServicePhase.DRAINING:
                return Draining()
            case ServicePhase.FAILED:
                return self._failed()
            case _:
                return Loading(self.progress, retry_after_s=self.retry_after_s())

    def retry_after_s(self) -> int:
        """In how many seconds a model will probably serve."""
        return _RETRY_S if self.models is None else self.models.retry_after_s()

    def _failed(self) -> EngineFailure:
        return EngineFailure(f"The engine has failed: {self.failure}.")

    def _count_cut(self, error: IgnisError) -> None:
        self.tally.cut[error.code] += 1

    def _move(self, phase: ServicePhase) -> None:
        """Nothing comes after the ends but failure."""
        if self.phase not in (ServicePhase.DRAINING, ServicePhase.FAILED):
            self.phase = phase
