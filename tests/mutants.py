"""Faults planted on purpose, one at a time, to show that the tests would see them.

A mutant (`tests/faults_*.py`) replaces a piece of the product by one that is wrong in a way that
was seen elsewhere. A detector is a test without arguments, or a stretch of random traffic.
`python -m tests.mutants` plants each fault, runs every detector, and prints a table of which of
them fail; a fault that none notices is marked and makes the exit status 1. With `--cases` only
the scenarios of `tests/cases` are run.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from tests import faults_engine, faults_reuse
from tests.cases.collect import scenarios
from tests.engine import test_reuse, test_scheduler
from tests.engine.simulation import Simulation
from tests.planting import CLAIMS, MUTANTS, Mutant, notices

NUM_SEEDS = 60
SHOWN = 4

__all__ = ["CLAIMS", "MUTANTS", "Mutant", "detectors", "notices", "random_traffic"]
FAULTS = (faults_engine, faults_reuse)


@dataclass(frozen=True)
class Detector:
    """Something that raises when it sees a fault."""

    name: str
    run: Callable[[], object]


def random_traffic() -> None:
    """Play some seeds of the simulation."""
    for seed in range(NUM_SEEDS):
        Simulation(seed).run()


def detectors(*, cases_only: bool = False) -> Iterator[Detector]:
    """The scenarios that are quick, the tests of the scheduler, then random traffic."""
    for claim in scenarios():
        yield Detector(claim.test.__name__, claim.test)
    if cases_only:
        return
    for module in (test_reuse, test_scheduler):
        for name, test in _tests_of(module):
            yield Detector(name, test)
    yield Detector(random_traffic.__name__, random_traffic)


def _tests_of(module: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    for name, value in vars(module).items():
        if name.startswith("test_") and not value.__code__.co_argcount:
            yield name, value


def main(arguments: list[str]) -> int:
    """Print which detectors see each fault."""
    missed = 0
    for name, planted in MUTANTS.items():
        tried = list(detectors(cases_only="--cases" in arguments))
        seen = [one.name for one in tried if notices(one.run, planted)]
        missed += not seen
        print(f"{name}: {planted.what}")
        shown = seen[:SHOWN] + [one for one in seen[SHOWN:] if one == random_traffic.__name__]
        print(f"    {len(seen)} of {len(tried)}: {', '.join(shown) or 'NOT NOTICED'}", flush=True)
    print(f"{len(MUTANTS)} faults planted, {missed} not noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
