"""Each planted fault is noticed; so the tests of the engine can fail."""

import pytest

from tests import faults_engine
from tests.cases.collect import scenarios
from tests.mutants import MUTANTS, detectors, notices, random_traffic
from tests.noticed import TRIED_FIRST

CLAIMED = {fault for real in (False, True) for one in scenarios(real=real) for fault in one.faults}
"""Faults that a scenario names; `tests/cases/test_claims.py` shows that it fails under them."""

BOOKKEEPING = {
    name for name, planted in MUTANTS.items() if planted.plant.__module__ == faults_engine.__name__
}
NEEDS_A_COUNT = {"claim-consumes", "everybody-leads"}
"""Faults that change no answer: only a test that counts hits or rows can see them."""
MET_SELDOM = {"followers-never-wake"}
"""Faults that one run in some two hundred meets; a scenario names them, and fails under them."""


@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - CLAIMED))
def test_a_test_notices(name: str) -> None:
    assert any(notices(detector.run, MUTANTS[name]) for detector in detectors(MUTANTS[name]))


@pytest.mark.parametrize("name", sorted(BOOKKEEPING - NEEDS_A_COUNT - MET_SELDOM))
def test_random_traffic_notices(name: str) -> None:
    assert notices(random_traffic, MUTANTS[name])


def test_whom_a_fault_is_tried_on_first_is_among_its_detectors() -> None:
    assert TRIED_FIRST.keys() <= MUTANTS.keys()
    for name, first in TRIED_FIRST.items():
        assert next(iter(detectors(MUTANTS[name]))).name == first, name


def test_what_random_traffic_meets_seldom_is_named_by_a_scenario() -> None:
    assert MET_SELDOM <= CLAIMED
