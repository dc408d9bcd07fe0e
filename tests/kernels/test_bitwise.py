"""Bits do not depend on company: chunk width, other lanes, table width, where pages lie.

These hold for the paths that serve on the CPU. Each comparison is shown a fault that it must see.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

from pallas_kernels.causal_conv import cases as conv_cases
from pallas_kernels.causal_conv import prefill as conv_prefill
from pallas_kernels.gated_delta_decode import cases as delta_decode_cases
from pallas_kernels.gated_delta_decode import gated_delta_decode
from pallas_kernels.gated_delta_prefill import cases as delta_cases
from pallas_kernels.gated_delta_prefill import gated_delta_prefill
from pallas_kernels.page_copy import page_copy
from pallas_kernels.paged_attention_decode import cases as decode_cases
from pallas_kernels.paged_attention_decode import paged_attention_decode
from pallas_kernels.paged_attention_prefill import cases as attention_cases
from pallas_kernels.paged_attention_prefill import paged_attention_prefill
from pallas_kernels.testing import check_bits, with_idle_tiles

TOKENS = 1000
WIDTHS = (64, 128, 256, 512, 1024)
PLANS = {
    **{f"chunks of {width}": (width,) * -(-TOKENS // width) for width in WIDTHS},
    "mixed chunks": (256, 64, 512, 128, 64),
    "half-empty programs": (512, 1024),
}
"""Widths of the programs that read the tokens in turn, each full but the last."""

CONV = conv_cases.Case("conv", TOKENS, channels=96)
DELTA = delta_cases.Case("delta", TOKENS, key_heads=1, value_heads=3, key_dim=32, value_dim=16)
WIDE_DELTA = delta_cases.Case(
    "wide", TOKENS, key_heads=2, value_heads=4, key_dim=128, value_dim=128
)
ATTENTION = attention_cases.Case(
    "attention", tiles=16, first_page=0, heads=6, kv_heads=2, width=32, table_width=20
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens start … start + count - 1, in a program of `width` rows."""

    start: int
    count: int
    width: int

    def rows(self, array):
        """The rows of the chunk, zeros to the end of its last tile, and NaN beyond."""
        taken = np.zeros((self.tiles * 64, *array.shape[1:]), array.dtype)
        taken[: self.count] = array[self.start : self.start + self.count]
        return with_idle_tiles(taken, self.width // 64 - self.tiles)

    @property
    def tiles(self) -> int:
        return -(-self.count // 64)


def chunks(widths):
    start = 0
    for width in widths:
        yield Chunk(start, min(width, TOKENS - start), width)
        start += width


def read_conv(args, plan):
    outs, tails = [], []
    tail = args["tail"]
    run = jax.jit(conv_prefill)
    for chunk in plan:
        y, after = run(chunk.rows(args["x"]), args["weight"], tail, np.int32(chunk.count))
        outs.append(np.asarray(y)[: chunk.count])
        tails.append(np.asarray(after)[: chunk.tiles])
        tail = tails[-1][-1]
    return {"outputs": np.concatenate(outs), "tails": np.concatenate(tails)}


def read_delta(args, plan, off_by=0):
    outs, states = [], []
    state = args["state"]
    run = jax.jit(gated_delta_prefill)
    for chunk in plan:
        slots = chunk.width // 64
        room = np.zeros((slots + 1, *state.shape), np.float32)
        rows = {name: chunk.rows(args[name]) for name in ("q", "k", "v", "log_decay", "beta")}
        keep = (np.arange(slots, dtype=np.int32) + off_by) % slots
        out, state, kept = run(
            **rows, state=state, keep=keep, kept=room, num_tokens=np.int32(chunk.count)
        )
        outs.append(np.asarray(out)[: chunk.count])
        states.append(np.asarray(kept)[: chunk.tiles])
    return {"outputs": np.concatenate(outs), "boundaries": np.concatenate(states), "state": state}


def read_attention(args, plan):
    outs = []
    run = jax.jit(functools.partial(paged_attention_prefill, scale=ATTENTION.scale))
    for chunk in plan:
        out = run(
            chunk.rows(args["q"]),
            args["k_pages"],
            args["v_pages"],
            args["table"],
            np.int32(chunk.start // 64),
            num_tokens=np.int32(chunk.count),
        )
        outs.append(np.asarray(out)[: chunk.count])
    return {"outputs": np.concatenate(outs)}


def check_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    for name in want:
        check_bits(name, got[name], want[name])


@functools.cache
def whole(read: Callable[..., dict[str, Any]], case: Any, inputs: Callable[..., Any]):
    """What one program over all tokens gives."""
    return read(inputs(case), list(chunks((1024,))))


class TestChunkWidths:
    @pytest.mark.parametrize("plan", PLANS)
    def test_convolution(self, plan):
        got = read_conv(conv_cases.inputs(CONV), chunks(PLANS[plan]))
        check_same(got, whole(read_conv, CONV, conv_cases.inputs))

    @pytest.mark.parametrize("plan", PLANS)
    def test_delta_rule(self, plan):
        got = read_delta(delta_cases.inputs(DELTA), chunks(PLANS[plan]))
        check_same(got, whole(read_delta, DELTA, delta_cases.inputs))

    @pytest.mark.slow
    @pytest.mark.parametrize("plan", PLANS)
    def test_delta_rule_at_model_width(self, plan):
        got = read_delta(delta_cases.inputs(WIDE_DELTA), chunks(PLANS[plan]))
        check_same(got, whole(read_delta, WIDE_DELTA, delta_cases.inputs))

    @pytest.mark.parametrize("plan", PLANS)
    def test_attention(self, plan):
        got = read_attention(attention_cases.inputs(ATTENTION), chunks(PLANS[plan]))
        check_same(got, whole(read_attention, ATTENTION, attention_cases.inputs))


class TestTheComparisonSees:
    """Faults that leave the results right to many digits, or wrong in few places."""

    def test_a_tail_that_is_one_token_off(self):
        args = conv_cases.inputs(CONV)
        args["tail"] = np.roll(args["tail"], 1, axis=0)
        with pytest.raises(AssertionError, match=r"outputs: .* the first at index \(0,"):
            check_same(
                read_conv(args, chunks(PLANS["chunks of 64"])),
                whole(read_conv, CONV, conv_cases.inputs),
            )

    def test_a_split_off_the_grid(self):
        plan = [Chunk(0, 32, 64), *(Chunk(32 + 64 * i, 64, 64) for i in range(15))]
        got = read_delta(delta_cases.inputs(DELTA), plan)
        want = whole(read_delta, DELTA, delta_cases.inputs)
        np.testing.assert_allclose(got["outputs"], want["outputs"][:992], atol=1e-5)
        with pytest.raises(AssertionError, match="differ in their bits"):
            check_bits("outputs", got["outputs"], want["outputs"][:992])

    def test_a_boundary_state_of_the_next_tile(self):
        got = read_delta(delta_cases.inputs(DELTA), chunks((1024,)), off_by=1)
        with pytest.raises(AssertionError, match=r"boundaries: .* differ in their bits"):
            check_same(got, whole(read_delta, DELTA, delta_cases.inputs))

    def test_pages_added_in_another_order(self):
        args = attention_cases.inputs(ATTENTION)
        args["table"][[1, 2]] = args["table"][[2, 1]]
        got = read_attention(args, chunks((1024,)))
        want = whole(read_attention, ATTENTION, attention_cases.inputs)
        late = slice(3 * 64, TOKENS)
        np.testing.assert_allclose(got["outputs"][late], want["outputs"][late], atol=1e-5)
        with pytest.raises(AssertionError, match="differ in their bits"):
            check_bits("outputs", got["outputs"][late], want["outputs"][late])

    def test_one_flipped_bit(self):
        want = np.linspace(0.0, 1.0, 12, dtype=np.float32).reshape(3, 4)
        got = want.copy()
        got.view(np.uint32)[1, 2] ^= 1
        with pytest.raises(AssertionError, match=r"1 of 12 .* index \(1, 2\)"):
            check_bits("values", got, want)


class TestAttentionPlaces:
    def test_the_width_of_the_table_changes_no_bit_of_prefill(self):
        args = attention_cases.inputs(ATTENTION)
        args["table"] = np.pad(args["table"], (0, 44))
        got = read_attention(args, chunks((1024,)))
        check_same(got, whole(read_attention, ATTENTION, attention_cases.inputs))

    def test_the_width_of_the_table_changes_no_bit_of_decode(self):
        case = next(c for c in decode_cases.CASES if c.name == "page_edges")
        args = decode_cases.inputs(case)
        run = jax.jit(functools.partial(paged_attention_decode, scale=case.scale))
        want = run(**args)
        args["table"] = np.pad(args["table"], ((0, 0), (0, 24)))
        check_bits("outputs", run(**args), want)

    def test_copied_pages_serve_as_the_originals(self):
        case = next(c for c in decode_cases.CASES if c.name == "page_edges")
        args = decode_cases.inputs(case)
        run = jax.jit(functools.partial(paged_attention_decode, scale=case.scale))
        want = run(**args)
        copy = jax.jit(page_copy)
        used = np.unique(args["table"][args["table"] > 0])
        fresh = (np.arange(len(used)) + case.pages).astype(np.int32)
        for name in ("k_pages", "v_pages"):
            room = np.zeros((len(used), *args[name].shape[1:]), args[name].dtype)
            pool = copy(np.concatenate([args[name], room]), used, fresh)
            args[name] = np.asarray(pool).copy()
            args[name][: case.pages] = 0
        renamed = np.zeros(case.pages, np.int32)
        renamed[used] = fresh
        args["table"] = renamed[args["table"]]
        check_bits("outputs", run(**args), want)


class TestLanes:
    """A lane gives the same bits alone, in company, and in any place of the batch."""

    LANES = 8

    @pytest.mark.parametrize("lane", [0, 5])
    def test_delta_rule(self, lane):
        case = delta_decode_cases.Case("lanes", 8, tuple(range(8)), 2, 6, 32, 16)
        args = delta_decode_cases.inputs(case)
        run = jax.jit(gated_delta_decode)
        want_out, want_states = run(**args)
        alone = {**args, "live": np.arange(self.LANES) == lane}
        turned = {name: np.roll(array, 3, axis=0) for name, array in args.items()}
        for where, changed, place in (("alone", alone, lane), ("turned", turned, (lane + 3) % 8)):
            out, states = run(**changed)
            check_bits(f"output {where}", out[place], want_out[lane])
            check_bits(f"state {where}", states[place], want_states[lane])

    @pytest.mark.parametrize("lane", [0, 5])
    def test_attention(self, lane):
        lengths = (300, 64, 1, 129, 65, 260, 63, 256)
        case = decode_cases.Case("lanes", lengths, heads=6, kv_heads=2, width=32, table_width=8)
        args = decode_cases.inputs(case)
        run = jax.jit(functools.partial(paged_attention_decode, scale=case.scale))
        want = run(**args)
        alone = {**args, "lengths": np.where(np.arange(self.LANES) == lane, lengths, 0)}
        alone["lengths"] = alone["lengths"].astype(np.int32)
        turned = {name: np.roll(args[name], 3, axis=0) for name in ("q", "table", "lengths")}
        check_bits("alone", run(**alone)[lane], want[lane])
        check_bits("turned", run(**{**args, **turned})[(lane + 3) % 8], want[lane])
