"""A socket that the service manager has opened: taken if it is the one that is meant."""

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from ignisd import listen
from ignisd.errors import ConfigError
from ignisd.kinds import Address
from ignisd.listen import inherited

MINE = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A listening socket under the number at which managers begin to count."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        copy = os.dup(opened.fileno())
        monkeypatch.setattr(listen, "_FIRST_INHERITED", copy)
        yield opened
        with contextlib.suppress(OSError):  # who refuses it closes it
            os.close(copy)


def address_of(opened: socket.socket) -> Address:
    return Address("127.0.0.1", opened.getsockname()[1])


def test_the_socket_of_the_bind_is_taken(handed_over: socket.socket):
    taken = inherited(address_of(handed_over), MINE)
    assert taken is not None
    assert taken.getsockname() == handed_over.getsockname()
    taken.close()


@pytest.mark.parametrize("environ", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}])
def test_what_is_meant_for_nobody_or_another_is_left_alone(
    handed_over: socket.socket, environ: dict[str, str]
):
    assert inherited(address_of(handed_over), environ) is None


def test_another_address_is_refused_with_both_names(handed_over: socket.socket):
    port = handed_over.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"127.0.0.1:{port} and --server-bind is 0.0.0.0:80\."):
        inherited(Address("0.0.0.0", 80), MINE)


@pytest.mark.parametrize("number", ["0", "2", "many"])
def test_more_or_fewer_than_one_are_refused(handed_over: socket.socket, number: str):
    with pytest.raises(ConfigError, match=f"{number} sockets; wanted one"):
        inherited(address_of(handed_over), {**MINE, "LISTEN_FDS": number})


def test_a_socket_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as opened:
        copy = os.dup(opened.fileno())
        monkeypatch.setattr(listen, "_FIRST_INHERITED", copy)
        with pytest.raises(ConfigError, match=r"AF_UNIX and --server-bind is 127\.0\.0\.1:80"):
            inherited(Address("127.0.0.1", 80), MINE)
