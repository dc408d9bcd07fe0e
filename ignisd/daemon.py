"""The process: one event loop that listens at once, loads in a thread, serves, and drains."""

import asyncio
import faulthandler
import logging
import os
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

from hypercorn.asyncio import serve as serve_http

from ignisd import log
from ignisd.connections import LoopErrors, install, raise_descriptor_limit
from ignisd.engine.compiles import CompileCounter
from ignisd.engine.loop import Engine
from ignisd.errors import ConfigError
from ignisd.http.app import build_app
from ignisd.http.counters import HttpCounters
from ignisd.http.keys import KeyRing
from ignisd.http.service import Facts, Service
from ignisd.listen import (
    bind,
    bound_address,
    configured_keys,
    http_options,
    inherited,
    server_config,
)
from ignisd.live import LiveSettings, live_limits
from ignisd.load import Loaded, clock_ms, load_model
from ignisd.notify import Notifier, keep_telling
from ignisd.planning import find_model
from ignisd.resolve import Resolved
from ignisd.settings import Settings

_log = logging.getLogger("ignisd.daemon")

_ROUND_TIMEOUT_MS = 300_000.0
"""The longest chunk of a large model on a slow processor takes about a minute."""
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
        name, _ = find_model(settings.model, settings.models_dir)
        self._service = Service(name)
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
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._begin_stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload_keys)
        listening = asyncio.create_task(self._listen(), name="http")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        telling = asyncio.create_task(
            keep_telling(self._notifier, self._service, _ROUND_TIMEOUT_MS), name="notify"
        )
        try:
            loading = asyncio.create_task(self._load(), name="load")
            await self._first_of(listening, stopping, loading)
            if not loading.done():
                self.leaves_thread = True
                return 0 if self._stop.is_set() else 1
            return await self._serve(loading.result(), listening, stopping)
        finally:
            self._closed.set()
            stopping.cancel()
            telling.cancel()
            await asyncio.gather(listening, stopping, telling, return_exceptions=True)

    def _begin_stop(self) -> None:
        self._stop.set()
        self._notifier.tell_stopping(ending_s(self._settings))

    @staticmethod
    async def _first_of(*tasks: "asyncio.Task[object]") -> None:
        """Waits for any of the tasks; one that failed raises here."""
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _load(self) -> Loaded:
        loop = asyncio.get_running_loop()

        def report(progress: float) -> None:
            loop.call_soon_threadsafe(self._service.report_progress, progress)

        return await loop.run_in_executor(
            ThreadPoolExecutor(1, thread_name_prefix="ignisd-load"),
            partial(
                load_model,
                self._live.take_pending(),
                self._environ,
                lambda: datetime.now(UTC),
                report,
            ),
        )

    async def _serve(
        self, loaded: Loaded, listening: "asyncio.Task[None]", stopping: "asyncio.Task[bool]"
    ) -> int:
        settings = self._settings

        def adjust(now: Settings) -> None:
            engine.adjust(now.server_queue, **live_limits(now))

        engine = Engine(
            loaded.world,
            loaded.runner,
            clock=clock_ms,
            queue_limit=settings.server_queue,
            check=settings.check,
            on_finish=log.done,
            on_notice=log.warn,
            late_compiles=lambda: self._compiles.num_compiles,
            round_timeout_ms=_ROUND_TIMEOUT_MS,
            files=None if loaded.disk is None else loaded.disk.threads,
            drain_ms=0.0 if loaded.disk is None else loaded.disk.drain_ms,
        )
        adjust(settings)  # they may have been changed while the model was loaded
        self._live.on_change(adjust)
        turning = asyncio.create_task(engine.run(), name="engine")
        self._compiles.start_counting()
        self._service.set_ready(engine, loaded.info, _facts(loaded))
        self._notifier.tell("READY=1")
        log.write(
            _log,
            logging.INFO,
            "ready",
            model=loaded.info.name,
            bind=str(self._address),
            context=loaded.info.context_tokens,
            exact="off" if loaded.inexact else "on",
            seconds=round(time.monotonic() - self._began_s, 1),
        )
        await asyncio.wait({turning, listening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if turning.done():
            return await self._bury(turning)
        self._service.set_draining()
        drain_s = self._settings.server_drain_timeout
        log.write(_log, logging.INFO, "draining", limit_s=drain_s)
        await engine.stop(drain_s * 1000.0)
        if turning.exception() is not None:
            return await self._bury(turning)
        self.leaves_thread = not loaded.close()
        return 0 if self._stop.is_set() else 1

    async def _bury(self, turning: "asyncio.Task[None]") -> int:
        """The engine is dead: say so, let answers under way end with their error, and leave."""
        self.leaves_thread = True
        self._service.set_failed("the engine has died; see the log")
        _log.error("the engine has died", exc_info=turning.exception())
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


def _facts(loaded: Loaded) -> Facts:
    """What the control plane tells of a loaded model."""
    plan = loaded.plan
    return Facts(
        page_bytes=plan.page_bytes,
        image_bytes=plan.image_bytes,
        inexact=loaded.inexact,
        memory=tuple((line.name, str(line.where), line.num_bytes) for line in plan.lines),
        settled=loaded.settled(),
        kv_ram=loaded.below.facts(),
        kv_disk=None if loaded.disk is None else loaded.disk.facts(),
    )
