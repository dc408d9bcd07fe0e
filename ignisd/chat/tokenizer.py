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

_COMPOSED_BYTES = 3
"""Composing characters (NFC) leaves at least a third of the bytes."""
_PREFIX_CHARS = (6, 24)
"""How many characters for each allowed token are tried before a text is tokenized whole."""
_SEAM = 8
"""Of a prefix, one token in so many is left to what the text after it may change."""


class ChatTokenizer:
    """A byte-level tokenizer, read-only and free to use from any thread.

    Special tokens have no bytes: they never reach a client. Other added tokens (`<think>` among
    them) have the bytes of their text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        # What a checkpoint says of these is meant for training: a prompt is never cut silently.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        description = msgspec.json.decode(tokenizer.to_str().encode())
        if not _is_byte_level(description.get("decoder")):
            raise ConfigError(
                "tokenizer.json decodes with "
                f"{(description.get('decoder') or {}).get('type', 'nothing')}; "
                "only byte-level tokenizers are served"
            )
        added = description.get("added_tokens", [])
        self._added = {
            token["id"]: b"" if token["special"] else token["content"].encode() for token in added
        }
        self._bytes: dict[int, bytes] = {}
        self._normalizer = (description.get("normalizer") or {}).get("type")
        self._strips = any(token.get("lstrip") or token.get("rstrip") for token in added)
        self._most_bytes: int | None = None

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

    def at_least(self, text: str, limit: int) -> int | None:
        """A number of tokens, `limit` or more, that a text surely has; None when it may have fewer.

        Tells that a text is far too long without tokenizing all of it, which takes the better part
        of a minute for some megabytes: by its bytes and the longest entry of the vocabulary, then
        by prefixes of it.
        """
        per_token = self._bytes_per_token()
        if per_token is not None and len(text) >= limit:
            least = -(-len(text.encode("utf-8", "replace")) // per_token)
            if least >= limit:
                return least
        for factor in _PREFIX_CHARS:
            size = factor * limit
            if 2 * size > len(text):
                return None
            known = len(self.encode(text[:size]))
            if known - known // _SEAM >= limit:
                return known - known // _SEAM
        return None

    def _bytes_per_token(self) -> int | None:
        """Most bytes of a text that become one token; None where there is no such bound."""
        if self._strips or self._normalizer not in (None, "NFC"):
            return None
        if self._most_bytes is None:
            # A character of an entry is a byte of the text; of an added one, one byte or more.
            self._most_bytes = max(len(text.encode()) for text in self._tokenizer.get_vocab())
        return self._most_bytes * (1 if self._normalizer is None else _COMPOSED_BYTES)

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
