"""The tokens of an answer so far, as a value that grows cheaply."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_BLOCK_TOKENS = 64
_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """Tokens in order: full blocks as bytes, then the rest, so that one more copies little."""

    blocks: tuple[bytes, ...] = ()
    rest: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.blocks) * _BLOCK_TOKENS + len(self.rest)

    def __getitem__(self, place: int) -> int:
        assert 0 <= place < len(self), f"token {place} of {len(self)}"
        block, offset = divmod(place, _BLOCK_TOKENS)
        if block == len(self.blocks):
            return self.rest[offset]
        at = offset * _TOKEN_BYTES
        return int.from_bytes(self.blocks[block][at : at + _TOKEN_BYTES], "little")

    def add(self, token: int) -> "Answer":
        """With one token more."""
        rest = (*self.rest, token)
        if len(rest) < _BLOCK_TOKENS:
            return Answer(self.blocks, rest)
        return Answer((*self.blocks, np.asarray(rest, "<i4").tobytes()), ())

    def tokens(self, count: int) -> npt.NDArray[np.int32]:
        """[count] int32: the first tokens of the answer."""
        assert count <= len(self), f"{count} of {len(self)} tokens"
        whole = np.frombuffer(b"".join(self.blocks), "<i4")
        return np.concatenate([whole, np.asarray(self.rest, np.int32)])[:count].astype(np.int32)
