"""Faults in traces and in what is made of them."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from ignisd.advise import record, replay, trace
from ignisd.advise.record import Recorder
from tests.planting import mutant

Plant = AbstractContextManager[Any]


@mutant
def who_left_is_not_recorded() -> Plant:
    """Requests that were cancelled run to their end when the trace is followed."""
    real = trace.Turn

    def turn(planned_ms: float, came: Any, left: Any, committed_ms: Any) -> Any:
        return real(planned_ms, came, [], committed_ms)

    return patch.object(record, "Turn", turn)


@mutant
def commits_are_not_recorded() -> Plant:
    """The turns of a trace have no commits."""
    return patch.object(Recorder, "committing", lambda self, now_ms: None)


@mutant
def pages_are_named_by_themselves() -> Plant:
    """The names of pages are their digests, against which a prompt can be tried."""
    return patch.object(Recorder, "_name", lambda self, digest: digest[:12].hex())


@mutant
def the_recorded_setting_is_not_followed() -> Plant:
    """A trace is followed without its retention interval."""
    real = replay.recorded

    def recorded(head: Any) -> Any:
        setting = real(head)
        return replay.Setting(0, setting.host_slots, setting.num_cells)

    return patch.object(replay, "recorded", recorded)
