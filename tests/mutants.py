"""Faults planted on purpose, one at a time, to show that the tests would see them.

A mutant (`tests/faults_*.py`) replaces a piece of the product by one that is wrong in a way that
was seen elsewhere. A detector is a test without arguments, or a stretch of random traffic.
`python -m tests.mutants` plants each fault and prints a table of the detectors that fail under it:
those that say so, or else the first that does. With `--all` every detector is tried. A fault that
none notices is marked and makes the exit status 1.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from tests import (
    faults_advise,
    faults_arena,
    faults_control,
    faults_device,
    faults_disk,
    faults_engine,
    faults_evicted,
    faults_found,
    faults_http,
    faults_lifecycle,
    faults_plan,
    faults_restart,
    faults_retention,
    faults_reuse,
    faults_tiers,
)
from tests.advise import test_replay
from tests.cases.collect import scenarios
from tests.engine import (
    test_ageing,
    test_ahead,
    test_beside,
    test_control,
    test_demotion,
    test_leaving,
    test_restored,
    test_reuse,
    test_scheduler,
    test_tiers,
    test_totals,
)
from tests.engine.simulation import Simulation
from tests.http import test_control_stories
from tests.lifecycle import test_rest, test_switch
from tests.noticed import TRIED_FIRST
from tests.plan import test_rates, test_tier_plan, test_ttl
from tests.planting import CLAIMS, MUTANTS, Claim, Mutant, notices
from tests.state.tiers import (
    test_arena,
    test_arena_machine,
    test_disk_machine,
    test_files,
    test_format,
    test_index,
    test_jobs,
    test_memory,
    test_shelf,
)

NUM_SEEDS = 60
SHOWN = 4
FAULTS = (
    faults_advise,
    faults_arena,
    faults_control,
    faults_device,
    faults_disk,
    faults_engine,
    faults_evicted,
    faults_found,
    faults_http,
    faults_lifecycle,
    faults_plan,
    faults_restart,
    faults_retention,
    faults_reuse,
    faults_tiers,
)
OWN_TESTS = {
    faults_advise.__name__: (test_replay,),
    faults_arena.__name__: (test_index, test_arena, test_memory, test_arena_machine),
    faults_control.__name__: (test_control, test_totals, test_control_stories),
    faults_plan.__name__: (test_ttl, test_tier_plan, test_rates),
    faults_evicted.__name__: (test_ageing, test_leaving, test_tiers, test_ahead),
    faults_found.__name__: (test_restored, test_tiers, test_ahead),
    faults_tiers.__name__: (test_tiers, test_ahead, test_demotion),
    faults_lifecycle.__name__: (test_switch, test_rest),
    faults_device.__name__: (test_beside,),
    faults_disk.__name__: (test_shelf, test_format, test_files, test_jobs, test_disk_machine),
}
"""Where the detectors of a module's faults are, for those that the scheduler cannot see."""

__all__ = ["CLAIMS", "FAULTS", "MUTANTS", "Mutant", "detectors", "notices", "random_traffic"]


@dataclass(frozen=True)
class Detector:
    """Something that raises when it sees a fault."""

    name: str
    run: Callable[[], object]


def random_traffic() -> None:
    """Play some seeds of the simulation."""
    for seed in range(NUM_SEEDS):
        Simulation(seed).run()


def detectors(planted: Mutant) -> list[Detector]:
    """The tests of the scheduler, which are quick, random traffic, then the scenarios; where the
    fault's module has tests of its own, these. The one that is known to notice it comes first.
    """
    known = TRIED_FIRST.get(planted.name)
    return sorted(_all_detectors(planted), key=lambda one: one.name != known)


def _all_detectors(planted: Mutant) -> Iterator[Detector]:
    own = OWN_TESTS.get(planted.plant.__module__)
    for module in own or (test_scheduler, test_reuse):
        for name, test in _tests_of(module):
            yield Detector(name, test)
    if own is None:
        yield Detector(random_traffic.__name__, random_traffic)
        yield from map(_detector, scenarios())


def _detector(claim: Claim) -> Detector:
    return Detector(claim.test.__name__, claim.test)


def _tests_of(module: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    for name, value in vars(module).items():
        if name.startswith("test_") and not value.__code__.co_argcount:
            yield name, value


def seen_by(planted: Mutant, *, all_of_them: bool) -> list[str]:
    """The detectors that fail under a fault."""
    claims = [*scenarios(), *scenarios(real=True)]
    tried = [_detector(claim) for claim in claims if planted.name in claim.faults]
    if all_of_them:
        claimed = {one.name for one in tried}
        tried += [one for one in detectors(planted) if one.name not in claimed]
    seen = [one.name for one in tried if notices(one.run, planted)]
    if not seen and not all_of_them:
        first = (one.name for one in detectors(planted) if notices(one.run, planted))
        seen = [name for name in (next(first, None),) if name is not None]
    return seen


def main(arguments: list[str]) -> int:
    """Print which detectors see each fault."""
    missed = 0
    for name, planted in MUTANTS.items():
        seen = seen_by(planted, all_of_them="--all" in arguments)
        missed += not seen
        shown = seen[:SHOWN] + [one for one in seen[SHOWN:] if one == random_traffic.__name__]
        more = f" and {len(seen) - len(shown)} more" if len(seen) > len(shown) else ""
        print(
            f"| {name} | {planted.what} | {', '.join(shown) or 'NOT NOTICED'}{more} |", flush=True
        )
    print(f"\n{len(MUTANTS)} faults planted, {missed} not noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
