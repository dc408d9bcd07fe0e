"""The page chain: stable, sensitive to every bit of every token, and apart under other salts."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.chain import Chain, chain_of, digest_of_salt
from state.reuse import Match, Miss, MissReason, ReuseIndex
from state.spec import PAGE_TOKENS
from tests.state.builders import FINGERPRINT, page_of, retained, tokens_of

GOLDEN = "5ea9625bc64e2ef37cf64198d6c74d25"
GOLDEN_SALTED = "357d3b8543e9a4ecc11670b1d2978bc3"

GOLDEN_PROMPT = "[(7 * i * i + 11) % 248320 for i in range(200)]"


def _digests_in_a_process(seed: str) -> list[str]:
    program = (
        "from state.chain import chain_of\n"
        f"prompt = {GOLDEN_PROMPT}\n"
        "print(chain_of(prompt).digest_at(192).hex())\n"
        "print(chain_of(prompt, b'tenant').digest_at(192).hex())\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.split()


@pytest.mark.parametrize("seed", ["0", "1", "2", "77", "random"])
def test_v89_digests_are_the_same_in_every_process(seed: str) -> None:
    assert _digests_in_a_process(seed) == [GOLDEN, GOLDEN_SALTED]


def _index_with(chain: Chain) -> ReuseIndex:
    return ReuseIndex.empty(FINGERPRINT).insert(retained(1, chain))


@pytest.mark.parametrize("difference", [1, 256, 2**16, 2**24, 7 * 2**24, 2**30])
@pytest.mark.parametrize("at", [0, 63, 64, 130])
def test_l37_ids_that_agree_in_their_low_bits_are_other_ids(difference: int, at: int) -> None:
    prompt = [65] * 200
    other = list(prompt)
    other[at] += difference
    one, two = chain_of(prompt), chain_of(other)
    pages = at // PAGE_TOKENS
    assert one.digests[:pages] == two.digests[:pages]
    assert not set(one.digests[pages:]) & set(two.digests[pages:])
    assert one.num_shared(two) == at
    found = _index_with(one).longest_match(two, 200)
    assert isinstance(found, Miss)
    assert found.diverged_at == at
    assert isinstance(_index_with(one).longest_match(chain_of(prompt), 200), Match)


def test_l37_order_and_split_of_the_tokens_count() -> None:
    prompt = tokens_of([1, 2, 3])
    swapped = list(prompt)
    swapped[3], swapped[4] = swapped[4], swapped[3]
    shifted = [prompt[-1], *prompt[:-1]]
    exchanged = tokens_of([2, 1, 3])
    digests = [chain_of(tokens).digest_at(192) for tokens in (prompt, swapped, shifted, exchanged)]
    assert len(set(digests)) == 4


@given(
    st.lists(st.integers(0, 3), max_size=5),
    st.lists(st.integers(0, 3), max_size=5),
    st.integers(0, 63),
)
def test_digests_are_equal_exactly_where_all_tokens_before_are(
    letters: list[int], others: list[int], tail: int
) -> None:
    one = chain_of(tokens_of(letters, page_of(9)[:tail]))
    two = chain_of(tokens_of(others))
    for page in range(min(len(letters), len(others))):
        same = letters[: page + 1] == others[: page + 1]
        assert (one.digests[page] == two.digests[page]) == same
    shared = 0
    for mine, theirs in zip(one.tokens, two.tokens, strict=False):
        if mine != theirs:
            break
        shared += 1
    assert one.num_shared(two) == two.num_shared(one) == shared
    assert one.is_prefix_of(two) == (shared == one.num_tokens)


def test_a_digest_a_full_page_and_none_for_the_rest() -> None:
    for length in (0, 1, 63, 64, 65, 127, 128):
        chain = chain_of(list(range(length)))
        assert len(chain.digests) == length // PAGE_TOKENS
        assert chain.num_tokens == length
        assert all(len(digest) == 16 for digest in chain.digests)
    for length in (0, 63, 192):
        with pytest.raises(AssertionError):
            chain.digest_at(length)


def test_salts_keep_chains_apart_and_cannot_pass_for_tokens() -> None:
    page = page_of(1)
    plain, salted = chain_of(page), chain_of(page, b"tenant")
    assert plain != salted
    assert plain.digests[0] != salted.digests[0]
    assert plain.num_shared(salted) == 0
    assert not plain.is_prefix_of(salted)
    # A salt that is what the first page's link hashes must not end in that page's digest.
    mimic = digest_of_salt(b"") + plain.raw
    assert digest_of_salt(mimic) != plain.digests[0]
    found = _index_with(plain).longest_match(chain_of([*page, 5], b"tenant"), 65)
    assert found == Miss(MissReason.SALT)


def test_prefix_is_the_chain_of_the_prefix() -> None:
    tokens = tokens_of([1, 2, 3], [7, 8])
    chain = chain_of(tokens, b"salt")
    for length in (0, 1, 64, 100, 192, 194):
        assert chain.prefix(length) == chain_of(tokens[:length], b"salt")
        assert chain.prefix(length).digests == chain_of(tokens[:length], b"salt").digests
    with pytest.raises(AssertionError, match="195 of 194"):
        chain.prefix(195)


def test_every_integer_type_gives_the_same_chain_and_none_aliases_its_source() -> None:
    tokens = np.arange(130, dtype=np.int64)
    chain = chain_of(tokens)
    for dtype in ("int32", ">i4", "uint16", "uint64"):
        assert chain_of(tokens.astype(dtype)).digests == chain.digests
    assert chain_of(tokens[::-1]).digests == chain_of(list(tokens[::-1])).digests
    tokens[0] = 99
    assert chain.tokens[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        chain.tokens[0] = 1
    assert chain_of([]).num_tokens == 0


@pytest.mark.parametrize(
    "tokens", [[-1], [2**31], np.zeros((2, 2), np.int32), np.array([1.0, 2.0])]
)
def test_what_is_no_row_of_token_ids_is_refused(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="token ids must"):
        chain_of(tokens)


def test_no_token_shows_in_the_text_of_a_chain() -> None:
    chain = chain_of([424242] * 64, b"secret")
    assert "424242" not in repr(chain)
    assert "secret" not in repr(chain)
    assert chain.raw.hex()[:8] not in repr(chain)
