"""What identifies the tokens of a prompt: one digest for each page and all pages before it.

The digest of page i is a keyed BLAKE3 of the digest before it and the page's token ids as 32-bit
little-endian numbers; the chain starts from a digest of the salt under another key. Both keys
derive from a name with a version, so a change of the layout changes every digest, and a salt
cannot pass for tokens. Nothing of the process goes in: digests are equal in every process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from state.spec import PAGE_TOKENS

DIGEST_BYTES = 16
TOKEN_BYTES = 4
PAGE_KEY_BYTES = PAGE_TOKENS * TOKEN_BYTES

_SALT_KEY = blake3(b"", derive_key_context="ignisd 2026 page chain 1: salt").digest()
_PAGE_KEY = blake3(b"", derive_key_context="ignisd 2026 page chain 1: page").digest()

Link = Callable[[bytes, bytes], bytes]
"""From the digest before a page and the page's bytes to the digest that covers both."""


def link_page(before: bytes, page: bytes) -> bytes:
    """The digest of a page and of all that came before it."""
    return blake3(before + page, key=_PAGE_KEY).digest(DIGEST_BYTES)


def digest_of_salt(salt: bytes) -> bytes:
    """Where the chain of a salt starts."""
    return blake3(salt, key=_SALT_KEY).digest(DIGEST_BYTES)


@dataclass(frozen=True, slots=True, repr=False)
class Chain:
    """Tokens with the digests of their full pages.

    Equal when tokens and salt are equal; digests follow from these. Its text names no token.

    Args:
        raw: the token ids, 32-bit little-endian, one after the other.
        digests: one for each full page; number i covers pages 0 to i.
        salt: keeps chains with other salts apart, whatever their tokens.
    """

    raw: bytes
    digests: tuple[bytes, ...] = field(compare=False)
    salt: bytes

    @property
    def num_tokens(self) -> int:
        """Tokens, those after the last full page included."""
        return len(self.raw) // TOKEN_BYTES

    @property
    def num_bytes(self) -> int:
        """Host memory that the tokens and digests take."""
        return len(self.raw) + sum(map(len, self.digests))

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """[num_tokens] int32, read-only: the token ids."""
        return np.frombuffer(self.raw, "<i4")

    def digest_at(self, length: int) -> bytes:
        """The digest of the first `length` tokens, a positive multiple of the page."""
        assert 0 < length <= len(self.digests) * PAGE_TOKENS, (
            f"no digest at {length}; full pages end at {len(self.digests) * PAGE_TOKENS}"
        )
        assert length % PAGE_TOKENS == 0, f"{length} is no multiple of {PAGE_TOKENS}"
        return self.digests[length // PAGE_TOKENS - 1]

    def prefix(self, length: int) -> "Chain":
        """The first `length` tokens, copied, so that a short key does not keep a long prompt."""
        assert 0 <= length <= self.num_tokens, f"prefix of {length} of {self.num_tokens} tokens"
        if length == self.num_tokens:
            return self
        return Chain(
            self.raw[: length * TOKEN_BYTES], self.digests[: length // PAGE_TOKENS], self.salt
        )

    def is_prefix_of(self, other: "Chain") -> bool:
        """Whether the other one starts with these tokens, compared by their ids, and salt."""
        return self.salt == other.salt and other.raw.startswith(self.raw)

    def num_shared(self, other: "Chain") -> int:
        """How many leading tokens are equal, compared by their ids; 0 under different salts."""
        if self.salt != other.salt:
            return 0
        limit = min(self.num_tokens, other.num_tokens)
        differs = self.tokens[:limit] != other.tokens[:limit]
        first = int(differs.argmax()) if limit else 0
        return first if limit and differs[first] else limit

    def __repr__(self) -> str:
        last = self.digests[-1].hex() if self.digests else "none"
        return f"Chain({self.num_tokens} tokens, last digest {last})"


def chain_of(
    tokens: Sequence[int] | npt.NDArray[np.integer],
    salt: bytes = b"",
    link: Link = link_page,
) -> Chain:
    """The chain of a prompt.

    Args:
        tokens: [num_tokens] token ids, 0 to 2**31 - 1.
        salt: from the request; chains match only under equal salts.
        link: how digests are made; another one is for tests of what happens when they collide.

    Raises:
        ValueError: not one row of integers, or an id that does not fit.
    """
    ids = np.asarray(tokens)
    if ids.size == 0:
        ids = ids.astype(np.int32)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"token ids must be one row of integers, not {ids.dtype} {ids.shape}")
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) > 2**31 - 1):
        raise ValueError(
            f"token ids must lie in 0 to {2**31 - 1}, not {int(ids.min())} to {int(ids.max())}"
        )
    raw = ids.astype("<i4", copy=False).tobytes()
    digest = digest_of_salt(salt)
    digests = []
    for start in range(0, len(raw) - PAGE_KEY_BYTES + 1, PAGE_KEY_BYTES):
        digest = link(digest, raw[start : start + PAGE_KEY_BYTES])
        digests.append(digest)
    return Chain(raw, tuple(digests), salt)
