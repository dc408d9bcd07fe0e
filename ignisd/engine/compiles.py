"""Counts what the compiler is asked for; after the first request it should be nothing."""

import jax.monitoring

_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileCounter:
    """Programs that this process compiled while counting.

    jax reports them by name of an event and has no way to stop listening, so that a process makes
    one counter.
    """

    def __init__(self) -> None:
        self._counting = False
        self.num_compiles = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def start_counting(self) -> None:
        """Everything is compiled: what comes now comes too late."""
        self._counting = True

    def stop_counting(self) -> None:
        """Another model is about to be compiled."""
        self._counting = False

    def _heard(self, event: str, duration_secs: float, **_: str | int) -> None:
        if self._counting and event == _EVENT:
            self.num_compiles += 1
