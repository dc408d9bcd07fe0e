"""Each planted fault is noticed; so the tests of the engine can fail."""

import pytest

from tests.mutants import MUTANTS, detectors, notices, random_traffic

NEEDS_A_COUNT = {"claim-consumes", "everybody-leads"}
"""Faults that change no answer: only a test that counts hits or rows can see them."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_test_notices(name: str) -> None:
    assert any(notices(detector.run, MUTANTS[name]) for detector in detectors())


@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - NEEDS_A_COUNT))
def test_random_traffic_notices(name: str) -> None:
    assert notices(random_traffic, MUTANTS[name])
