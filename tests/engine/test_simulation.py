"""Random traffic: every answer equals the cold one, nothing leaks, everything ends."""

from collections import Counter

import pytest

from ignisd.engine.types import FinishReason, Phase
from state.retained import Kind
from tests.engine.simulation import Simulation

BATCH = 150


def play(first: int, count: int) -> Counter[str]:
    """Run seeds and add up what happened."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            simulation = Simulation(seed)
            outcome = simulation.run()
        except Exception as error:
            error.add_note(f"seed {seed}: Simulation({seed}).run()")
            raise
        counters = outcome.world.counters
        seen["requests"] += counters.submitted
        seen["served"] += counters.finished[FinishReason.LENGTH]
        seen["served"] += counters.finished[FinishReason.STOP]
        seen["hits"] += outcome.hits
        seen["late"] += counters.late_tokens
        seen["parks"] += counters.parks
        seen["interrupted"] += counters.captured[Kind.INTERRUPTED]
        seen["discarded"] += sum(counters.discarded.values())
        seen["skipped"] += sum(counters.skipped.values())
        seen["demoted"] += sum(counters.demoted.values())
        seen["restored"] += sum(counters.restored.values())
        seen["resumed"] += counters.resumed
        seen["recomputed"] += counters.recomputed
        seen["files written"] += counters.files_written
        seen["files read"] += counters.files_read
        seen["pinned"] += simulation.pins.num_made
        for phase in Phase:
            seen[f"cancelled {phase}"] += outcome.phases_cancelled[phase]
    return seen


@pytest.mark.parametrize("batch", range(3))
def test_random_traffic(batch: int) -> None:
    seen = play(batch * BATCH, BATCH)
    assert seen["hits"] >= seen["served"] // 10, seen
    never = [name for name in seen if not seen[name]]
    assert not never, f"never happened in {BATCH} runs: {never}"


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(3, 34))
def test_more_random_traffic(batch: int) -> None:
    play(batch * BATCH, BATCH)
