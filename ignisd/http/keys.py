"""The API keys: who may ask, and whose prompts belong together."""

import hmac
from collections.abc import Iterable
from pathlib import Path

from blake3 import blake3

from ignisd.errors import ConfigError

_OWNER_CONTEXT = "ignisd 2026 reuse scope: api key"
_OWNER_BYTES = 16


class KeyRing:
    """The keys of which any opens; none means that nobody is asked for one.

    They may be replaced while requests are answered. It belongs to the event loop.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys: tuple[bytes, ...] = ()
        self.replace(keys)

    def replace(self, keys: Iterable[str]) -> None:
        """Open to these keys from now on, and to no other."""
        self._keys = tuple(dict.fromkeys(key.encode() for key in keys))

    @property
    def num_keys(self) -> int:
        """How many different keys there are."""
        return len(self._keys)

    def find(self, given: Iterable[bytes]) -> bytes | None:
        """The first known key among those given.

        All are compared with all, whatever is found, so that the time taken tells nothing.
        """
        found: bytes | None = None
        for each in given:
            for key in self._keys:
                if hmac.compare_digest(each, key) and found is None:
                    found = key
        return found


def owner_of(key: bytes) -> bytes:
    """Stands for a key where the key itself must not lie: 16 bytes, equal in every process."""
    return blake3(key, derive_key_context=_OWNER_CONTEXT).digest(_OWNER_BYTES)


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys of a file, one a line; blank lines and those that begin with # are passed over.

    Raises:
        ConfigError: the file cannot be read, is no text, or holds no key.
    """
    flag = f"--server-api-key-file {path}"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{flag} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag} is not UTF-8 text.") from error
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"{flag} holds no key; write at least one on a line of its own.")
    return keys
