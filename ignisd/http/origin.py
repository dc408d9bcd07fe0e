"""Which names a request may call this server by, and which web pages may send one.

A page from anywhere can make a browser send requests to this machine, also under a name that its
own name server points here. So a server that only the loopback reaches answers to loopback names
alone, and a request that a browser sends for a page of another origin is refused, not only
hidden from the page: it would cost a prompt all the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from ignisd.errors import Forbidden
from ignisd.kinds import Address

_PREFLIGHT_S = 600


@dataclass(frozen=True, slots=True)
class OriginPolicy:
    """Whom to answer.

    Args:
        loopback_only: the server listens on the loopback and checks the names it is called by.
        hosts: further names that it answers to.
        origins: pages of other origins that may ask.
    """

    loopback_only: bool = False
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def check(self, headers: Headers) -> None:
        """Raises Forbidden when the request comes under a wrong name or from a wrong page."""
        host = headers.get("host")
        if self.loopback_only and host is not None and not self._is_known(host):
            raise Forbidden(
                f"This server does not answer to the name {_shown(host)}: it serves its own "
                "machine. Name the host in --server-allowed-hosts if it is meant to."
            )
        origin = headers.get("origin")
        if origin is None or origin in self.origins:
            return
        if host is None or _netloc(origin) != host.lower():
            raise Forbidden(
                f"Pages of {_shown(origin)} may not use this server. Name the origin in "
                "--server-allowed-origins if they are meant to."
            )

    def preflight(self, headers: Headers) -> Mapping[str, str] | None:
        """What to answer a browser that asks before it sends; None when this is no such question.

        The request must have passed `check`.
        """
        if "origin" not in headers or "access-control-request-method" not in headers:
            return None
        return {
            **self.answer_headers(headers),
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": headers.get("access-control-request-headers", "*"),
            "access-control-max-age": str(_PREFLIGHT_S),
        }

    def answer_headers(self, headers: Headers) -> Mapping[str, str]:
        """Headers that let an allowed page read the answer."""
        origin = headers.get("origin")
        if origin is None or origin not in self.origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": "x-request-id, x-ignis-reuse",
            "vary": "origin",
        }

    def _is_known(self, host: str) -> bool:
        name = _name_of(host)
        if name in (known.lower() for known in self.hosts):
            return True
        return name.endswith(".localhost") or (bool(name) and not Address(name, 0).public)


def _name_of(host: str) -> str:
    """The name in a Host header, without port and brackets; nothing when it is malformed."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _shown(text: str) -> str:
    return repr(text[:100])
