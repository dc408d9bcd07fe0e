"""How long until a model serves: what clients that are turned away meanwhile are told to wait."""

import math
from collections.abc import Callable

_UNSEEN_S = 5.0
_MOST_S = 600


class LoadTimes:
    """Remembers what loading took, by model.

    Args:
        clock_s: seconds that never run backwards.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._seen_s: dict[str, float] = {}
        self._began_s: tuple[str, float] | None = None

    def begin(self, name: str) -> None:
        """The loading of a model begins."""
        self._began_s = (name, self._clock_s())

    def end(self, *, loaded: bool) -> float:
        """It has ended; what it took, in seconds."""
        assert self._began_s is not None, "the end of no load"
        name, began_s = self._began_s
        took_s = self._clock_s() - began_s
        if loaded:
            self._seen_s[name] = took_s
        self._began_s = None
        return took_s

    def left_s(self, name: str, progress: float) -> int:
        """Whole seconds until a model that is to be loaded probably serves, at least 1.

        As long as it took the last time, less what has passed; of one that was never loaded, as
        long as the slowest other one. Beyond that, and at the first load of all, by its progress.
        """
        seen_s = self._seen_s.get(name, max(self._seen_s.values(), default=None))
        if self._began_s is None:
            return _whole(_UNSEEN_S if seen_s is None else seen_s)
        passed_s = self._clock_s() - self._began_s[1]
        if seen_s is not None and passed_s < seen_s:
            return _whole(seen_s - passed_s)
        return _whole(passed_s * (1.0 - progress) / progress if progress > 0.0 else _UNSEEN_S)


def _whole(seconds: float) -> int:
    return min(max(math.ceil(seconds), 1), _MOST_S)
