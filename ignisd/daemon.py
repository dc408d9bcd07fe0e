"""The process: one event loop that listens at once, loads in a thread, serves, and drains."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

from hypercorn.asyncio import serve as serve_http
from hypercorn.config import Config

from ignisd import log
from ignisd.engine.compiles import CompileCounter
from ignisd.engine.loop import Engine
from ignisd.http.app import build_app
from ignisd.http.counters import HttpCounters
from ignisd.http.options import HttpOptions
from ignisd.http.service import Service
from ignisd.load import Loaded, find_model, load_model
from ignisd.resolve import Resolved
from ignisd.settings import Settings

_log = logging.getLogger("ignisd.daemon")

_KEEP_ALIVE_S = 75.0
_BACKLOG = 1024
_ROUND_TIMEOUT_MS = 300_000.0
"""The longest chunk of a large model on a slow processor takes about a minute."""
_LAST_WORDS_S = 2.0
"""How long readers and health checks may still learn that the engine has died."""


def serve(resolved: Resolved, environ: Mapping[str, str]) -> int:
    """Runs the daemon until it is told to stop; returns the process's exit status.

    Raises:
        ConfigError: the settings or the checkpoint cannot be served.
    """
    settings = resolved.settings
    log.configure(settings.log_level, settings.log_format, journal="JOURNAL_STREAM" in environ)
    # What a library has to say of itself interests nobody unless it warns.
    logging.getLogger("jax").setLevel(logging.WARNING)
    for warning in resolved.warnings:
        log.write(_log, logging.WARNING, "settings", warning=warning)
    daemon = _Daemon(settings, environ)
    status = asyncio.run(daemon.run())
    if daemon.leaves_thread:
        # A thread that compiles, or that waits for a stuck device, cannot be stopped, and an
        # ordinary exit would wait for it.
        logging.shutdown()
        os._exit(status)
    return status


class _Daemon:
    """One run of the process."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self._stop = asyncio.Event()
        self._closed = asyncio.Event()
        name, _ = find_model(settings.model, settings.models_dir)
        self._service = Service(name)
        self._compiles = CompileCounter()
        self.leaves_thread = False
        self._began_s = time.monotonic()

    async def run(self) -> int:
        """Listens, loads, serves until stopped, drains."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        listening = asyncio.create_task(self._listen(), name="http")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
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
            await asyncio.gather(listening, stopping, return_exceptions=True)

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
            partial(load_model, self._settings, self._environ, lambda: datetime.now(UTC), report),
        )

    async def _serve(
        self, loaded: Loaded, listening: "asyncio.Task[None]", stopping: "asyncio.Task[bool]"
    ) -> int:
        settings = self._settings
        engine = Engine(
            loaded.world,
            loaded.runner,
            clock=lambda: time.monotonic() * 1000.0,
            queue_limit=settings.server_queue,
            check=settings.check,
            on_finish=log.done,
            late_compiles=lambda: self._compiles.num_compiles,
            round_timeout_ms=_ROUND_TIMEOUT_MS,
        )
        turning = asyncio.create_task(engine.run(), name="engine")
        self._compiles.start_counting()
        self._service.set_ready(engine, loaded.info)
        log.write(
            _log,
            logging.INFO,
            "ready",
            model=loaded.info.name,
            bind=str(settings.server_bind),
            context=loaded.info.context_tokens,
            exact="off" if loaded.inexact else "on",
            seconds=round(time.monotonic() - self._began_s, 1),
        )
        await asyncio.wait({turning, listening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if turning.done():
            return await self._bury(turning)
        self._service.set_draining()
        log.write(_log, logging.INFO, "draining", limit_s=settings.server_drain_timeout)
        await engine.stop(settings.server_drain_timeout * 1000.0)
        if turning.exception() is not None:
            return await self._bury(turning)
        return 0 if self._stop.is_set() else 1

    async def _bury(self, turning: "asyncio.Task[None]") -> int:
        """The engine is dead: say so, let answers under way end with their error, and leave."""
        self.leaves_thread = True
        self._service.set_failed("the engine has died; see the log")
        _log.error("the engine has died", exc_info=turning.exception())
        await asyncio.sleep(_LAST_WORDS_S)
        return 1

    async def _listen(self) -> None:
        settings = self._settings
        keys = () if settings.server_api_key is None else (settings.server_api_key,)
        options = HttpOptions(api_keys=keys, request_timeout_s=settings.server_request_timeout)
        config = Config()
        config.bind = [str(settings.server_bind)]
        config.keep_alive_timeout = _KEEP_ALIVE_S
        config.backlog = _BACKLOG
        config.include_server_header = False
        config.accesslog = None
        config.errorlog = logging.getLogger("ignisd.hypercorn")
        app = build_app(self._service, options, HttpCounters())
        await serve_http(app, config, shutdown_trigger=self._closed.wait)  # type: ignore[arg-type]
