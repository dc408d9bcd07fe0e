"""The codec against the format's own numbers and against a slow writer made from its page alone."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_codec import (
    balance,
    centre,
    decode_integers,
    decode_rows,
    encode,
    join_page,
    layout_of,
    reference,
    rotate,
    split_page,
    tables,
    unrotate,
    words,
    xla,
)
from pallas_kernels.testing import check_bits, normals
from tests.kernels import slow_codec

WIDTHS = (64, 128, 192, 256)
run_encode = jax.jit(encode)


def rng(seed: int = 0) -> Any:
    return np.random.default_rng(seed)


def random(seed: int, *shape: int) -> Any:
    return normals(rng(seed), *shape)


def coded_bytes(rows):
    """Rows [N, d] as the format lays them out, [N, row bytes] uint8, through one program."""
    padded = np.zeros((-(-len(rows) // 64) * 64, rows.shape[1]), np.float32)
    padded[: len(rows)] = rows
    return np.concatenate(
        [row_bytes(*run_encode(part)[:2]) for part in padded.reshape(-1, 64, rows.shape[1])]
    )[: len(rows)]


def row_bytes(codes, meta):
    """Both parts of rows side by side, as bytes."""
    joined = np.concatenate([np.asarray(codes), np.asarray(meta)], axis=-1)
    return joined.astype("<u2").view(np.uint8)


def decoded(rows):
    bits = coded_bytes(rows).view("<u2")
    words_of_code = rows.shape[1] // 8
    return np.asarray(decode_rows(bits[:, :words_of_code], bits[:, words_of_code:]))


class TestConstants:
    def test_the_table(self):
        digest = hashlib.sha256(tables.pattern_keys().astype("<u2").tobytes()).hexdigest()
        assert digest == "5bd822d28c1a38a71c023a66ba34caff52430d6abed233ad178b8e4ce80df168"
        np.testing.assert_array_equal(tables.patterns(), slow_codec.table())

    def test_the_signs(self):
        digest = hashlib.sha256(tables.signs(256).tobytes()).hexdigest()
        assert digest == "c1fe02b676dab38066d9d1972cb49a296a5f5e70b0c3571afbd24bf279ab9315"

    @pytest.mark.parametrize(("width", "row_bytes"), [(64, 20), (128, 40), (192, 56), (256, 72)])
    def test_the_size_of_a_row(self, width, row_bytes):
        assert layout_of(width).row_bytes == row_bytes

    @pytest.mark.parametrize("width", [8, 48, 96, 250])
    def test_a_width_without_a_format_is_refused(self, width):
        with pytest.raises(ValueError, match=f"had {width}"):
            layout_of(width)

    def test_no_integer_is_too_wide_for_eight_bits(self):
        assert np.abs(5 * slow_codec.every_word()).max() == 55


class TestRotation:
    @pytest.mark.parametrize("width", WIDTHS)
    def test_it_is_the_matrix_of_the_reference(self, width):
        rows = random(0, 3, width)
        matrix = reference.rotation(width)
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(width), atol=1e-12)
        np.testing.assert_allclose(rotate(rows), rows @ matrix.T, atol=2e-6)
        np.testing.assert_allclose(unrotate(rotate(rows)), rows, atol=2e-6)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_programs_and_companions_change_no_bit(self, width):
        rows = random(1, 130, width)
        whole = jax.jit(rotate)(rows)
        check_bits("eager", rotate(rows), whole)
        parts = [jax.jit(rotate)(rows[start : start + 13]) for start in range(0, 130, 13)]
        check_bits("in parts", np.concatenate(parts), whole)


class TestDecode:
    def test_every_word(self):
        every = np.arange(65536, dtype=np.uint16)
        points = np.asarray(jax.jit(words.word_points)(every))
        np.testing.assert_array_equal(points, slow_codec.every_word())
        for word in (0, 1, 255, 0x7F00, 0x8000, 0xFFFF, 12345):
            assert reference.decode_word(word) == points[word].tolist()

    @pytest.mark.parametrize("width", [32, *WIDTHS])
    def test_any_bits_decode_as_the_reference_says(self, width):
        layout = layout_of(width)
        bits: Any = rng(2).integers(0, 1 << 16, (64, layout.row_words), np.uint16)
        bits[:, layout.code_words] = words_of_scales(rng(3), 64)
        codes, meta = bits[:, : layout.code_words], bits[:, layout.code_words :]
        got = np.asarray(jax.jit(decode_rows)(codes, meta))
        check_bits("eager", decode_rows(codes, meta), got)
        rows = [reference.decode_row(row.astype("<u2").tobytes(), width) for row in bits]
        check_bits("reference", got, np.stack(rows).astype(np.float32))

    def test_zero_bytes_are_zeros(self):
        layout = layout_of(256)
        nothing: Any = np.zeros((2, layout.row_words), np.uint16)
        rows = decode_rows(nothing[:, :32], nothing[:, 32:])
        check_bits("zeros", np.abs(np.asarray(rows)), np.zeros((2, 256), np.float32))

    @pytest.mark.parametrize("width", [32, *WIDTHS])
    def test_pages_are_two_planes(self, width):
        layout = layout_of(width)
        codes = rng(4).integers(0, 1 << 16, (3, 64, layout.code_words), np.uint16)
        meta = rng(5).integers(0, 1 << 16, (3, 64, layout.meta_words), np.uint16)
        page = join_page(codes, meta)
        assert page.shape == (3, 64 * layout.row_words)
        back = split_page(page, width)
        check_bits("codes", back[0], codes)
        check_bits("meta", back[1], meta)
        check_bits("first plane", page[:, : codes[0].size], codes.reshape(3, -1))


def words_of_scales(source, count):
    """Bits of normal bf16 numbers above zero."""
    return (source.integers(1, 255, count) << 7 | source.integers(0, 128, count)).astype(np.uint16)


class TestGoldens:
    def test_the_formats_own(self):
        rows = np.random.default_rng(5).standard_normal((64, 256)).astype(np.float32)
        digest = hashlib.sha256(coded_bytes(rows).tobytes()).hexdigest()
        assert digest == "4765d1c959d306b967f51f943e094d7685d72b30a91e9f231c08934bff1ef467"

    @pytest.mark.parametrize("width", [32, *WIDTHS])
    def test_the_slow_writer_gives_the_same_bytes(self, width):
        rows = random(width, 3, width) * np.float32(3.7)
        np.testing.assert_array_equal(coded_bytes(rows), slow_codec.write_rows(rows))

    @pytest.mark.parametrize("name", ["ties", "spike", "steps", "heavy", "small", "large"])
    def test_rows_that_are_no_gaussian(self, name):
        np.testing.assert_array_equal(
            coded_bytes(ODD_ROWS[name]), slow_codec.write_rows(ODD_ROWS[name])
        )

    def test_the_slow_writer_decodes_to_what_it_meant(self):
        rows = random(6, 2, 64)
        got = np.stack([reference.decode_row(slow_codec.write_row(row), 64) for row in rows])
        np.testing.assert_array_equal(got, decoded(rows))


def odd_rows():
    source = rng(7)
    spike = np.zeros((2, 64), np.float32)
    spike[0, 9], spike[1, 63] = 3.0, -1e-3
    heavy = (normals(source, 3, 64) / np.abs(normals(source, 3, 64))).astype(np.float32)
    # A row whose least numbers are subnormal, and one at the edge of what is coded.
    small = (normals(source, 3, 64) * np.float32(2.0**-110)).astype(np.float32)
    small[0, ::3] = np.float32(2.0**-140)
    small[1] = np.float32(2.0**-119)
    small[2] = 0.0
    small[2, 5] = np.float32(2.0**-118)
    return {
        "ties": source.integers(-2, 3, (4, 64)).astype(np.float32),
        "spike": spike,
        "steps": np.repeat(normals(source, 3, 8), 8, axis=1),
        "heavy": heavy,
        "small": small,
        "large": normals(source, 2, 64) * np.float32(2.0**120),
    }


ODD_ROWS = odd_rows()


@pytest.fixture(scope="module")
def gaussian():
    """2,048 Gaussian rows and what their codes stand for."""
    rows = random(8, 2048, 256)
    return rows, np.concatenate([decoded(part) for part in np.split(rows, 4)])


class TestRequirements:
    """The lines of the format's table that need no model."""

    def test_distortion_stands_near_the_bound(self, gaussian):
        rows, got = gaussian
        distortion = float(np.square(rows - got).mean())
        bound = 2.0 ** (-2 * 2.25)
        assert bound < distortion <= 0.0715, f"{distortion:.4f}, the bound is {bound:.4f}"

    def test_direction_and_slope(self, gaussian):
        rows, got = gaussian
        dots = (rows * got).sum(axis=1)
        cosine = dots / np.linalg.norm(rows, axis=1) / np.linalg.norm(got, axis=1)
        slope = dots.sum() / np.square(rows).sum()
        assert cosine.mean() >= 0.9635
        assert 0.92 <= slope <= 0.94

    def test_row_errors(self, gaussian):
        rows, got = gaussian
        errors = np.linalg.norm(rows - got, axis=1) / np.linalg.norm(rows, axis=1)
        assert np.median(errors) <= 0.27
        assert np.percentile(errors, 99) <= 0.295
        assert errors.max() <= 0.33

    def test_a_code_with_one_gain_would_be_seen(self, gaussian):
        """The distortion that one gain for every word would have is outside the bound."""
        rows, _ = gaussian
        z = np.clip(np.rint(rows[:256] * 512), -8191, 8191).astype(np.int32)
        in_words = np.moveaxis(z.reshape(256, -1, 8), -1, 0)
        _, points, _ = jax.jit(xla.search_words)(in_words)
        c = 4 * np.asarray(points)[:, 1].transpose(1, 2, 0).reshape(256, 256)
        scale = (z * c).sum(axis=1) / np.square(c).sum(axis=1) / 512
        assert np.square(rows[:256] - scale[:, None] * c).mean() > 0.0715

    @pytest.mark.slow
    def test_eager_is_jitted(self):
        rows = random(9, 5, 64)
        for got, want in zip(encode(rows), run_encode(rows), strict=True):
            check_bits("row", got, want)

    def test_how_rows_are_batched_changes_no_bit(self):
        rows = random(10, 24, 64)
        whole = coded_bytes(rows)
        for size in (1, 8):
            parts = [row_bytes(*run_encode(rows[i : i + size])[:2]) for i in range(0, 24, size)]
            check_bits(f"{size} at a time", np.concatenate(parts), whole)
        codes, meta, _ = run_encode(rows.reshape(2, 12, 64))
        check_bits("another shape", row_bytes(codes, meta).reshape(24, -1), whole)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_what_was_decoded_is_coded_the_same(self, width):
        rows = random(11, 64, width)
        check_bits("row", coded_bytes(decoded(rows)), coded_bytes(rows))

    def test_eight_times_a_row_changes_only_the_exponent_of_its_scale(self):
        rows = random(12, 64, 256)
        once, eight = (run_encode(rows * np.float32(factor)) for factor in (1, 8))
        check_bits("codes", eight[0], once[0])
        check_bits("pairs", eight[1][:, 1:], once[1][:, 1:])
        check_bits("scale", np.asarray(eight[1][:, 0]), np.asarray(once[1][:, 0]) + (3 << 7))

    @pytest.mark.parametrize("value", [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-37])
    def test_rows_that_cannot_be_coded_are_zero(self, value):
        rows = random(13, 64, 64)
        if np.isfinite(value):
            rows[1] = np.float32(value)
        else:
            rows[1, 17] = np.float32(value)
        codes, meta, bad = run_encode(rows)
        assert not np.asarray(codes[1]).any()
        assert not np.asarray(meta[1]).any()
        assert np.flatnonzero(bad).tolist() == ([] if np.isfinite(value) else [1])
        assert np.flatnonzero(meta[:, 0] == 0).tolist() == [1]

    def test_a_row_below_the_least_magnitude_is_zero(self):
        rows = np.full((2, 64), 2.0**-119, np.float32)
        rows[1] = np.nextafter(np.float32(2.0**-119), np.float32(0))
        assert coded_bytes(rows).any(axis=1).tolist() == [True, False]

    def test_integers_fit_eight_bits(self):
        codes, meta, _ = run_encode(random(14, 64, 256))
        integers, _ = decode_integers(codes, meta)
        assert 50 <= int(jnp.abs(integers).max()) <= 75


def zeros() -> Any:
    return np.zeros(64, np.float32)


class TestBalance:
    def test_it_is_one_where_the_norms_agree(self):
        norm = random(15, 64)
        np.testing.assert_array_equal(balance(norm, norm, 16), np.ones(64, np.float32))

    def test_pairs_of_the_rotary_embedding_share_a_factor(self):
        q, k = random(16, 64), random(17, 64)
        a = np.asarray(balance(q, k, 16))
        np.testing.assert_array_equal(a[:8], a[8:16])
        assert len(np.unique(a[16:])) > 40

    def test_it_is_the_root_of_the_quotient(self):
        q, k = zeros() + np.float32(3.0), zeros()
        np.testing.assert_array_equal(balance(q, k, 16), np.full(64, 2.0, np.float32))

    def test_a_channel_without_weight_is_floored(self):
        q, k = zeros(), zeros()
        k[40] = -1.0
        mean = 63 / 64
        assert balance(q, k, 16)[40] == pytest.approx((1 / (0.05 * mean)) ** 0.5, rel=2**-8)

    def test_its_product_with_a_stored_key_is_exact(self):
        a = np.asarray(balance(random(18, 64), random(19, 64), 16))
        keys = np.asarray(jax.lax.reduce_precision(random(20, 64, 64), 8, 7))
        np.testing.assert_array_equal((keys * a).astype(np.float64), keys.astype(np.float64) * a)


class TestCentre:
    def test_it_is_the_mean_without_the_first(self):
        keys = random(21, 2, 64, 32)
        keys[:, 0] = 1e6
        got = np.asarray(centre(jnp.asarray(keys)))
        np.testing.assert_allclose(got, keys[:, 1:].mean(axis=1), rtol=2**-14, atol=1e-6)

    def test_it_has_sixteen_bits_and_no_program_changes_them(self):
        keys = jnp.asarray(random(22, 3, 64, 32))
        got = np.asarray(jax.jit(centre)(keys))
        assert not (got.view(np.uint32) & 0xFF).any()
        check_bits("eager", centre(keys), got)
        check_bits("alone", jax.jit(centre)(keys[1]), got[1])


class TestPreparedKeys:
    """What balance and centring are for, on keys as layers with norms make them: channels of very
    unlike weight, and a part common to all tokens.
    """

    @staticmethod
    def divergence(balanced: bool, centred: bool) -> float:
        """Mean divergence of softmax weights from exact ones, with coded keys."""
        q_norm, k_norm = np.exp(random(30, 64)) - 1, np.exp(1.5 * random(31, 64)) - 1
        a = np.asarray(balance(q_norm, k_norm, 2)) if balanced else np.ones(64, np.float32)
        common = 3.0 * random(32, 64)
        keys = (1 + k_norm) * (random(33, 256, 64) + common)
        queries = (1 + q_norm) * random(34, 32, 64) / 16
        prepared = keys * a
        middle = prepared[1:64].mean(axis=0) if centred else np.zeros(64, np.float32)
        matrix = reference.rotation(64)
        coded = decoded(((prepared - middle) @ matrix.T).astype(np.float32)) @ matrix
        exact = log_softmax(queries @ keys.T)
        got = log_softmax((queries / a) @ (coded + middle).T)
        return float((np.exp(exact) * (exact - got)).sum(axis=1).mean())

    def test_both_are_needed(self):
        both = self.divergence(balanced=True, centred=True)
        assert both <= 0.15
        assert self.divergence(balanced=False, centred=True) > 2 * both
        assert self.divergence(balanced=True, centred=False) > 2 * both
        assert self.divergence(balanced=False, centred=False) > 4 * both


def log_softmax(scores: Any) -> Any:
    top = scores.max(axis=1, keepdims=True)
    return scores - top - np.log(np.exp(scores - top).sum(axis=1, keepdims=True))
