"""Generated traffic, and that it is sent in the order of arrival."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest

from ignisd.advise.send import Sender
from ignisd.advise.traffic import SHAPES, Call, generate
from ignisd.errors import ConfigError


def _shared(one: Call, other: Call) -> int:
    pairs = list(zip(one.messages, other.messages, strict=False))
    return next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_seed_decides_all_and_arrivals_are_in_order(shape: str) -> None:
    calls = generate(shape, 6, 1)
    assert calls == generate(shape, 6, 1) != generate(shape, 6, 2)
    assert [call.at_ms for call in calls] == sorted(call.at_ms for call in calls)
    assert len(calls) >= 6
    assert all(call.messages[-1]["role"] == "user" for call in calls)


def test_a_chat_grows_by_what_was_said() -> None:
    calls = generate("chat", 6, 3)
    assert len(calls) == 3 * 1 + 3 * 3
    for before, after in pairwise(calls):
        assert _shared(before, after) >= len(before.messages)


def test_subagents_share_a_system_block_and_branches_part_inside_a_message() -> None:
    agents = generate("burst", 5, 1)
    assert len({call.messages[0]["content"] for call in agents}) == 1
    assert len({call.messages[1]["content"] for call in agents}) == 5
    assert max(call.at_ms for call in agents[:5]) < 1000
    forks = [call.messages[1]["content"] for call in generate("branches", 8, 1)]
    longest = max(len(text.split("\ntask:")[0]) for text in forks)
    assert len({text.split("\ntask:")[0] for text in forks}) > 2
    assert longest > 2000
    assert all(one[:500] == forks[0][:500] for one in forks)


@pytest.fixture
def daemon() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """A server that notes bodies in the order in which they come."""
    came: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            usage = {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": len(came)}}
            body = json.dumps({"usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", came
    server.shutdown()
    thread.join()
    server.server_close()


def test_calls_of_a_conversation_are_made_in_order(
    daemon: tuple[str, list[dict[str, object]]],
) -> None:
    url, came = daemon
    calls = generate("chat", 4, 1)
    sent = Sender(url, "ember", None, speed=1e6).send(calls)
    assert [body["messages"] for body in came] == [list(call.messages) for call in calls]
    assert [one.cached_tokens for one in sent] == list(range(1, len(calls) + 1))
    assert {body["model"] for body in came} == {"ember"}


def test_every_call_of_a_burst_is_made_once(daemon: tuple[str, list[dict[str, object]]]) -> None:
    url, came = daemon
    calls = generate("burst", 4, 1)
    sent = Sender(url, "ember", "secret", speed=1e6).send(calls)
    assert len(sent) == len(came) == len(calls)
    assert sorted(str(body["messages"]) for body in came) == sorted(
        str(list(call.messages)) for call in calls
    )


def test_a_daemon_that_is_not_there_is_said_to_be_so() -> None:
    with pytest.raises(ConfigError, match="does not answer"):
        Sender("http://127.0.0.1:9", "ember", None, speed=1e6).send(generate("burst", 1, 1))
    with pytest.raises(ConfigError, match="--send must be"):
        Sender("localhost", "ember", None)
