"""HTTP/1.1 and nothing else, also for clients that ask for more.

hypercorn switches a plain connection to HTTP/2 when a client asks for it, and keeps a task for such
a connection for ever once its client has gone. No client of ours needs it, and a server may pass
over the wish.
"""

from typing import Any

import hypercorn.protocol
from hypercorn.protocol.h11 import H11Protocol


class Http1Only(H11Protocol):
    """A connection that stays with HTTP/1.1."""

    async def _check_protocol(self, event: Any) -> None:
        """Where hypercorn would switch; the request is answered as it came."""


def install() -> None:
    """Makes hypercorn use such connections; it has no setting for this."""
    setattr(hypercorn.protocol, "H11Protocol", Http1Only)  # noqa: B010 - it exports no such name
