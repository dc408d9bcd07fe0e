"""A model held and run by this process: loaded on a thread, served by an engine, given back."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from ignisd import log
from ignisd.advise.record import Recorder, recorder_of
from ignisd.catalog import Known
from ignisd.chat.checkpoint import ModelInfo
from ignisd.engine.compiles import CompileCounter
from ignisd.engine.files import FileThreads
from ignisd.engine.loop import Engine
from ignisd.engine.types import Finish, Runner
from ignisd.engine.world import World
from ignisd.errors import Draining, IgnisError
from ignisd.http.service import Service
from ignisd.http.serving import Facts, Serving
from ignisd.live import LiveSettings, live_limits
from ignisd.load_times import LoadTimes
from ignisd.settings import Settings

T = TypeVar("T")

ROUND_TIMEOUT_MS = 300_000.0
"""The longest chunk of a large model on a slow processor takes about a minute."""

_log = logging.getLogger("ignisd.lifecycle")


def _ended(recorder: Recorder | None, finish: Finish) -> None:
    """A request has ended: the log and the trace are told."""
    log.done(finish)
    if recorder is not None:
        recorder.ended(finish)


class Model(Protocol):
    """A loaded model."""

    @property
    def info(self) -> ModelInfo:
        """What HTTP needs of it."""
        ...

    @property
    def world(self) -> World:
        """As the engine takes it."""
        ...

    @property
    def runner(self) -> Runner:
        """As the engine takes it."""
        ...

    @property
    def files(self) -> FileThreads | None:
        """The threads of kv_disk; None where it is off."""
        ...

    @property
    def drain_ms(self) -> float:
        """How long retained state may take to be written out before it is closed."""
        ...

    @property
    def facts(self) -> Facts:
        """What the control plane tells of it."""
        ...

    def close(self) -> bool:
        """Give back what it holds; False where a thread is stuck that still uses it."""
        ...


class Loader(Protocol):
    """Who loads models; called on threads, one call at a time."""

    def check(self, settings: Settings) -> None:
        """See whether a model could be loaded; raises ConfigError."""
        ...

    def load(self, settings: Settings, report: Callable[[float], None]) -> Model:
        """Load it; raises ConfigError, or whatever else goes wrong."""
        ...

    def free(self) -> None:
        """Give back to the system what closed models left behind."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """A model that serves."""

    model: Model
    engine: Engine
    turning: "asyncio.Task[None]"
    serving: Serving


@dataclass(frozen=True, slots=True)
class Choice:
    """A model, and the settings that it was loaded with or is to be."""

    known: Known
    settings: Settings


class Holder:
    """Holds one model at most; the steps of every change.

    Attributes:
        held: the model that serves; None where none does.
        last: what serves, or did before memory was given back.
        times: how long loading takes.
        reads: whether a thread reads a model, which need not be waited for when the process ends.
        stopping: set when the process is about to end.
        died: why the process cannot go on.

    Args:
        live: the settings; what waits for a load comes into force with it.
        service: told of every step.
        loader: loads models.
        compiles: counts while a model serves.
        first: the model that is loaded first.
        clock_s, clock_ms: time that never runs backwards; the second is the engine's.
    """

    def __init__(
        self,
        live: LiveSettings,
        service: Service,
        loader: Loader,
        compiles: CompileCounter,
        first: Known,
        *,
        clock_s: Callable[[], float],
        clock_ms: Callable[[], float],
    ) -> None:
        self._live = live
        self._service = service
        self._loader = loader
        self._compiles = compiles
        self._clock_s = clock_s
        self._clock_ms = clock_ms
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="ignisd-load")
        self.held: Held | None = None
        self.last = Choice(first, live.settings)
        self.times = LoadTimes(clock_s)
        self.reads = False
        self.stopping = asyncio.Event()
        self.died: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        live.on_change(self._adjust)

    @property
    def ending(self) -> bool:
        """Whether no model is to be loaded any more."""
        return self.stopping.is_set() or self.died.done()

    @property
    def busy(self) -> bool:
        """Whether somebody prepares a request for the model, or it answers one."""
        held = self.held
        return held is not None and bool(held.serving.num_claims or held.engine.world.sequences)

    async def check(self, choice: Choice) -> "asyncio.Future[None]":
        """The end of finding out whether a model could be loaded."""
        return await self._in_thread(partial(self._loader.check, choice.settings), reads=True)

    async def load(self, choice: Choice) -> "asyncio.Future[Model]":
        """The end of loading a model, well or not.

        Raises:
            Draining: the process is about to end.
        """
        if self.ending:
            raise Draining
        loop = asyncio.get_running_loop()
        self._compiles.stop_counting()
        self._service.report_progress(0.0)
        self.times.begin(choice.known.name)

        def report(progress: float) -> None:
            loop.call_soon_threadsafe(self._service.report_progress, progress)

        work = partial(self._loader.load, choice.settings, report)
        loading = await self._in_thread(work, reads=True)
        loaded = loading.exception() is None
        self._service.tally.load_s += self.times.end(loaded=loaded)
        self._service.tally.loads["loaded" if loaded else "failed"] += 1
        return loading

    def serve(self, model: Model, choice: Choice) -> None:
        """Have an engine run a model, which goes on with the totals of the one before it."""
        rested, settings = self._service.rested, self._live.settings
        world = model.world
        if rested is not None:
            world = replace(world, counters=rested.counters)
        recorder = recorder_of(settings.trace_path, model.info.name, model.facts)
        engine = Engine(
            world,
            model.runner,
            clock=self._clock_ms,
            queue_limit=settings.server_queue,
            check=settings.check,
            watch=recorder,
            on_finish=partial(_ended, recorder),
            on_notice=log.warn,
            late_compiles=lambda: self._compiles.num_compiles,
            round_timeout_ms=ROUND_TIMEOUT_MS,
            files=model.files,
            drain_ms=model.drain_ms,
        )
        # They may have been changed while the model was loaded.
        engine.adjust(settings.server_queue, **live_limits(settings))
        turning = asyncio.create_task(engine.run(), name="engine")
        if recorder is not None:
            turning.add_done_callback(lambda _: recorder.close())
        self.follow(turning)
        self._compiles.start_counting()
        self._live.loaded(choice.settings)
        self.last = choice
        serving = self._service.set_ready(engine, model.info, model.facts)
        self.held = Held(model, engine, turning, serving)
        log.write(
            _log,
            logging.INFO,
            "ready",
            model=model.info.name,
            context=model.info.context_tokens,
            exact="off" if model.facts.inexact else "on",
        )

    async def release(self, why: str, grace_s: float, cut: Callable[[], IgnisError]) -> None:
        """Stop the engine and give back all that its model holds.

        Args:
            why: for the totals.
            grace_s: how long requests may go on.
            cut: what those are told that are left then.

        Raises:
            Draining: the process is about to end, which has the rest of it done.
        """
        began_s = self._clock_s()
        assert self.held is not None, "nothing to release"
        self.held.serving.closing = cut
        unclaimed = asyncio.create_task(self.held.serving.unclaimed())
        stopping = asyncio.create_task(self.stopping.wait())
        await asyncio.wait(
            {unclaimed, stopping}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED
        )
        unclaimed.cancel()
        stopping.cancel()
        await self.finish(max(grace_s - (self._clock_s() - began_s), 0.0))
        if self.ending:
            raise Draining
        model, self.held = self.held.model, None
        self._service.set_released(why)
        if not (await self._in_thread(model.close)).result():
            raise RuntimeError("a file of kv_disk has been under way for too long")
        del model  # what this frame holds is not freed
        (await self._in_thread(self._loader.free)).result()
        took_s = round(self._clock_s() - began_s, 1)
        log.write(_log, logging.INFO, "released", reason=why, seconds=took_s)

    async def finish(self, grace_s: float) -> None:
        """Let the engine end what runs, or cut it off, and write out what is retained."""
        if self.held is not None:
            await self.held.engine.stop(grace_s * 1000.0)
            await asyncio.wait({self.held.turning})
            self._ended(self.held.turning)

    async def close(self) -> bool:
        """Give back what the process would keep; False where a thread cannot be ended."""
        closed = not self.died.done()
        if closed and self.held is not None:
            closed = (await self._in_thread(self.held.model.close)).result()
        self._threads.shutdown(wait=False)
        return closed

    def follow(self, task: "asyncio.Task[None]") -> None:
        """Take a task's failure for the end of the process."""
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.died.done():
            self.died.set_result(error)

    def _adjust(self, now: Settings) -> None:
        """Settings have been changed that the engine follows."""
        if self.held is not None:
            self.held.engine.adjust(now.server_queue, **live_limits(now))

    async def _in_thread(
        self, work: Callable[[], T], *, reads: bool = False
    ) -> "asyncio.Future[T]":
        """The end of some work on a thread, well or not."""
        self.reads = reads
        done = asyncio.get_running_loop().run_in_executor(self._threads, work)
        await asyncio.wait({done})
        self.reads = False
        return done
