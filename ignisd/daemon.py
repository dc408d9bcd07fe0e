"""The process: one event loop that listens at once, loads in a thread, serves, and drains."""

import asyncio
import faulthandler
import logging
import os
import signal
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from hypercorn.asyncio import serve as serve_http

from ignisd import log
from ignisd.catalog import Catalog
from ignisd.connections import LoopErrors, install, raise_descriptor_limit
from ignisd.engine.compiles import CompileCounter
from ignisd.errors import ConfigError
from ignisd.holder import ROUND_TIMEOUT_MS, Holder
from ignisd.http.app import build_app
from ignisd.http.counters import HttpCounters
from ignisd.http.keys import KeyRing
from ignisd.http.service import Service
from ignisd.lifecycle import Lifecycle
from ignisd.listen import (
    bind,
    bound_address,
    configured_keys,
    http_options,
    inherited,
    server_config,
)
from ignisd.live import LiveSettings
from ignisd.load import ModelLoader, clock_ms
from ignisd.notify import Notifier, keep_telling
from ignisd.resolve import Resolved
from ignisd.settings import Settings

_log = logging.getLogger("ignisd.daemon")

_ENDS = (signal.SIGTERM, signal.SIGINT)
_LAST_WORDS_S = 2.0
"""How long readers and health checks may still learn that the engine has died."""


def serve(resolved: Resolved, environ: Mapping[str, str]) -> int:
    """Runs the daemon until it is told to stop; returns the process's exit status.

    Raises:
        ConfigError: the settings or the checkpoint cannot be served.
    """
    _configure_log(resolved.settings, environ)
    faulthandler.enable()  # what a watchdog's SIGABRT leaves behind
    for warning in resolved.warnings:
        log.write(_log, logging.WARNING, "settings", warning=warning)
    install()
    raise_descriptor_limit()
    daemon = _Daemon(resolved, environ)
    status = asyncio.run(daemon.run())
    if daemon.leaves_thread:
        # A thread that compiles, or that waits for a stuck device, cannot be stopped, and an
        # ordinary exit would wait for it.
        logging.shutdown()
        os._exit(status)
    return status


class _Daemon:
    """One run of the process."""

    def __init__(self, resolved: Resolved, environ: Mapping[str, str]) -> None:
        settings = resolved.settings
        self._live = LiveSettings(resolved)
        self._live.on_change(partial(_configure_log, environ=environ))
        self._environ = environ
        self._stop = asyncio.Event()
        self._closed = asyncio.Event()
        self._catalog = Catalog(settings.model, settings.models_dir)
        self._service = Service(self._catalog.first.name)
        self._keys = KeyRing(configured_keys(settings))
        self._listener = inherited(settings.server_bind, environ) or bind(settings.server_bind)
        self._address = bound_address(self._listener)
        self._notifier = Notifier(environ)
        self._compiles = CompileCounter()
        self.leaves_thread = False
        self._began_s = time.monotonic()

    @property
    def _settings(self) -> Settings:
        """The settings in force."""
        return self._live.settings

    async def run(self) -> int:
        """Listens, loads, serves until stopped, drains."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(LoopErrors())
        for number in _ENDS:
            loop.add_signal_handler(number, self._begin_stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload_keys)
        lifecycle = self._lifecycle()
        listening = asyncio.create_task(self._listen(), name="http")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        telling = asyncio.create_task(
            keep_telling(self._notifier, self._service, ROUND_TIMEOUT_MS), name="notify"
        )
        try:
            starting = asyncio.create_task(lifecycle.start(), name="start")
            await self._first_of(listening, stopping, starting)
            if not starting.done():
                self.leaves_thread = True
                return 0 if self._stop.is_set() else 1
            self._say_ready()
            return await self._serve(lifecycle, listening, stopping)
        finally:
            self._closed.set()
            stopping.cancel()
            telling.cancel()
            await asyncio.gather(listening, stopping, telling, return_exceptions=True)

    def _lifecycle(self) -> Lifecycle:
        holder = Holder(
            self._live,
            self._service,
            ModelLoader(self._environ, lambda: datetime.now(UTC)),
            self._compiles,
            self._catalog.first,
            clock_s=time.monotonic,
            clock_ms=clock_ms,
        )
        return Lifecycle(self._live, self._service, self._catalog, holder, time.monotonic)

    def _begin_stop(self) -> None:
        """The first signal ends the process in order; with the second the system ends it at once.

        By its own means: this loop may be what hangs.
        """
        for number in _ENDS:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        self._stop.set()
        self._notifier.tell_stopping(ending_s(self._settings))

    @staticmethod
    async def _first_of(*tasks: "asyncio.Task[object]") -> None:
        """Waits for any of the tasks; one that failed raises here."""
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    def _say_ready(self) -> None:
        self._notifier.tell("READY=1")
        seconds = round(time.monotonic() - self._began_s, 1)
        log.write(_log, logging.INFO, "serving", bind=str(self._address), seconds=seconds)

    async def _serve(
        self,
        lifecycle: Lifecycle,
        listening: "asyncio.Task[None]",
        stopping: "asyncio.Task[bool]",
    ) -> int:
        ends: tuple[asyncio.Future[Any], ...] = (lifecycle.died, listening, stopping)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not lifecycle.died.done():
            drain_s = self._settings.server_drain_timeout
            log.write(_log, logging.INFO, "draining", limit_s=drain_s)
            self.leaves_thread = not await lifecycle.stop(drain_s)
        if lifecycle.died.done():
            return await self._bury(lifecycle.died.result())
        return 0 if self._stop.is_set() else 1

    async def _bury(self, error: BaseException) -> int:
        """The engine is dead: say so, let answers under way end with their error, and leave."""
        self.leaves_thread = True
        self._service.set_failed("the engine has died; see the log")
        _log.error("the engine has died", exc_info=error)
        await asyncio.sleep(_LAST_WORDS_S)
        return 1

    def _reload_keys(self) -> None:
        """SIGHUP: open to the keys of the file as it is now; one that is wrong changes nothing."""
        try:
            self._keys.replace(configured_keys(self._settings))
        except ConfigError as error:
            log.write(_log, logging.ERROR, "keys", kept=self._keys.num_keys, error=error.message)
        else:
            log.write(_log, logging.INFO, "keys", read=self._keys.num_keys)

    async def _listen(self) -> None:
        options = http_options(self._settings, self._keys)
        self._live.on_change(lambda now: options.follow(http_options(now, self._keys)))
        counters = HttpCounters()
        app = build_app(self._service, options, counters, self._live)
        config = server_config(self._listener, counters.count_refusal)
        await serve_http(app, config, shutdown_trigger=self._closed.wait)  # type: ignore[arg-type]


def _configure_log(settings: Settings, environ: Mapping[str, str]) -> None:
    log.configure(settings.log_level, settings.log_format, journal="JOURNAL_STREAM" in environ)
    # What a library has to say of itself interests nobody unless it warns.
    logging.getLogger("jax").setLevel(logging.WARNING)


def ending_s(settings: Settings) -> float:
    """How long the process may take from SIGTERM on: for running requests, then for files."""
    writes_out = settings.kv_disk_bytes > 0 and settings.kv_disk_persist
    return settings.server_drain_timeout + writes_out * settings.kv_disk_drain_ms / 1000.0
