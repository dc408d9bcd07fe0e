"""The Triton kernels: interpreted against the references, and lowered for CUDA at model shapes.

Unread memory is NaN in every case, and the interpreter hands kernels outputs full of NaN.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pallas_kernels.dispatch import Path
from pallas_kernels.gated_delta_decode import cases as delta_cases
from pallas_kernels.gated_delta_decode import gated_delta_decode
from pallas_kernels.gated_delta_decode import pallas as delta_pallas
from pallas_kernels.gated_delta_decode import reference as delta_reference
from pallas_kernels.paged_attention_decode import cases as attention_cases
from pallas_kernels.paged_attention_decode import paged_attention_decode
from pallas_kernels.paged_attention_decode import pallas as attention_pallas
from pallas_kernels.paged_attention_decode import reference as attention_reference
from pallas_kernels.testing import check_bits, check_close, lower_for_cuda


def over(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def named(cases, name):
    return next(case for case in cases if case.name == name)


def interpreted(function, args, **options):
    """The kernel as plain XLA operations, compiled in haste: its speed is of no interest."""
    run = jax.jit(
        functools.partial(function, **options),
        compiler_options={"xla_backend_optimization_level": 0},
    )
    return run(**args)


def attend(case, args, **options):
    kernel = attention_pallas.paged_attention_decode
    return np.asarray(interpreted(kernel, args, scale=case.scale, interpret=True, **options))


def reordered(args, lanes):
    """The same sequences in other lanes; a lane of None is dead."""
    picked = {name: args[name][[0 if lane is None else lane for lane in lanes]] for name in args}
    picked["lengths"] = np.where([lane is None for lane in lanes], 0, picked["lengths"])
    return {**args, **{name: picked[name] for name in ("q", "table", "lengths")}}


def moved_pages(args):
    """The same sequences with their pages in other places of the pool."""
    moved = np.random.default_rng(1).permutation(len(args["k_pages"])).astype(np.int32)
    there = {**args, "table": moved[args["table"]]}
    for name in ("k_pages", "v_pages"):
        there[name] = np.empty_like(args[name])
        there[name][moved] = args[name]
    return there


def test_the_interpreter_shows_an_output_left_unwritten():
    def half_kernel(x_ref, out_ref):
        out_ref[0] = x_ref[0]

    shape = jax.ShapeDtypeStruct((2, 4), jnp.float32)
    out = pl.pallas_call(half_kernel, out_shape=shape, interpret=True)(np.ones((2, 4), np.float32))
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1]).all()


class TestGatedDeltaDecode:
    @over(delta_cases.CASES)
    def test_interpreted(self, case):
        args = delta_cases.inputs(case)
        live = args["live"]
        results = interpreted(gated_delta_decode, args, path=Path.INTERPRET)
        out, states = (np.asarray(a) for a in results)
        want_out, want_states = delta_reference.gated_delta_decode(**args)
        check_close("gated_delta_decode", "output", out[live], want_out[live])
        check_close("gated_delta_decode", "states", states[live], want_states[live])
        check_bits("dead states", states[~live], args["states"][~live])
        assert not out[~live].any()

    def test_the_block_of_columns_changes_no_bit(self):
        args = delta_cases.inputs(named(delta_cases.CASES, "wide"))
        wide, narrow = (
            interpreted(
                delta_pallas.gated_delta_decode, args, block_columns=columns, interpret=True
            )
            for columns in (128, 32)
        )
        check_bits("output", narrow[0], wide[0])
        check_bits("states", narrow[1], wide[1])

    def test_sizes_that_triton_cannot_hold_are_refused(self):
        args = delta_cases.inputs(named(delta_cases.CASES, "wide"))
        narrow = {name: args[name][..., :96] for name in ("v", "states")}
        with pytest.raises(ValueError, match=r"dv must be a power of two.*had 96"):
            delta_pallas.gated_delta_decode(**{**args, **narrow}, interpret=True)

    @over(delta_cases.MODEL_CASES)
    def test_lowered_for_cuda(self, case):
        lanes, values = case.lanes, (case.value_heads, case.value_dim)
        f32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
        key = f32((lanes, case.key_heads, case.key_dim))
        scalar = f32((lanes, case.value_heads))
        states = f32((lanes, case.value_heads, case.key_dim, case.value_dim))
        live = jax.ShapeDtypeStruct((lanes,), jnp.bool_)
        text = lower_for_cuda(
            functools.partial(gated_delta_decode, path=Path.TRITON),
            [key, key, f32((lanes, *values)), scalar, scalar, states, live],
        )
        assert text.count("__gpu$xla.gpu.triton") == 1
        assert 'name = "gated_delta_decode"' in text
        assert "output_tuple_indices = [1], operand_index = 5" in text, "states are not in place"


class TestPagedAttentionDecode:
    @over(attention_cases.CASES)
    def test_interpreted(self, case):
        args = attention_cases.inputs(case)
        out = interpreted(paged_attention_decode, args, scale=case.scale, path=Path.INTERPRET)
        want = attention_reference.paged_attention_decode(**args, scale=case.scale)
        operation = "paged_attention_decode"
        if case.kv_format == "bf16":
            operation += ", Triton"
        check_close(operation, "output", out, want)

    @pytest.mark.parametrize("pages_per_split", [1, 3])
    def test_interpreted_in_other_splits(self, pages_per_split):
        case = named(attention_cases.CASES, "many_splits")
        args = attention_cases.inputs(case)
        want = attention_reference.paged_attention_decode(**args, scale=case.scale)
        out = attend(case, args, pages_per_split=pages_per_split)
        check_close("paged_attention_decode, Triton", "output", out, want)

    def test_the_width_of_the_table_changes_no_bit(self):
        case = named(attention_cases.CASES, "page_edges")
        args = attention_cases.inputs(case)
        out = attend(case, args, pages_per_split=2)
        args["table"] = np.pad(args["table"], ((0, 0), (0, 32)))
        check_bits("output", attend(case, args, pages_per_split=2), out)

    def test_neighbours_change_no_bit(self):
        case = named(attention_cases.CASES, "many_splits")
        args = attention_cases.inputs(case)
        both = attend(case, args)
        alone = attend(case, reordered(args, [0, None]))
        swapped = attend(case, reordered(args, [1, 0]))
        check_bits("beside a dead lane", alone[0], both[0])
        check_bits("in the other lane", swapped[1], both[0])

    def test_where_pages_lie_changes_no_bit(self):
        case = named(attention_cases.CASES, "page_edges")
        args = attention_cases.inputs(case)
        check_bits("output", attend(case, moved_pages(args)), attend(case, args))

    def test_head_widths_that_triton_cannot_hold_are_refused(self):
        case = attention_cases.Case("odd", (5,), heads=2, kv_heads=1, width=24, table_width=4)
        with pytest.raises(ValueError, match="power of two, had 24"):
            attend(case, attention_cases.inputs(case))

    @over(attention_cases.MODEL_CASES)
    def test_lowered_for_cuda(self, case):
        lanes = len(case.lengths)
        page_dtype = jnp.float32 if case.kv_format == "f32" else jnp.uint16
        pool = jax.ShapeDtypeStruct((case.pages, case.kv_heads, 64, case.width), page_dtype)
        text = lower_for_cuda(
            functools.partial(paged_attention_decode, scale=case.scale, path=Path.TRITON),
            [
                jax.ShapeDtypeStruct((lanes, case.heads, case.width), jnp.float32),
                pool,
                pool,
                jax.ShapeDtypeStruct((lanes, case.table_width), jnp.int32),
                jax.ShapeDtypeStruct((lanes,), jnp.int32),
            ],
        )
        assert text.count("__gpu$xla.gpu.triton") == 2
        assert 'name = "paged_attention_decode_split"' in text
        assert 'name = "paged_attention_decode_combine"' in text
