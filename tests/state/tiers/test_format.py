"""The header of a file: what goes in comes out, and every bit of it counts."""

from dataclasses import replace
from random import Random

import pytest

from state.chain import chain_of
from state.retained import KIND_ORDER, Kind
from state.spec import Class
from state.tiers.format import (
    BLOCK_BYTES,
    CHECKSUM_BYTES,
    MAGIC,
    Damage,
    Record,
    StateCorrupt,
    checksum,
    header_bytes_of,
    name_of,
    pack_header,
    pack_tokens,
    unpack_header,
    whole_blocks,
)
from tests.state.tiers.disk_cases import LIVE, RETAINED, SMALL, WHOLE, case_of
from tests.state.tiers.plain_tier import plain


def packed(record: Record) -> tuple[bytes, bytes]:
    """Header and tokens of a record, with made-up checksums of its windows."""
    tokens = pack_tokens(record)
    sums = [checksum([number.to_bytes(4)]) for number in range(record.num_windows)]
    return pack_header(record, checksum([tokens]), sums), tokens


def unpacked(raw: bytes, tokens: bytes, file_bytes: int) -> Record:
    """What a reader makes of these bytes."""
    header = unpack_header(raw[: header_bytes_of(raw[:BLOCK_BYTES], file_bytes)])
    return header.record(tokens)


def flipped(raw: bytes, bit: int) -> bytes:
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_header_says_everything_of_its_state() -> None:
    salts = (b"", b"key:" + bytes(300), "ü".encode())
    for number, kind in enumerate((None, *KIND_ORDER)):
        for cls in Class:
            salt = salts[number % len(salts)]
            tail = 0 if kind else 9
            one = plain(
                7, [1, 2, 3], tail=tail, salt=salt, kind=kind or Kind.PREFIX, cls=cls, hits=number
            )
            record = case_of(one, WHOLE if number % 2 else SMALL).record
            raw, tokens = packed(record)
            again = unpacked(raw, tokens, record.file_bytes)
            assert again == record
            assert again.chain.digests == record.chain.digests
            assert (len(raw), len(tokens)) == (record.header_bytes, record.tokens_bytes)
            sums = unpack_header(raw).window_sums
            assert sums == tuple(checksum([at.to_bytes(4)]) for at in range(record.num_windows))


def test_every_bit_of_a_header_counts() -> None:
    """The zeroes that fill its block as much as the fields, and the checksum itself."""
    record = case_of(RETAINED).record
    raw, tokens = packed(record)
    seen = set()
    for bit in range(8 * len(raw)):
        with pytest.raises(StateCorrupt) as caught:
            unpacked(flipped(raw, bit), tokens, record.file_bytes)
        seen.add(caught.value.damage)
    assert seen == {Damage.HEADER, Damage.VERSION}


def test_every_bit_of_the_tokens_counts() -> None:
    record = case_of(LIVE).record
    raw, tokens = packed(record)
    assert len(tokens) == BLOCK_BYTES > 4 * record.length
    for bit in range(8 * len(tokens)):
        with pytest.raises(StateCorrupt) as caught:
            unpacked(raw, flipped(tokens, bit), record.file_bytes)
        assert caught.value.damage is Damage.TOKENS


def test_tokens_under_another_digest_are_not_taken() -> None:
    """A header with good checksums that was written for other tokens."""
    one, other = case_of(plain(1, [1, 2])).record, case_of(plain(1, [2, 1])).record
    tokens = pack_tokens(other)
    raw = pack_header(one, checksum([tokens]), [b"0" * CHECKSUM_BYTES] * one.num_windows)
    with pytest.raises(StateCorrupt, match="the digest of its 128 tokens") as caught:
        unpacked(raw, tokens, one.file_bytes)
    assert caught.value.damage is Damage.TOKENS


def test_a_checksum_sees_a_bit_wherever_it_is_and_how_parts_are_joined() -> None:
    random = Random(1)
    raw = random.randbytes(5000)
    whole = checksum([raw])
    assert len(whole) == CHECKSUM_BYTES
    for cut in (1, 17, 240, 241, 1024, 4096):
        assert checksum([raw[:cut], memoryview(raw)[cut:]]) == whole
    for bit in range(8 * len(raw)):
        assert checksum([flipped(raw, bit)]) != whole
    assert checksum([raw[:-1]]) != whole != checksum([raw + b"\0"])


def test_windows_tile_the_cells() -> None:
    for letters in ([1], [1, 2, 3], [1] * 40):
        for window_cells in (1, 2, 5, 100):
            record = case_of(plain(1, letters), window_cells=window_cells).record
            at = record.cells_offset
            for number in range(record.num_windows):
                start, num_bytes = record.window(number)
                assert start == at
                assert 0 < num_bytes <= window_cells * SMALL.cell_bytes
                at += num_bytes
            assert at == record.file_bytes
            assert record.cells_offset % BLOCK_BYTES == record.header_bytes % BLOCK_BYTES == 0


def test_a_header_takes_the_blocks_that_its_checksums_need() -> None:
    sizes = {}
    for num_pages in (1, 200, 300, 700):
        record = case_of(plain(1, [1] * num_pages), window_cells=1).record
        raw, tokens = packed(record)
        assert unpacked(raw, tokens, record.file_bytes) == record
        sizes[num_pages] = len(raw)
    assert sizes == {1: 4096, 200: 4096, 300: 8192, 700: 12288}


def test_the_first_block_says_whether_a_header_can_be_there() -> None:
    record = case_of(RETAINED).record
    raw, _ = packed(record)
    wrong = {
        Damage.SHORT: raw[: BLOCK_BYTES - 1],
        Damage.HEADER: b"x" + raw[1:],
        Damage.VERSION: raw[: len(MAGIC)] + b"\x02\0\0\0" + raw[len(MAGIC) + 4 :],
    }
    for damage, block in wrong.items():
        with pytest.raises(StateCorrupt) as caught:
            header_bytes_of(block, record.file_bytes)
        assert caught.value.damage is damage
    with pytest.raises(StateCorrupt, match="4096 bytes does not fit into 4095"):
        header_bytes_of(raw, BLOCK_BYTES - 1)


def test_retained_files_are_named_after_their_content_and_live_ones_after_their_id() -> None:
    names = {
        name_of(chain_of(tokens, salt), None)
        for tokens in (range(64), range(1, 65), range(128))
        for salt in (b"", b"tenant")
    }
    assert len(names) == 6
    chain = chain_of(range(64))
    assert name_of(chain, None) == f"{chain.digests[-1].hex()}-64.state"
    assert name_of(chain, 12) == "live-12.state"
    assert case_of(LIVE).record.name == "live-2.state"
    assert replace(case_of(RETAINED).record, hits=9).name == case_of(RETAINED).record.name


def test_whole_blocks_round_up() -> None:
    assert [whole_blocks(size) for size in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
