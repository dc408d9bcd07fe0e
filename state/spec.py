"""What one sequence holds on the device, in shapes and bytes, and the stamp guarding its reuse."""

import enum
import hashlib
from dataclasses import dataclass

PAGE_TOKENS = 64
"""Tokens in a page, in a chunk of the delta rule, and between two places where anything is kept."""


class KvFormat(enum.StrEnum):
    """How keys and values lie in the pool."""

    BF16 = "bf16"
    F32 = "f32"

    @property
    def value_bytes(self) -> int:
        """Bytes of one stored number."""
        return 2 if self is KvFormat.BF16 else 4


class Class(enum.StrEnum):
    """Who waits for a request: a person, or a program working in the background."""

    INTERACTIVE = "interactive"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The geometry of a sequence's pages and of its mutable state.

    `num_full` layers keep one key and one value row a token; `num_linear` layers keep a matrix
    [value_heads, key_dim, value_dim] in f32 and the last `conv_width - 1` rows of `conv_channels`
    inputs, in the pool's format.
    """

    num_full: int
    kv_heads: int
    head_dim: int
    num_linear: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_channels: int
    conv_width: int
    kv_format: KvFormat

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values for one token, all full layers together."""
        return 2 * self.num_full * self.kv_heads * self.head_dim * self.kv_format.value_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, all full layers together."""
        return PAGE_TOKENS * self.token_bytes

    @property
    def image_bytes(self) -> int:
        """Bytes of one `MutableState`: recurrent state, convolution tail and position."""
        recurrent = 4 * self.value_heads * self.key_dim * self.value_dim
        tail = self.kv_format.value_bytes * (self.conv_width - 1) * self.conv_channels
        return self.num_linear * (recurrent + tail) + 4


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A digest of everything that decides the bits of retained state.

    Two states may be exchanged only where their fingerprints are equal: same artifact, formats,
    layout version, build and backend.
    """

    digest: bytes

    @staticmethod
    def of(**facts: object) -> "Fingerprint":
        """The fingerprint of named facts, independent of their order."""
        text = "\n".join(f"{name}={facts[name]!r}" for name in sorted(facts))
        return Fingerprint(hashlib.blake2b(text.encode(), digest_size=16).digest())

    def __str__(self) -> str:
        return self.digest.hex()
