"""What the compiler made of the programs."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ignisd.engine.programs import Shape, empty_device
from ignisd.engine.runner import DeviceRunner
from ignisd.engine.types import (
    Capture,
    DecodeLane,
    LaneSave,
    LaneStart,
    PrefillWork,
    Round,
    SamplingParams,
)
from tests.engine.trees import NUM_SLOTS, Bits, model

GREEDY = SamplingParams(temperature=0.0)
_MOVES = re.compile(r"= \(?(\w+)\[([\d,]*)\][^ ]* (copy|convert|transpose)\(")


def large_moves(text: str, least_elements: int) -> list[str]:
    """Copies, conversions and transposes in a compiled text that make so many numbers or more."""
    found = []
    for match in _MOVES.finditer(text):
        dims = [int(dim) for dim in match[2].split(",") if dim]
        if np.prod(dims) >= least_elements:
            found.append(match[0])
    return found


def least_array(name: str) -> int:
    """Numbers in the smallest of what must not be moved whole: a projection, or a layer's pool."""
    served = model(name)
    device = empty_device(served.spec, served.shape)
    matrices = [layer[part] for layer in served.params["layers"] for part in ("gate", "up", "down")]
    return min(int(leaf.size) for leaf in (*matrices, *device.pool.k, *device.pool.v))


def test_decode_moves_no_weight_and_no_pool() -> None:
    served = model("ember")
    assert large_moves(served.programs.decode.as_text(), least_array("ember")) == []


def test_prefill_moves_no_pool() -> None:
    served = model("ember")
    pool = empty_device(served.spec, served.shape).pool.k[0].size
    for program in served.programs.prefill.values():
        assert large_moves(program.as_text(), pool) == []


def test_a_converted_weight_is_seen() -> None:
    """A product that asks for a bf16 result converts its whole weight on this backend."""
    weight = jax.ShapeDtypeStruct((512, 256), jnp.bfloat16)
    rows = jax.ShapeDtypeStruct((4, 256), jnp.bfloat16)
    text = jax.jit(lambda x, w: x @ w.T).lower(rows, weight).compile().as_text()
    assert text is not None
    assert large_moves(text, 512 * 256)


def new_runner() -> DeviceRunner:
    served = model("ember")
    shape = served.shape
    device = empty_device(served.spec, shape)
    num_host = NUM_SLOTS - shape.num_device_slots
    return DeviceRunner(served.params, shape, served.programs, device, num_host, keep_logits=True)


def begin(runner: DeviceRunner, lane: int, captures: tuple[Capture, ...]) -> bytes:
    """130 tokens read in a lane; the logits of the first token."""
    tokens = np.arange(130, dtype=np.int32)
    start = LaneStart(lane, None, 0, GREEDY, tokens)
    work = PrefillWork(lane, lane, tokens, 0, (1, 2, 3), captures, last=True)
    result = runner.fetch(runner.run(Round(0, starts=(start,), prefill=work)))
    assert result.prefill_rows == 130
    assert result.captured == tuple(capture.slot for capture in captures)
    return Bits(np.asarray(runner.logits.pop(lane)[0]).tobytes())


@pytest.mark.parametrize("slot", [0, 3])
def test_a_claim_leaves_its_slot_as_it_was(slot: int) -> None:
    """Device and host slots alike: resumed twice, each time with the bits of the first run."""
    runner = new_runner()
    want = begin(runner, 0, (Capture(128, slot),))
    image = [Bits(np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(runner.images.read(slot))]
    tokens = np.arange(130, dtype=np.int32)
    for lane in (1, 2):
        start = LaneStart(lane, slot, 128, GREEDY, tokens)
        work = PrefillWork(lane, lane, tokens[128:], 128, (1, 2, 4 + lane), (), last=True)
        runner.fetch(runner.run(Round(lane, starts=(start,), prefill=work)))
        assert Bits(np.asarray(runner.logits.pop(lane)[0]).tobytes()) == want
        decode = DecodeLane(lane, lane, 130, (1, 2, 4 + lane))
        runner.fetch(runner.run(Round(lane, decode=(decode,))))
    after = [Bits(np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(runner.images.read(slot))]
    assert after == image


def test_an_image_stands_where_it_says() -> None:
    """The position inside an image is that of its cut, for captures and saves alike."""
    runner = new_runner()
    begin(runner, 0, (Capture(64, 2), Capture(128, 3)))
    runner.fetch(runner.run(Round(1, saves=(LaneSave(0, 4, 130),))))
    assert [int(runner.images.read(slot).position) for slot in (2, 3, 4)] == [64, 128, 130]


def test_widths_cover_every_chunk() -> None:
    shape = Shape(9, 2, 2, 0, 1000, 384)
    assert shape.widths == (128, 256, 384)
    assert [shape.width_for(count) for count in (1, 128, 129, 257, 384)] == [
        128,
        128,
        256,
        384,
        384,
    ]
    assert shape.table_pages == 16
    assert replace(shape, chunk_tokens=64).widths == (128,)
