"""How the daemon listens: its socket, bound before anything is loaded, and its HTTP server."""

import errno
import logging
import os
import socket
from collections.abc import Callable, Mapping

from ignisd.chat.policies import ChatPolicies, DeveloperPolicy, ReasoningField, SystemPolicy
from ignisd.connections import ServerConfig
from ignisd.errors import ConfigError, IgnisError
from ignisd.http.keys import KeyRing, read_keys
from ignisd.http.options import HttpOptions
from ignisd.http.origin import OriginPolicy
from ignisd.kinds import Address
from ignisd.settings import Settings

_KEEP_ALIVE_S = 75.0
_BACKLOG = 1024
_FIRST_INHERITED = 3
_DEFAULT_BODY_BYTES = 16 << 20

_REASONS = {
    errno.EADDRINUSE: "the port is already in use; stop the program that listens there, or name "
    "another port (port 0 takes a free one)",
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.EACCES: "ports below 1024 need a privilege that this process does not have",
}


def bind(address: Address) -> socket.socket:
    """A socket that listens at an address from now on.

    Raises:
        ConfigError: it cannot, and why.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.bind(where)
            # Of two sockets that are bound alike the first that listens wins, so do it at once.
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        why = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise ConfigError(f"--server-bind {address} cannot be listened on: {why}.") from error
    return listener


def inherited(address: Address, environ: Mapping[str, str]) -> socket.socket | None:
    """The socket that a service manager listens on for this process; see sd_listen_fds(3).

    It must be the one of `address`, on which the rules for keys and browsers depend.

    Raises:
        ConfigError: it is another, or not the only one.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    given = environ.get("LISTEN_FDS", "0")
    if given != "1":
        raise ConfigError(f"The service manager hands over {given} sockets; wanted one.")
    listener = socket.socket(fileno=_FIRST_INHERITED)
    where = listener.family.name
    if listener.family in (socket.AF_INET, socket.AF_INET6):
        where = str(bound_address(listener))
    if where != str(address):
        listener.close()
        raise ConfigError(
            f"The service manager listens on {where} and --server-bind is {address}. Set both to "
            "the same."
        )
    listener.setblocking(False)
    return listener


def bound_address(listener: socket.socket) -> Address:
    """Where a socket listens, the port that it was given included."""
    host, port = listener.getsockname()[:2]
    return Address(host, port)


def server_config(
    listener: socket.socket, on_refused: Callable[[IgnisError], None]
) -> ServerConfig:
    """The HTTP server's settings; it takes the socket over."""
    config = ServerConfig(on_refused)
    config.bind = [f"fd://{listener.detach()}"]
    config.keep_alive_timeout = _KEEP_ALIVE_S
    config.backlog = _BACKLOG
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = logging.getLogger("ignisd.hypercorn")
    return config


def http_options(settings: Settings, keys: KeyRing) -> HttpOptions:
    """What the settings ask of the HTTP layer."""
    body_bytes = settings.server_max_body_bytes
    return HttpOptions(
        keys=keys,
        scoped=settings.reuse_scope == "key",
        origins=OriginPolicy(
            loopback_only=not settings.server_bind.public,
            hosts=settings.server_allowed_hosts,
            origins=settings.server_allowed_origins,
        ),
        chat=ChatPolicies(
            system=SystemPolicy(settings.server_system_message_policy),
            developer=DeveloperPolicy(settings.server_developer_message_policy),
            strip_volatile_headers=settings.server_strip_volatile_headers,
            reasoning_field=ReasoningField(settings.server_reasoning_field),
            calls_in_reasoning=settings.server_calls_in_reasoning,
        ),
        max_body_bytes=_DEFAULT_BODY_BYTES if body_bytes is None else body_bytes,
        load_wait_s=settings.switch_wait_timeout,
        request_timeout_s=settings.server_request_timeout,
        max_preparing=settings.server_queue,
        compat_metrics=settings.metrics_compat == "vllm",
    )


def configured_keys(settings: Settings) -> tuple[str, ...]:
    """The keys that open: the one that is set, and those of the file as it is now.

    Raises:
        ConfigError: the file cannot be read or holds none.
    """
    own = () if settings.server_api_key is None else (settings.server_api_key,)
    path = settings.server_api_key_file
    return own if path is None else (*own, *read_keys(path))
