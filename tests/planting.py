"""How a fault is planted, and how it may show."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from ignisd.errors import EngineFailure
from state.pages import PagesExhausted
from state.tiers.format import StateCorrupt
from tests.fake_device import Disagreement

FAILURES = (
    AssertionError,
    Disagreement,
    EngineFailure,
    PagesExhausted,
    pytest.fail.Exception,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    StateCorrupt,
    TypeError,
    ValueError,
)
"""How a fault may show."""


@dataclass(frozen=True)
class Mutant:
    """One planted fault: `plant` gives a context in which it is there."""

    name: str
    what: str
    plant: Callable[[], AbstractContextManager[Any]]


MUTANTS: dict[str, Mutant] = {}


def mutant(plant: Callable[[], AbstractContextManager[Any]]) -> None:
    """Register a function that plants what its docstring says."""
    name = plant.__name__.replace("_", "-")
    MUTANTS[name] = Mutant(name, (plant.__doc__ or "").splitlines()[0], plant)


def notices(detector: Callable[[], object], planted: Mutant) -> bool:
    """Whether a detector fails while the fault is there."""
    with planted.plant():
        try:
            detector()
        except FAILURES:
            return True
    return False


def catches(*faults: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Say which planted faults a test must notice, one by one."""

    def mark(test: Callable[[], None]) -> Callable[[], None]:
        known = CLAIMS.get(test.__name__)
        assert known is None or known.test.__module__ != test.__module__, f"{test.__name__} twice"
        CLAIMS[test.__name__] = Claim(test, faults)
        return test

    return mark


@dataclass(frozen=True)
class Claim:
    """A test, and the faults that it says it notices."""

    test: Callable[[], None]
    faults: tuple[str, ...]


CLAIMS: dict[str, Claim] = {}
