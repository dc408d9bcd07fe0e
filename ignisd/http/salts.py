"""What keeps the retained prompts of some requests apart from those of others.

A chain of page digests starts from a salt. It is built here from what the client asked for
(`cache_salt`) and from whose key was used (`--reuse-scope key`). Each part is tagged, and the
owner has a fixed length, so no salt that a client can send equals the scope of a key, with or
without a salt inside it.
"""

from ignisd.http.keys import owner_of

_BY_CLIENT = b"salt:"
_BY_KEY = b"key:"


def chain_salt(cache_salt: str | None, key: bytes | None) -> bytes:
    """The salt of a request's chain; nothing where everybody shares.

    Args:
        cache_salt: as the client gave it.
        key: the API key that the request's prompts are kept apart by; None for no such scope.
    """
    scope = b"" if key is None else _BY_KEY + owner_of(key)
    return scope if cache_salt is None else scope + _BY_CLIENT + cache_salt.encode()
