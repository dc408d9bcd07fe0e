"""What a server's stream is taken to mean, and what is refused."""

import json
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from ignisd.bench import server
from ignisd.bench.server import ServerTarget
from ignisd.bench.target import BenchError, system, user
from tests.bench_cli.scripted import Scripted, serving

CHAT = (system("be kind"), user("hello there"))
USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    made = Scripted()
    with serving(made):
        yield made


def stream(*events: object, end: str = "data: [DONE]") -> list[str]:
    return [*(f"data: {json.dumps(event)}" for event in events), end]


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"delta": fields}]}


def ask(scripted: Scripted, **options: object):
    target = ServerTarget("it", scripted.url, options)
    return target.ask(CHAT, 3)


def test_the_body_asks_for_a_greedy_stream_with_usage(scripted: Scripted):
    target = ServerTarget("it", scripted.url + "/v1/", {"top_k": 1}, "sesame")
    answer = target.ask(CHAT, 3, reuse=False)
    ((_, body),) = scripted.log
    assert body == {
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "hello there"},
        ],
        "model": "model of server",
        "max_tokens": 3,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "top_k": 1,
        "ignore_eos": True,
        "reuse": False,
    }
    assert scripted.headers[0]["authorization"] == "Bearer sesame"
    assert answer.said.count(" ü") == 3
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (6, 3, 0)
    assert 0 < answer.ttft_s <= answer.total_s
    target.ask(CHAT, 3)
    assert "reuse" not in scripted.log[1][1]


def test_reasoning_and_calls_are_said_too(scripted: Scripted):
    call = {"function": {"name": "add", "arguments": '{"a"'}}
    scripted.lines = stream(
        delta(reasoning_content="hm", content=None),
        delta(content="so", tool_calls=[call]),
        delta(tool_calls=[{"function": {"arguments": ": 1}"}}]),
        {"choices": [], "usage": USAGE},
    )
    assert ask(scripted).said == 'hmsoadd{"a": 1}'


@pytest.mark.parametrize(
    ("usage", "timings", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 5}}, {}, 5),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, {}, 0),
        ({"prompt_tokens_details": None}, {}, None),
        ({}, {"cache_n": 4}, 4),
        ({}, None, None),
    ],
)
def test_cached_tokens_are_what_the_server_says(
    scripted: Scripted, usage: dict[str, object], timings: object, cached: int | None
):
    last = {"choices": [], "usage": {**USAGE, **usage}, "timings": timings}
    scripted.lines = stream(delta(content="a"), last)
    assert ask(scripted).cached_tokens == cached


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (stream(delta(content="a"), {"error": {"message": "out of room"}}), "out of room"),
        (stream({"choices": [], "usage": USAGE}, end=": bye"), "broke off"),
        (stream(delta(content="a")), "no usage"),
        (stream({"choices": [], "usage": {"total_tokens": 1}}), "KeyError"),
        (["data: {"], "JSONDecodeError"),
    ],
)
def test_a_stream_that_is_no_answer_is_refused(scripted: Scripted, lines: list[str], why: str):
    scripted.lines = lines
    with pytest.raises(BenchError, match=why) as caught:
        ask(scripted)
    assert caught.value.message.startswith("it: ")


def test_a_refusal_is_shown(scripted: Scripted):
    target = ServerTarget("it", scripted.url, {})
    scripted.status, scripted.lines = 400, ["too long"]
    with pytest.raises(BenchError, match=r"^it: 400 too long"):
        target.ask(CHAT, 3)
    scripted.lines = [json.dumps({"error": {"message": "longer than 8", "code": "x"}})]
    with pytest.raises(BenchError, match=r"^it: 400 longer than 8\.$"):
        target.ask(CHAT, 3)
    assert not scripted.log


def test_a_server_that_refuses_to_go_on_past_the_end_is_not_asked_again(scripted: Scripted):
    scripted.refuses = ("ignore_eos",)
    target = ServerTarget("it", scripted.url, {})
    for _ in range(2):
        assert target.ask(CHAT, 3).completion_tokens == 3
    assert len(scripted.headers) == 3
    scripted.refuses = ("temperature",)
    with pytest.raises(BenchError, match="400 no field temperature"):
        target.ask(CHAT, 3)


def test_a_refusal_for_another_reason_says_nothing_of_the_end(scripted: Scripted):
    target = ServerTarget("it", scripted.url, {})
    scripted.refuses = ("temperature",)
    with pytest.raises(BenchError, match="400 no field temperature"):
        target.ask(CHAT, 3)
    scripted.refuses = ()
    target.ask(CHAT, 3)
    assert scripted.log[-1][1]["ignore_eos"] is True


def test_what_was_said_of_the_end_is_kept(scripted: Scripted):
    ServerTarget("it", scripted.url, {"ignore_eos": False}).ask(CHAT, 3)
    assert scripted.log[-1][1]["ignore_eos"] is False


def test_nobody_there_and_no_url_at_all():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(BenchError, match=f"it: nobody answers at http://127.0.0.1:{port} "):
        ServerTarget("it", f"http://127.0.0.1:{port}", {})
    for url in ("localhost:80", "ftp://localhost", "http://"):
        with pytest.raises(BenchError, match="wanted http"):
            ServerTarget("it", url, {})


def test_a_model_that_is_given_is_not_asked_for(scripted: Scripted):
    target = ServerTarget("it", scripted.url, {"model": "mine"})
    target.ask(CHAT, 1)
    assert scripted.log[0][1]["model"] == "mine"


def test_the_first_token_is_the_first_that_says_something(monkeypatch: pytest.MonkeyPatch):
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: clock.now_s))

    def lines() -> Iterator[bytes]:
        opening = delta(role="assistant", content="")
        ending = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        usage = {"choices": [], "usage": USAGE}
        for line in stream(opening, delta(content="a"), delta(content="b"), ending, usage):
            clock.now_s += 1.0
            yield line.encode()

    answer = server._read_answer(lines(), 0.0)  # type: ignore[arg-type]
    assert (answer.ttft_s, answer.total_s, answer.said) == (2.0, 6.0, "ab")
