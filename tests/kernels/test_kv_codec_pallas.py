"""The encoder's Triton kernel: its bytes are those of the XLA path, and it lowers for CUDA."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import Path
from pallas_kernels.kv_codec import cases, encode, pallas
from pallas_kernels.testing import check_bits, lower_for_cuda


def over(chosen):
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)


@over(cases.CASES)
def test_interpreted(case):
    args = cases.inputs(case)
    run = jax.jit(
        functools.partial(encode, path=Path.INTERPRET),
        compiler_options={"xla_backend_optimization_level": 0},
    )
    names = ("codes", "meta", "bad")
    got, want = run(**args), jax.jit(encode)(**args)
    for name, ours, theirs in zip(names, got, want, strict=True):
        check_bits(name, ours, theirs)
    dead = [*case.zero, *case.bad]
    assert not np.asarray(got[0])[dead].any()
    assert np.flatnonzero(np.asarray(got[1])[:, 0] == 0).tolist() == sorted(dead)
    assert np.flatnonzero(got[2]).tolist() == sorted(case.bad)


@over(cases.MODEL_CASES)
def test_lowered_for_cuda(case):
    shape = jax.ShapeDtypeStruct((case.rows, case.width), jnp.float32)
    text = lower_for_cuda(functools.partial(encode, path=Path.TRITON), [shape])
    assert text.count("__gpu$xla.gpu.triton") == 1
    assert 'name = "kv_codec_encode"' in text


def test_divisions_on_a_card_are_asked_for_as_rounded():
    """The card's plain division may be two steps off, which would change a scale now and then."""
    jaxpr = str(jax.make_jaxpr(pallas.encode)(jax.ShapeDtypeStruct((4, 256), jnp.float32)))
    assert jaxpr.count("div.rn.f32") == 3
    assert not re.search(r"f32\[[\d,]*\] = div ", jaxpr)


def test_the_width_of_three_is_refused():
    with pytest.raises(ValueError, match="power of two, had 192"):
        pallas.encode(jnp.zeros((1, 192)), interpret=True)
