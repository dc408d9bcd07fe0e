"""The paths that are fast on the CPU, against the references, over every case."""

import functools

import jax
import numpy as np
import pytest

from pallas_kernels import (
    causal_conv,
    gated_delta_decode,
    gated_delta_prefill,
    page_copy,
    paged_attention_decode,
    paged_attention_prefill,
)
from pallas_kernels.causal_conv import cases as conv_cases
from pallas_kernels.causal_conv import reference as conv_reference
from pallas_kernels.gated_delta_decode import cases as delta_decode_cases
from pallas_kernels.gated_delta_decode import reference as delta_decode_reference
from pallas_kernels.gated_delta_prefill import cases as delta_prefill_cases
from pallas_kernels.gated_delta_prefill import reference as delta_prefill_reference
from pallas_kernels.page_copy import cases as copy_cases
from pallas_kernels.page_copy import reference as copy_reference
from pallas_kernels.paged_attention_decode import cases as decode_cases
from pallas_kernels.paged_attention_decode import reference as decode_reference
from pallas_kernels.paged_attention_prefill import cases as prefill_cases
from pallas_kernels.paged_attention_prefill import reference as prefill_reference
from pallas_kernels.testing import check_bits, check_close


def over(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@over(conv_cases.CASES)
def test_causal_conv_prefill(case):
    args = conv_cases.inputs(case)
    out, tails = jax.jit(causal_conv.prefill)(**args)
    want_out, want_tails = conv_reference.prefill(**args)
    check_close("causal_conv", "output", out, want_out)
    check_bits("tails", tails, want_tails.astype(np.float32))


@over(conv_cases.CASES)
def test_causal_conv_decode(case):
    x, weight, tail, _ = conv_cases.inputs(case).values()
    out, new_tail = jax.jit(causal_conv.decode)(x[0], weight, tail)
    want_out, want_tail = conv_reference.decode(x[0], weight, tail)
    check_close("causal_conv", "output", out, want_out)
    check_bits("tail", new_tail, want_tail.astype(np.float32))


@over(delta_decode_cases.CASES)
def test_gated_delta_decode(case):
    args = delta_decode_cases.inputs(case)
    live = args["live"]
    out, states = (np.asarray(a) for a in jax.jit(gated_delta_decode.gated_delta_decode)(**args))
    want_out, want_states = delta_decode_reference.gated_delta_decode(**args)
    check_close("gated_delta_decode", "output", out[live], want_out[live])
    check_close("gated_delta_decode", "states", states[live], want_states[live])
    check_bits("dead states", states[~live], args["states"][~live])
    assert np.isfinite(out).all()


@over(delta_prefill_cases.CASES)
def test_gated_delta_prefill(case):
    args = delta_prefill_cases.inputs(case)
    out, state, kept = jax.jit(gated_delta_prefill.gated_delta_prefill)(**args)
    want_out, want_state, want_kept = delta_prefill_reference.gated_delta_prefill(**args)
    check_close("gated_delta_prefill", "output", out, want_out)
    check_close("gated_delta_prefill", "state", state, want_state)
    for row, tile in enumerate(case.kept):
        what = f"state after tile {tile}"
        check_close("gated_delta_prefill", what, kept[row], want_kept[row])
    check_bits("the row that nobody asked for", kept[-2], args["kept"][-2])


@over(decode_cases.CASES)
def test_paged_attention_decode(case):
    args = decode_cases.inputs(case)
    run = functools.partial(paged_attention_decode.paged_attention_decode, scale=case.scale)
    want = decode_reference.paged_attention_decode(**args, scale=case.scale)
    check_close("paged_attention_decode", "output", jax.jit(run)(**args), want)


@over(prefill_cases.CASES)
def test_paged_attention_prefill(case):
    args = prefill_cases.inputs(case)
    run = functools.partial(paged_attention_prefill.paged_attention_prefill, scale=case.scale)
    want = prefill_reference.paged_attention_prefill(**args, scale=case.scale)
    check_close("paged_attention_prefill", "output", jax.jit(run)(**args), want)


@over(copy_cases.CASES)
def test_page_copy(case):
    args = copy_cases.inputs(case)
    check_bits("pool", jax.jit(page_copy.page_copy)(**args), copy_reference.page_copy(**args))


@over(copy_cases.CASES)
def test_page_copy_into_a_donated_pool(case):
    pages, source, target = copy_cases.inputs(case).values()
    want = copy_reference.page_copy(pages, source, target)
    donated = jax.numpy.array(pages)
    copied = jax.jit(page_copy.page_copy, donate_argnums=0)(donated, source, target)
    assert donated.is_deleted()
    check_bits("pool", copied, want)
