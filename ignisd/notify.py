"""What the service manager is told: ready, alive, how it goes, stopping. See sd_notify(3).

Without a manager nothing is sent. The watchdog hears of the engine and not merely of the process:
it is fed while the engine is at rest, or has finished a round within the time a round may take.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Mapping

from ignisd.engine.stats import EngineStats
from ignisd.http.service import Service, ServicePhase

_EXTENSION_S = 120.0
"""How long a start may go on after the last word of it."""
_STALLED_LOAD_S = 900.0
"""A load whose progress stands still for so long is no longer vouched for."""
_LEAVING_S = 30.0
_LOADING = (ServicePhase.LOADING, ServicePhase.SWITCHING, ServicePhase.WAKING)
"""Phases in which, while there is no engine, a model is being loaded."""
_BEAT_S = 5.0
_SEND_S = 1.0


class Notifier:
    """Speaks to the service manager that started this process, if one did.

    Args:
        environ: NOTIFY_SOCKET says where; WATCHDOG_USEC and WATCHDOG_PID, how often.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # a name without a file
            self._address = "\0" + self._address[1:]
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        given = environ.get("WATCHDOG_USEC", "") if mine else ""
        self.watchdog_s = int(given) / 1e6 if given.isdecimal() and int(given) else None

    @property
    def listened_to(self) -> bool:
        """Whether a manager wants to hear."""
        return bool(self._address)

    @property
    def beat_s(self) -> float:
        """Time between two words: twice and a half per watchdog period at the least."""
        return _BEAT_S if self.watchdog_s is None else min(_BEAT_S, self.watchdog_s / 2.5)

    def tell(self, *lines: str) -> None:
        """Send assignments like `READY=1`. A manager that does not listen stops nobody."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(_SEND_S)
            with contextlib.suppress(OSError):
                sock.sendto("\n".join(lines).encode(), self._address)

    def tell_stopping(self, drain_s: float) -> None:
        """That the end has begun, and how long it may take: `drain_s` and the leaving itself."""
        self.tell("STOPPING=1", f"EXTEND_TIMEOUT_USEC={(drain_s + _LEAVING_S) * 1e6:.0f}")


def words_for(service: Service, *, round_limit_ms: float, stalled_s: float) -> tuple[str, ...]:
    """What to tell in one beat.

    Args:
        service: the daemon as it stands.
        round_limit_ms: the longest that one round may take; without progress for longer, the
            watchdog goes hungry.
        stalled_s: for how long loading has made no progress.
    """
    if service.phase is ServicePhase.FAILED:
        return (f"STATUS={service.failure}",)
    if service.engine is None:
        status = f"STATUS={_engineless_line(service)}"
        loads = service.phase in _LOADING
        if loads and stalled_s >= _STALLED_LOAD_S:
            return (status,)
        if service.phase is ServicePhase.LOADING:
            return (status, f"EXTEND_TIMEOUT_USEC={_EXTENSION_S * 1e6:.0f}")
        return (status, "WATCHDOG=1")
    stats = service.engine.stats()
    status = f"STATUS={status_line(service, stats)}"
    advancing = stats.alive and (not stats.busy or stats.idle_ms <= round_limit_ms)
    return (status, "WATCHDOG=1") if advancing else (status,)


def _engineless_line(service: Service) -> str:
    """The same while no model is loaded."""
    if service.phase in (ServicePhase.UNLOADING, ServicePhase.UNLOADED):
        return f"unloaded {service.name}, until a request comes"
    if service.phase in _LOADING:
        return f"loading {service.target}, {service.progress:.0%}"
    return f"{service.phase} {service.name}"


def status_line(service: Service, stats: EngineStats) -> str:
    """One line for `systemctl status`: who is served, and the part of all prompts not read."""
    counters = stats.counters
    asked = sum(counters.prompt_tokens.values())
    reused = asked - counters.computed_tokens
    what = f"{service.phase} {service.name}"
    if service.phase is ServicePhase.SWITCHING:
        what += f" to {service.target}"
    num_running = stats.num_prefilling + stats.num_decoding
    line = f"{what}: {num_running} running, {stats.num_queued} waiting"
    if service.degraded:
        line += f", degraded: {' '.join(service.degraded)}"
    if service.exact is False:
        line += ", exact off"
    if asked:
        line += f", {reused / asked:.0%} of {asked} prompt tokens reused"
    return line


async def keep_telling(notifier: Notifier, service: Service, round_limit_ms: float) -> None:
    """Tell at every beat until cancelled; nothing to do where nobody listens."""
    progress, since_s = service.progress, time.monotonic()
    while notifier.listened_to:
        if service.progress != progress:
            progress, since_s = service.progress, time.monotonic()
        stalled_s = time.monotonic() - since_s
        notifier.tell(*words_for(service, round_limit_ms=round_limit_ms, stalled_s=stalled_s))
        await asyncio.sleep(notifier.beat_s)
