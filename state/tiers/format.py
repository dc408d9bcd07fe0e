"""How the file of a state lies: a header, the tokens, then the cells of the image and the pages.

    header   whole blocks: the fields, the salt, a checksum of the tokens and of each window of
             cells, zeroes, and in the last 16 bytes a checksum of all that comes before it
    tokens   token ids, int32 little-endian, then zeroes up to a whole block
    cells    the image's, then one a page, without a gap

Every byte of the file is covered by one of these checksums, padding included. The header is
written last, after the rest was synced: a file that has one is whole.
"""

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xxhash import xxh3_128

from state.chain import TOKEN_BYTES, Chain, chain_of, digest_of_salt
from state.retained import Kind
from state.spec import PAGE_TOKENS, Class, Fingerprint
from state.tiers.stored import Stored

BLOCK_BYTES = 4096
CHECKSUM_BYTES = 16
WINDOW_BYTES = 8 << 20
"""Bytes that one checksum covers at most, unless a single cell is larger. It is also the most
that is in flight in one system call, so that checksums and transfers can overlap."""

MAGIC = b"ignisd state\r\n\x1a\n"
VERSION = 1
SUFFIX = ".state"
PARTIAL_SUFFIX = ".partial"
LIVE_PREFIX = "live-"

_FIELDS = struct.Struct("<16sIIQ16s16sQQqBBHIdQIIII16s")
_KINDS: tuple[Kind | None, ...] = (
    None,
    Kind.INTERRUPTED,
    Kind.PERIODIC,
    Kind.CHECKPOINT,
    Kind.TURN_OPEN,
    Kind.JUNCTION,
    Kind.PREFIX,
)
_CLASSES = (Class.INTERACTIVE, Class.AGENT)


class Damage(enum.StrEnum):
    """What is wrong with a file."""

    GONE = "gone"
    UNREADABLE = "unreadable"
    SHORT = "short"
    LENGTH = "length"
    HEADER = "header"
    VERSION = "version"
    TOKENS = "tokens"
    WINDOW = "window"
    NAME = "name"
    FINGERPRINT = "fingerprint"
    LAYOUT = "layout"


class StateCorrupt(Exception):
    """A file is not what it should be, and nothing of it may be used.

    Attributes:
        damage: what is wrong with it.
    """

    def __init__(self, damage: Damage, message: str) -> None:
        super().__init__(message)
        self.damage = damage


@dataclass(frozen=True, slots=True)
class Layout:
    """What is the same in every file of a directory.

    Args:
        fingerprint: what the bytes depend on.
        cell_bytes: bytes of a page, and of a piece of an image.
        image_cells: cells of an image, the last one padded.
    """

    fingerprint: Fingerprint
    cell_bytes: int
    image_cells: int

    def __post_init__(self) -> None:
        assert self.cell_bytes > 0, f"cells of {self.cell_bytes} bytes"
        assert self.image_cells > 0, f"an image in {self.image_cells} cells"

    @property
    def window_cells(self) -> int:
        """Cells that one checksum covers."""
        return max(1, WINDOW_BYTES // self.cell_bytes)


@dataclass(frozen=True, slots=True)
class Record:
    """What a file says of the state in it, and how its bytes lie.

    Args:
        layout: of all files beside it.
        chain: its tokens.
        num_common: as for `Stored`.
        kind: as for `Stored`; None for a live sequence.
        cls: as for `Stored`.
        live_id: the id of a live one; None for a retained state, which its tokens identify.
        hits: how often it had been restored when it was written.
        used_wall_ms: wall clock of its last use before it was written.
        window_cells: cells that one checksum covers.
    """

    layout: Layout
    chain: Chain
    num_common: int
    kind: Kind | None
    cls: Class
    live_id: int | None
    hits: int
    used_wall_ms: float
    window_cells: int

    @property
    def length(self) -> int:
        """Tokens that the image has read."""
        return self.chain.num_tokens

    @property
    def name(self) -> str:
        """What the file is called."""
        return name_of(self.chain, self.live_id)

    @property
    def num_cells(self) -> int:
        """Cells of the image and the pages."""
        return self.layout.image_cells + -(-self.length // PAGE_TOKENS)

    @property
    def num_windows(self) -> int:
        """Checksums over cells."""
        return -(-self.num_cells // self.window_cells)

    @property
    def header_bytes(self) -> int:
        """Bytes before the tokens."""
        checksums = (self.num_windows + 1) * CHECKSUM_BYTES
        return whole_blocks(_FIELDS.size + len(self.chain.salt) + checksums)

    @property
    def tokens_bytes(self) -> int:
        """Bytes of the tokens with what fills their last block."""
        return whole_blocks(self.length * TOKEN_BYTES)

    @property
    def cells_offset(self) -> int:
        """Where the first cell begins."""
        return self.header_bytes + self.tokens_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file."""
        return self.cells_offset + self.num_cells * self.layout.cell_bytes

    def window(self, number: int) -> tuple[int, int]:
        """Where a window begins in the file, and its bytes."""
        assert 0 <= number < self.num_windows, f"window {number} of {self.num_windows}"
        start = number * self.window_cells
        stop = min(start + self.window_cells, self.num_cells)
        cell_bytes = self.layout.cell_bytes
        return self.cells_offset + start * cell_bytes, (stop - start) * cell_bytes


def record_of(stored: Stored, layout: Layout, used_wall_ms: float) -> Record:
    """What the file of a state says, if it was last used at that time of the wall clock."""
    return Record(
        layout=layout,
        chain=stored.chain,
        num_common=stored.num_common,
        kind=stored.kind,
        cls=stored.cls,
        live_id=stored.id if stored.is_live else None,
        hits=stored.hits,
        used_wall_ms=used_wall_ms,
        window_cells=layout.window_cells,
    )


def name_of(chain: Chain, live_id: int | None) -> str:
    """What a file is called: a retained one after its tokens, a live one after its id."""
    if live_id is not None:
        return f"{LIVE_PREFIX}{live_id}{SUFFIX}"
    return f"{chain.digests[-1].hex()}-{chain.num_tokens}{SUFFIX}"


def whole_blocks(num_bytes: int) -> int:
    """Bytes rounded up to whole blocks, which is what they take on a disk."""
    return -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES


def checksum(parts: Sequence[bytes | memoryview]) -> bytes:
    """A digest of parts that lie one after the other."""
    digest = xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.digest()


def pack_tokens(record: Record) -> bytes:
    """The bytes between the header and the cells."""
    return record.chain.raw.ljust(record.tokens_bytes, b"\0")


def pack_header(record: Record, tokens_sum: bytes, window_sums: Sequence[bytes]) -> bytes:
    """The bytes that make a file whole.

    Args:
        record: what the file holds.
        tokens_sum: the checksum of the tokens with their padding.
        window_sums: the checksum of each window.
    """
    assert len(window_sums) == record.num_windows, (
        f"{len(window_sums)} checksums for {record.num_windows} windows"
    )
    chain, layout = record.chain, record.layout
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        record.header_bytes,
        record.file_bytes,
        layout.fingerprint.digest,
        _content(chain),
        record.length,
        record.num_common,
        -1 if record.live_id is None else record.live_id,
        _KINDS.index(record.kind),
        _CLASSES.index(record.cls),
        0,
        record.hits,
        record.used_wall_ms,
        layout.cell_bytes,
        layout.image_cells,
        record.window_cells,
        record.num_windows,
        len(chain.salt),
        tokens_sum,
    )
    covered = b"".join([fields, chain.salt, *window_sums])
    covered = covered.ljust(record.header_bytes - CHECKSUM_BYTES, b"\0")
    return covered + checksum([covered])


def header_bytes_of(block: bytes, file_bytes: int) -> int:
    """How long the header is of which this is the first block.

    Raises:
        StateCorrupt: no header of this version begins here, or it would not fit into the file.
    """
    if len(block) < BLOCK_BYTES:
        raise StateCorrupt(Damage.SHORT, f"{len(block)} bytes are no header of {BLOCK_BYTES}")
    magic, version, header_bytes, *_ = _FIELDS.unpack_from(block)
    if magic != MAGIC:
        raise StateCorrupt(Damage.HEADER, "it does not begin as the file of a state does")
    if version != VERSION:
        raise StateCorrupt(Damage.VERSION, f"it has version {version}, not {VERSION}")
    if not BLOCK_BYTES <= header_bytes <= file_bytes or header_bytes % BLOCK_BYTES:
        raise StateCorrupt(
            Damage.HEADER, f"its header of {header_bytes} bytes does not fit into {file_bytes}"
        )
    return int(header_bytes)


@dataclass(frozen=True, slots=True)
class Header:
    """A header whose own checksum holds; the tokens are still to be read.

    Args:
        layout, num_common, kind, cls, live_id, hits, used_wall_ms, window_cells: as in `Record`.
        file_bytes: how long the file should be.
        content: the digest of the tokens' whole pages.
        length: tokens.
        salt: of the tokens.
        tokens_sum: the checksum of the tokens with their padding.
        window_sums: the checksum of each window.
    """

    layout: Layout
    num_common: int
    kind: Kind | None
    cls: Class
    live_id: int | None
    hits: int
    used_wall_ms: float
    window_cells: int
    file_bytes: int
    content: bytes
    length: int
    salt: bytes
    tokens_sum: bytes
    window_sums: tuple[bytes, ...]

    @property
    def tokens_bytes(self) -> int:
        """Bytes of the tokens with their padding, which follow the header."""
        return whole_blocks(self.length * TOKEN_BYTES)

    def record(self, tokens: bytes) -> Record:
        """What the file holds, once its tokens have been read.

        Raises:
            StateCorrupt: they are not the ones that the header was written for.
        """
        if checksum([tokens]) != self.tokens_sum:
            raise StateCorrupt(Damage.TOKENS, f"the checksum of its {self.length} tokens differs")
        chain = chain_of(np.frombuffer(tokens, "<i4", self.length), self.salt)
        if _content(chain) != self.content:
            raise StateCorrupt(Damage.TOKENS, f"the digest of its {self.length} tokens differs")
        return Record(
            layout=self.layout,
            chain=chain,
            num_common=self.num_common,
            kind=self.kind,
            cls=self.cls,
            live_id=self.live_id,
            hits=self.hits,
            used_wall_ms=self.used_wall_ms,
            window_cells=self.window_cells,
        )


def unpack_header(raw: bytes) -> Header:
    """The fields of a whole header, as long as `header_bytes_of` says.

    Raises:
        StateCorrupt: its checksum differs.
    """
    if checksum([memoryview(raw)[:-CHECKSUM_BYTES]]) != raw[-CHECKSUM_BYTES:]:
        raise StateCorrupt(Damage.HEADER, f"the checksum of its {len(raw)} bytes of header differs")
    (_, _, _, file_bytes, fingerprint, content, length, num_common, live_id, kind, cls, _, hits,
     used_wall_ms, cell_bytes, image_cells, window_cells, num_windows, salt_bytes, tokens_sum,
    ) = _FIELDS.unpack_from(raw)  # fmt: skip
    salt_end = _FIELDS.size + salt_bytes
    sums = [salt_end + number * CHECKSUM_BYTES for number in range(num_windows)]
    return Header(
        layout=Layout(Fingerprint(fingerprint), cell_bytes, image_cells),
        num_common=num_common,
        kind=_KINDS[kind],
        cls=_CLASSES[cls],
        live_id=None if live_id < 0 else live_id,
        hits=hits,
        used_wall_ms=used_wall_ms,
        window_cells=window_cells,
        file_bytes=file_bytes,
        content=content,
        length=length,
        salt=raw[_FIELDS.size : salt_end],
        tokens_sum=tokens_sum,
        window_sums=tuple(raw[start : start + CHECKSUM_BYTES] for start in sums),
    )


def _content(chain: Chain) -> bytes:
    return chain.digests[-1] if chain.digests else digest_of_salt(chain.salt)
