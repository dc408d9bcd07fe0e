"""Pages are copied while a decode step runs that leaves them alone, else before it."""

import numpy as np
import pytest

from ignisd.engine.moves import Lower, Raise
from ignisd.engine.programs import empty_device
from ignisd.engine.runner import DeviceRunner
from ignisd.engine.types import DecodeLane, LaneStart, PrefillWork, Round, SamplingParams
from tests.engine.trees import NUM_SLOTS, model

GREEDY = SamplingParams(temperature=0.0)
TOKENS = np.arange(130, dtype=np.int32)
TABLE = (1, 2, 3)


def runner_with(num_cells: int) -> DeviceRunner:
    """Lane 0 has read 130 tokens into pages 1 to 3, and decodes."""
    served = model("ember")
    shape = served.shape
    page_bytes = served.spec.model.state_spec(served.spec.kv_format).page_bytes
    runner = DeviceRunner(
        served.params,
        shape,
        served.programs,
        empty_device(served.spec, shape),
        NUM_SLOTS - shape.num_device_slots,
        rows=np.full((num_cells, page_bytes), 7, np.uint8),
    )
    start = LaneStart(0, None, 0, GREEDY, TOKENS)
    work = PrefillWork(1, 0, TOKENS, 0, TABLE, (), last=True)
    runner.fetch(runner.run(Round(1, starts=(start,), prefill=work)))
    return runner


def cell_of(runner: DeviceRunner, cell: int) -> bytes:
    """What a cell holds."""
    assert runner.cells is not None
    return bytes(runner.cells.rows[cell].tobytes())


STEP = DecodeLane(1, 0, 130, TABLE)


@pytest.mark.parametrize(
    ("work", "beside"),
    [
        (Round(2, lowers=(Lower(9, (2,), (0,)),), decode=(STEP,)), True),
        (Round(2, lowers=(Lower(9, (3,), (0,)),), decode=(STEP,)), False),
        (Round(2, raises=(Raise(9, (0,), (4,)),), decode=(STEP,)), True),
        (Round(2, raises=(Raise(9, (0,), (2,)),), decode=(STEP,)), False),
        (Round(2, lowers=(Lower(9, (2,), (0,)),)), False),
        (
            Round(
                2,
                raises=(Raise(9, (0,), (4,)),),
                prefill=PrefillWork(2, 1, TOKENS, 0, (5, 6, 7), (), last=True),
                decode=(STEP,),
            ),
            False,
        ),
    ],
)
def test_what_a_step_writes_or_what_rises_under_it_is_copied_before(
    work: Round, beside: bool
) -> None:
    assert runner_with(4)._moves_beside(work) is beside


def test_a_page_that_the_step_writes_goes_down_as_it_was() -> None:
    runner = runner_with(4)
    runner.fetch(runner.run(Round(2, lowers=(Lower(9, (3,), (0,)),))))
    before = cell_of(runner, 0)
    runner.fetch(runner.run(Round(3, lowers=(Lower(9, (3,), (1,)),), decode=(STEP,))))
    runner.fetch(runner.run(Round(4, lowers=(Lower(9, (3,), (2,)),))))
    assert cell_of(runner, 1) == before
    assert cell_of(runner, 2) != before, "the step wrote nothing"


def test_pages_of_others_cross_both_ways_while_lanes_step() -> None:
    runner, twin = runner_with(6), runner_with(6)
    told, alone = [], []
    for at in range(20):
        step = DecodeLane(1, 0, 130 + at, TABLE)
        # Page 1 goes down and comes up elsewhere, which goes down again.
        work = Round(
            2 + at,
            lowers=(Lower(9, (1, 4), (0, 1)),),
            raises=(Raise(8, (0,), (4,)),),
            decode=(step,),
        )
        assert runner._moves_beside(work)
        told.append(runner.fetch(runner.run(work)).tokens)
        alone.append(twin.fetch(twin.run(Round(2 + at, decode=(step,)))).tokens)
    assert cell_of(runner, 0) == cell_of(runner, 1) != bytes([7]) * len(cell_of(runner, 0))
    assert told == alone
