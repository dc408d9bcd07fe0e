"""The tokenizer of a checkpoint: text to token ids, and each token id to its bytes."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer

from ignisd.chat.types import TokenArray
from ignisd.errors import ConfigError


def _byte_of_char() -> dict[str, int]:
    """The printable alphabet of byte-level BPE: each byte stands as one character.

    Bytes that print in Latin-1 stand for themselves, the others for U+0100 upwards, in order.
    """
    printing = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printing]
    table = {chr(byte): byte for byte in printing}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


_BYTE_OF_CHAR = _byte_of_char()


class ChatTokenizer:
    """A byte-level tokenizer, read-only and free to use from any thread.

    Special tokens have no bytes: they never reach a client. Other added tokens (`<think>` among
    them) have the bytes of their text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        description = msgspec.json.decode(tokenizer.to_str().encode())
        if not _is_byte_level(description.get("decoder")):
            raise ConfigError(
                "tokenizer.json decodes with "
                f"{(description.get('decoder') or {}).get('type', 'nothing')}; "
                "only byte-level tokenizers are served"
            )
        self._added = {
            token["id"]: b"" if token["special"] else token["content"].encode()
            for token in description.get("added_tokens", [])
        }
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_file(cls, path: Path) -> "ChatTokenizer":
        """Read a `tokenizer.json`.

        Raises:
            ConfigError: it is absent, unreadable, or of a kind that is not served.
        """
        if not path.is_file():
            raise ConfigError(f"{path} is missing; a checkpoint needs its tokenizer")
        try:
            tokenizer = Tokenizer.from_buffer(path.read_bytes())
        except ValueError as error:
            raise ConfigError(f"{path} is no tokenizer: {error}") from error
        return cls(tokenizer)

    @property
    def num_tokens(self) -> int:
        """Size of the vocabulary, added tokens included."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> TokenArray:
        """Token ids int32 [T] of a text in which special tokens may be spelled out.

        The batch call is the one that lets go of the interpreter while it works.
        """
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.asarray(encoding.ids, dtype=np.int32)

    def token_id(self, text: str) -> int | None:
        """The id of the token that is spelled exactly so, if there is one."""
        found = self._tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to the text; none for special and for unknown ids."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._find_bytes(token)
        return known

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a whole sequence; each invalid byte sequence becomes one U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

    def spell(self, tokens: Sequence[int]) -> str:
        """The text of a whole sequence with special tokens spelled out, as `encode` reads them."""
        return b"".join(map(self._spelled, tokens)).decode("utf-8", "replace")

    def _spelled(self, token: int) -> bytes:
        if token in self._added:
            return str(self._tokenizer.id_to_token(token)).encode()
        return self.token_bytes(token)

    def _find_bytes(self, token: int) -> bytes:
        added = self._added.get(token)
        if added is not None:
            return added
        text = self._tokenizer.id_to_token(token)
        return b"" if text is None else bytes(_BYTE_OF_CHAR[char] for char in text)


def _is_byte_level(decoder: object) -> bool:
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        return [part.get("type") for part in decoder.get("decoders", [])] == ["ByteLevel"]
    return decoder.get("type") == "ByteLevel"
