"""The readable definitions against closed forms: what everything else is compared with."""

import numpy as np
import pytest

from pallas_kernels.causal_conv import reference as conv
from pallas_kernels.gated_delta_decode.reference import gated_delta_decode, step
from pallas_kernels.gated_delta_prefill import cases as delta_cases
from pallas_kernels.gated_delta_prefill.reference import by_chunks, gated_delta_prefill
from pallas_kernels.page_copy import cases as copy_cases
from pallas_kernels.page_copy.reference import page_copy
from pallas_kernels.paged_attention_decode import cases as attention_cases
from pallas_kernels.paged_attention_decode.reference import page_values, paged_attention_decode
from pallas_kernels.paged_attention_prefill import cases as prefill_cases
from pallas_kernels.paged_attention_prefill.reference import paged_attention_prefill
from pallas_kernels.testing import check_bits, normals, to_page_format, unit_rows


def silu(x):
    return x / (1.0 + np.exp(-x))


def delta_run(tokens, seed=0, heads=2, dk=16, dv=24):
    """One head's worth of random inputs for each of `heads` heads, in float64."""
    rng = np.random.default_rng(seed)
    q = unit_rows(rng, tokens, heads, dk).astype(np.float64) * dk**-0.5
    k = unit_rows(rng, tokens, heads, dk).astype(np.float64)
    v = normals(rng, tokens, heads, dv).astype(np.float64)
    log_decay = -rng.exponential(0.1, (tokens, heads))
    beta = rng.random((tokens, heads))
    state = normals(rng, heads, dk, dv).astype(np.float64)
    return q, k, v, log_decay, beta, state


class TestDeltaRule:
    @pytest.mark.parametrize("tokens", [64, 100, 193])
    @pytest.mark.parametrize("chunk", [64, 16])
    def test_chunk_form_equals_the_recurrence(self, tokens, chunk):
        q, k, v, log_decay, beta, state = delta_run(tokens)
        states = state
        one_by_one = []
        for t in range(tokens):
            out, states = step(q[t], k[t], v[t], log_decay[t], beta[t], states)
            one_by_one.append(out)
        for head in range(2):
            out, end = by_chunks(
                q[:, head],
                k[:, head],
                v[:, head],
                log_decay[:, head],
                beta[:, head],
                state[head],
                chunk,
            )
            np.testing.assert_allclose(out, np.stack(one_by_one)[:, head], atol=1e-13)
            np.testing.assert_allclose(end, states[head], atol=1e-13)

    def test_orthonormal_keys_are_recalled_exactly(self):
        values = np.arange(12.0).reshape(4, 1, 3)
        state = np.zeros((1, 4, 3))
        for t in range(4):
            key = np.eye(4)[t][None]
            _, state = step(key, key, values[t], np.zeros(1), np.ones(1), state)
        for t in range(4):
            query = np.eye(4)[t][None]
            out, _ = step(query, query, values[t], np.zeros(1), np.zeros(1), state)
            np.testing.assert_array_equal(out, values[t])

    def test_a_key_written_again_replaces_its_value(self):
        key = np.array([[0.6, 0.8]])
        state = np.zeros((1, 2, 2))
        for value in ([[1.0, 2.0]], [[5.0, -3.0]]):
            _, state = step(key, key, np.array(value), np.zeros(1), np.ones(1), state)
        np.testing.assert_allclose(state[0].T @ key[0], [5.0, -3.0], atol=1e-15)

    def test_without_writing_the_state_only_decays(self):
        q, k, v, log_decay, _, state = delta_run(64)
        keep = np.zeros(1, np.int32)
        room = np.zeros((2, *state.shape))
        _, end, kept = gated_delta_prefill(
            q, k, v, log_decay, np.zeros((64, 2)), state, keep, room, num_tokens=64
        )
        expected = state * np.exp(log_decay.sum(axis=0))[:, None, None]
        np.testing.assert_allclose(end, expected, rtol=1e-12)
        check_bits("kept state", kept[0], end)

    def test_padding_changes_no_bit_of_the_state(self):
        q, k, v, log_decay, beta, state = delta_run(128)
        log_decay[40:] = 0.0
        beta[40:] = 0.0
        keep, room = np.array([0, 1], np.int32), np.zeros((3, *state.shape))
        ends = gated_delta_prefill(q, k, v, log_decay, beta, state, keep, room, num_tokens=128)[2]
        for t in range(40):
            _, state = step(q[t], k[t], v[t], log_decay[t], beta[t], state)
        check_bits("state after one tile", ends[0], state)
        check_bits("state after two tiles", ends[1], state)

    def test_value_heads_share_a_key_head_consecutively(self):
        rng = np.random.default_rng(3)
        q, k = normals(rng, 2, 8), normals(rng, 2, 8)
        v, state = normals(rng, 6, 4), normals(rng, 6, 8, 4)
        g, beta = -rng.random(6), rng.random(6)
        out, end = step(q, k, v, g, beta, state)
        wide_out, wide_end = step(
            np.repeat(q, 3, axis=0), np.repeat(k, 3, axis=0), v, g, beta, state
        )
        check_bits("output", out, wide_out)
        check_bits("state", end, wide_end)

    @pytest.mark.parametrize("cut", [64, 128, 192])
    def test_splitting_at_a_page_changes_no_bit(self, cut):
        case = delta_cases.CASES[2]
        args = delta_cases.inputs(case)
        whole = gated_delta_prefill(**args)

        def part(start, stop, state):
            rows = {name: args[name][start:stop] for name in ("q", "k", "v", "log_decay", "beta")}
            discard = np.zeros((stop - start) // 64, np.int32)
            return gated_delta_prefill(
                **rows, state=state, keep=discard, kept=state[None], num_tokens=stop - start
            )

        first = part(0, cut, args["state"])
        second = part(cut, 256, first[1])
        check_bits("outputs", np.concatenate([first[0], second[0]]), whole[0])
        check_bits("state", second[1], whole[1])

    def test_dead_lanes_keep_their_state(self):
        rng = np.random.default_rng(0)
        states = normals(rng, 3, 2, 4, 4)
        args = (normals(rng, 3, 1, 4), normals(rng, 3, 1, 4), normals(rng, 3, 2, 4))
        live = np.array([False, True, False])
        _, after = gated_delta_decode(*args, -rng.random((3, 2)), rng.random((3, 2)), states, live)
        np.testing.assert_array_equal(after[~live], states[~live])
        assert np.all(after[1] != states[1])


class TestAttention:
    def case(self, name):
        return next(c for c in attention_cases.CASES if c.name == name)

    def test_equal_scores_give_the_mean_of_the_values(self):
        case = self.case("dead_lanes")
        q, k, v, table, lengths = attention_cases.inputs(case).values()
        out = paged_attention_decode(np.zeros_like(q), k, v, table, lengths, case.scale)
        pages = page_values(v[table[1, :3], 0]).reshape(-1, case.width)
        np.testing.assert_allclose(out[1, 0], pages[:130].mean(axis=0), rtol=1e-12)
        assert not out[[0, 2]].any()

    def test_one_token_gives_its_value(self):
        case = self.case("one_token")
        q, k, v, table, lengths = attention_cases.inputs(case).values()
        out = paged_attention_decode(q, k, v, table, lengths, case.scale)
        np.testing.assert_array_equal(out[0, 1], page_values(v[table[0, 0], 1, 0]))

    def test_a_dominant_score_gives_its_value(self):
        case = self.case("f32")
        q, k, v, table, lengths = attention_cases.inputs(case).values()
        k[table[2, 4], :, 9] = 1e3
        out = paged_attention_decode(np.ones_like(q), k, v, table, lengths, scale=1.0)
        np.testing.assert_array_equal(out[2, 3], v[table[2, 4], 1, 9])

    def test_a_shift_common_to_all_keys_changes_nothing(self):
        case = self.case("f32")
        q, k, v, table, lengths = attention_cases.inputs(case).values()
        shift = normals(np.random.default_rng(0), case.width).astype(np.float64)
        args = (v, table, lengths, case.scale)
        out = paged_attention_decode(q, k.astype(np.float64), *args)
        shifted = paged_attention_decode(q, k + shift, *args)
        np.testing.assert_allclose(shifted, out, atol=1e-12)

    def test_where_pages_lie_changes_no_bit(self):
        case = self.case("page_edges")
        q, k, v, table, lengths = attention_cases.inputs(case).values()
        moved = np.random.default_rng(1).permutation(case.pages)
        new_k, new_v = np.empty_like(k), np.empty_like(v)
        new_k[moved], new_v[moved] = k, v
        out = paged_attention_decode(q, k, v, table, lengths, case.scale)
        there = paged_attention_decode(
            q, new_k, new_v, moved[table].astype(np.int32), lengths, case.scale
        )
        check_bits("output", there, out)

    @pytest.mark.parametrize("case", prefill_cases.CASES, ids=lambda c: c.name)
    def test_prefill_is_decode_of_every_row(self, case):
        args = prefill_cases.inputs(case)
        out = paged_attention_prefill(**args, scale=case.scale)
        q, k, v, table, *_ = args.values()
        for t in (0, 1, 63, case.tiles * 64 - 1):
            length = np.array([case.first_page * 64 + t + 1], np.int32)
            row = paged_attention_decode(q[t][None], k, v, table[None], length, case.scale)
            check_bits(f"row {t}", out[t], row[0])

    def test_splitting_prefill_at_a_page_changes_no_bit(self):
        case = next(c for c in prefill_cases.CASES if c.name == "cold")
        q, k, v, table, *_ = prefill_cases.inputs(case).values()
        whole = paged_attention_prefill(q, k, v, table, 0, case.scale, 192)
        for page in range(3):
            rows = slice(page * 64, (page + 1) * 64)
            part = paged_attention_prefill(q[rows], k, v, table, page, case.scale, 64)
            check_bits(f"page {page}", part, whole[rows])

    def test_page_bits_are_bf16(self):
        values = np.array([1.0, -2.5, 3.0e38, 1.00390625, 1.01171875], np.float32)
        # The last two lie halfway between neighbours: ties go to the even one.
        expected = [1.0, -2.5, page_values(np.array([0x7F62], np.uint16))[0], 1.0, 1.015625]
        np.testing.assert_array_equal(page_values(to_page_format(values, "bf16")), expected)


class TestConvolution:
    def test_an_impulse_gives_the_taps(self):
        weight = np.array([[0.5, -1.0, 2.0, 3.0]])
        x = np.zeros((64, 1))
        x[10] = 1.0
        out, tails = conv.prefill(x, weight, np.zeros((3, 1)), 64)
        np.testing.assert_allclose(out[10:14, 0], silu(weight[0, ::-1]), rtol=1e-15)
        assert np.count_nonzero(out) == 4
        assert not tails.any()

    def test_the_tail_stands_before_the_run(self):
        weight = np.array([[0.5, -1.0, 2.0, 3.0]])
        out, _ = conv.prefill(np.zeros((64, 1)), weight, np.array([[1.0], [0.0], [0.0]]), 64)
        np.testing.assert_allclose(out[0, 0], silu(0.5), rtol=1e-15)
        assert not out[1:].any()

    def test_prefill_equals_decode_token_by_token(self):
        rng = np.random.default_rng(0)
        x, weight, tail = normals(rng, 128, 5), normals(rng, 5, 4), normals(rng, 3, 5)
        out, tails = conv.prefill(x, weight, tail, 128)
        for t in range(128):
            y, tail = conv.decode(x[t], weight, tail)
            check_bits(f"token {t}", y, out[t])
            if t % 64 == 63:
                check_bits(f"tail after token {t}", tail, tails[t // 64].astype(np.float64))

    def test_splitting_at_a_page_changes_no_bit(self):
        rng = np.random.default_rng(1)
        x, weight, tail = normals(rng, 192, 5), normals(rng, 5, 4), normals(rng, 3, 5)
        whole, tails = conv.prefill(x, weight, tail, 192)
        first, middle = conv.prefill(x[:64], weight, tail, 64)
        second, end = conv.prefill(x[64:], weight, middle[-1], 128)
        check_bits("outputs", np.concatenate([first, second]), whole)
        check_bits("tails", np.concatenate([middle, end]), tails)


@pytest.mark.parametrize("case", copy_cases.CASES, ids=lambda c: c.name)
def test_page_copy_moves_exactly_the_pages_named(case):
    pages, source, target = copy_cases.inputs(case).values()
    copied = page_copy(pages, source, target)
    moved = dict(zip(target.tolist(), source.tolist(), strict=True))
    for page in range(case.pages):
        check_bits(f"page {page}", copied[page], pages[moved.get(page, page)])
