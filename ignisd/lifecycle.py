"""Which model is loaded, and how that changes: the first load, switching, resting, the end.

One change happens at a time, in a task of its own: whoever asked for it may leave, and who wants
the same waits with the others. All of it belongs to the event loop; models are read and given back
on threads.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ignisd import log
from ignisd.catalog import Catalog, Known
from ignisd.errors import Draining, IgnisError, LoadFailed, ModelNotFound, ModelSwitching
from ignisd.holder import Choice, Holder
from ignisd.http.service import Service, ServicePhase
from ignisd.live import LiveSettings

_WATCH_S = 1.0
_REST_GRACE_S = 1.0
_FOLDERS = re.compile(r"(?<![\w/])(?:/[^\s/:;,'\"]+)+/(?=[^\s/])")
"""The leading part of a path, which is nobody's business."""

_log = logging.getLogger("ignisd.lifecycle")


class Lifecycle:
    """Decides which model is held, and when.

    Args:
        live: the settings.
        service: asks for models, and is told what becomes of that.
        catalog: the models that there are.
        holder: holds the one that serves.
        clock_s: seconds that never run backwards.
    """

    def __init__(
        self,
        live: LiveSettings,
        service: Service,
        catalog: Catalog,
        holder: Holder,
        clock_s: Callable[[], float],
    ) -> None:
        self._live = live
        self._service = service
        self._catalog = catalog
        self._holder = holder
        self._clock_s = clock_s
        self._goal = catalog.first
        self._change: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._adjusted = asyncio.Event()
        service.models = self
        live.on_change(lambda now: self._adjusted.set())

    @property
    def implicit(self) -> bool:
        """Whether a request may switch by naming another model."""
        return self._live.settings.switch_allow_implicit

    @property
    def died(self) -> "asyncio.Future[BaseException]":
        """Why the process cannot go on."""
        return self._holder.died

    def names(self) -> Sequence[str]:
        """The names of all known models."""
        return [one.name for one in self._catalog.known()]

    def retry_after_s(self) -> int:
        """In how many seconds a model will probably be there."""
        return self._holder.times.left_s(self._goal.name, self._service.progress)

    async def start(self) -> None:
        """Load the first model.

        Raises:
            ConfigError: it cannot be served.
        """
        choice = Choice(self._catalog.first, self._live.for_load())
        self._holder.serve((await self._holder.load(choice)).result(), choice)
        self._watching = asyncio.create_task(self._watch(), name="idle")
        self._holder.follow(self._watching)

    def bring(self, name: str | None, *, asked: bool = False) -> None:
        """See to it that a model is served soon; see `Models`."""
        last = self._holder.last.known
        known = last if name in (None, last.name) else self._found(name or "", asked=asked)
        if self._change is None:
            self._begin(self._wake() if known is last else self._switch(known, asked), known)
        elif known.name != self._goal.name:
            raise ModelSwitching(self._goal.name, retry_after_s=self.retry_after_s())

    async def stop(self, drain_s: float) -> bool:
        """Finish what runs or cut it off, write out what is retained, and give all back.

        Returns:
            False where a thread is left that cannot be ended.
        """
        holder = self._holder
        holder.stopping.set()
        self._service.set_draining()
        if self._watching is not None:
            self._watching.cancel()
        await holder.finish(drain_s)
        change, reads = self._change, holder.reads
        if change is not None and reads:
            change.cancel()
        elif change is not None:
            await asyncio.wait({change})
        return await holder.close() and not reads

    def _found(self, name: str, *, asked: bool) -> Known:
        """A model other than the last.

        Raises:
            ModelNotFound: there is none, or a request may not switch to it.
        """
        known = self._catalog.find(name)
        if known is None or not (asked or self.implicit):
            served = self._holder.last.known.name
            raise ModelNotFound(name, served, [one for one in self.names() if one != served])
        return known

    def _begin(self, change: Coroutine[Any, Any, None], goal: Known) -> None:
        self._goal = goal
        self._change = asyncio.create_task(self._changed(change), name=f"to {goal.name}")
        self._holder.follow(self._change)

    async def _changed(self, change: Coroutine[Any, Any, None]) -> None:
        try:
            await change
        except IgnisError as error:
            self._service.refuse_waiting(error)
        finally:
            self._change = None

    async def _switch(self, known: Known, asked: bool) -> None:
        """Serve another model, or go on with what was there.

        Raises:
            LoadFailed, Draining: it does not come to it.
        """
        choice, last = Choice(known, self._live.for_load(known.setting)), self._holder.last
        if known.name in self._service.failures and not asked:
            raise self._refusal(known.name, self._service.failures[known.name])
        checked = await self._holder.check(choice)
        if checked.exception() is not None:
            self._service.tally.loads["refused"] += 1
            raise self._refusal(known.name, self._failed(choice, checked.exception()))
        self._service.set_switching(known.name)
        log.write(_log, logging.INFO, "switching", model=last.known.name, to=known.name)
        rested = self._holder.held is None
        if not rested:
            cut = partial(ModelSwitching, known.name, cut=True)
            await self._holder.release("switch", self._live.settings.switch_drain_timeout, cut)
        loading = await self._holder.load(choice)
        if loading.exception() is None:
            self._holder.serve(loading.result(), choice)
            return
        why = self._failed(choice, loading.exception())
        self._service.failures[known.name] = why
        if rested:
            self._service.set_unloaded()
        else:
            await self._go_back(last)
        raise self._refusal(known.name, why)

    async def _go_back(self, last: Choice) -> None:
        """Serve again what was given up for a model that turned out not to load."""
        loading = await self._holder.load(last)
        if loading.exception() is not None:
            raise RuntimeError(f"{last.known.name} does not load again") from loading.exception()
        self._holder.serve(loading.result(), last)

    async def _unload(self) -> None:
        """Give all memory back until a request comes, which may be meanwhile."""
        self._service.set_unloading()
        await self._holder.release("idle", _REST_GRACE_S, Draining)
        self._service.set_unloaded()
        if self._service.num_waiting:
            await self._wake()

    async def _wake(self) -> None:
        """Load the model again that was unloaded.

        What waits for a load and cannot be had is left waiting, rather than the requests.

        Raises:
            LoadFailed: it cannot be loaded any more.
        """
        last = self._holder.last
        choice = Choice(last.known, self._live.for_load())
        self._service.set_waking()
        loading = await self._holder.load(choice)
        if loading.exception() is not None and self._live.pending:
            self._failed(choice, loading.exception())
            choice = replace(last, settings=self._live.settings)
            loading = await self._holder.load(choice)
        if loading.exception() is not None:
            self._service.set_unloaded()
            raise LoadFailed(last.known.name, self._failed(choice, loading.exception()), None)
        self._holder.serve(loading.result(), choice)

    async def _watch(self) -> None:
        """Unload the model once no request has come for long enough."""
        entered, since_s = -1, self._clock_s()
        while True:
            limit_s = self._live.settings.idle_unload_after
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_WATCH_S, (limit_s or _WATCH_S) / 4)):
                    await self._adjusted.wait()
            self._adjusted.clear()
            now_s = self._clock_s()
            if self._holder.held is None or self._change is not None:
                continue
            if self._holder.busy or entered != self._service.num_entered:
                entered, since_s = self._service.num_entered, now_s
            elif limit_s is not None and now_s - since_s >= limit_s:
                self._begin(self._unload(), self._holder.last.known)

    def _failed(self, choice: Choice, error: BaseException | None) -> str:
        """Why a model cannot be loaded, for a client; the log has all of it."""
        name = choice.known.name
        if not isinstance(error, IgnisError):
            _log.error("load_failed model=%s", name, exc_info=error)
            return f"{type(error).__name__}; see the log of the server"
        log.write(_log, logging.ERROR, "load_failed", model=name, error=error.message)
        return _FOLDERS.sub("", error.message)

    def _refusal(self, name: str, why: str) -> LoadFailed:
        serves = self._service.phase is ServicePhase.READY
        return LoadFailed(name, why, self._service.name if serves else None)
