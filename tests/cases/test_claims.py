"""A scenario counts only if it can fail: each is run once under every fault that it names."""

import sys

import pytest

from tests.cases.collect import scenarios
from tests.mutants import CLAIMS, MUTANTS, notices

QUICK = [(claim.test.__name__, fault) for claim in scenarios() for fault in claim.faults]
REAL = [(claim.test.__name__, fault) for claim in scenarios(real=True) for fault in claim.faults]


@pytest.mark.parametrize(("scenario", "fault"), QUICK + REAL)
def test_a_scenario_fails_under_its_fault(scenario: str, fault: str) -> None:
    assert notices(CLAIMS[scenario].test, MUTANTS[fault])


def test_every_scenario_names_a_fault_and_there_are_enough_faults() -> None:
    claims = scenarios() + scenarios(real=True)
    claimed = {claim.test.__name__ for claim in claims if claim.faults}
    found = [
        name
        for module in {sys.modules[claim.test.__module__] for claim in claims}
        for name, value in vars(module).items()
        if name.startswith("test_") and value.__module__ == module.__name__
    ]
    assert set(found) == claimed
    assert len(MUTANTS) >= 25
