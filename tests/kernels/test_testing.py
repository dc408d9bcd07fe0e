"""The comparisons and the poison that the other tests rely on, each shown what it must refuse."""

from typing import Any

import numpy as np
import pytest

from pallas_kernels.paged_attention_decode.reference import page_values
from pallas_kernels.testing import (
    check_bits,
    check_close,
    relative_l2,
    to_page_format,
    with_idle_tiles,
    write_sequences,
)


def test_close_results_pass_and_distant_ones_say_how_far():
    want = np.array([3.0, 4.0])
    check_close("causal_conv", "output", want * (1 + 5e-7), want)
    with pytest.raises(AssertionError, match=r"causal_conv output: relative L2 2e-06, limit 1e-06"):
        check_close("causal_conv", "output", want * (1 + 2e-6), want)


def test_a_single_hole_is_an_error_and_so_is_another_shape():
    want = np.ones(1000)
    got = want.copy()
    got[7] = np.nan
    with pytest.raises(AssertionError, match="1 of 1000 values are not finite"):
        check_close("causal_conv", "output", got, want)
    with pytest.raises(AssertionError, match=r"shape \(999,\), want \(1000,\)"):
        check_close("causal_conv", "output", want[1:], want)


def test_a_reference_of_zeros_is_compared_by_plain_distance():
    assert relative_l2(np.array([3e-9, 4e-9]), np.zeros(2)) == pytest.approx(5e-9)


def test_bits_tell_signed_zeros_and_dtypes_apart():
    with pytest.raises(AssertionError, match="1 of 2 values differ"):
        check_bits("zeros", np.array([0.0, -0.0]), np.zeros(2))
    with pytest.raises(AssertionError, match="dtype float32, want float64"):
        check_bits("zeros", np.zeros(2, np.float32), np.zeros(2))


@pytest.mark.parametrize("kv_format", ["bf16", "f32"])
def test_everything_outside_the_sequences_is_nan(kv_format):
    rng = np.random.default_rng(0)
    keys, values, table = write_sequences(rng, 8, [70, 0, 64], 2, 4, 4, kv_format)
    assert len(set(table[table > 0])) == 3
    for pool in (page_values(keys), page_values(values)):
        finite: Any = np.isfinite(pool)
        rows = finite.all(axis=(1, 3))
        assert finite.any(axis=(1, 3)).sum() == rows.sum() == 70 + 64
        assert rows[table[0, 0]].all()
        assert rows[table[0, 1], :6].all()
        assert rows[table[2, 0]].all()


def test_idle_tiles_are_nan():
    rows = with_idle_tiles(np.ones((64, 2), np.float32), 2)
    assert rows.shape == (192, 2)
    assert np.isnan(rows[64:]).all()
    assert np.isfinite(rows[:64]).all()


def test_page_format_keeps_what_bf16_can_hold():
    values = np.array([1.0, -0.5, 1.5 * 2.0**100], np.float32)
    np.testing.assert_array_equal(page_values(to_page_format(values, "bf16")), values)
