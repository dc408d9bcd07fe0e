"""Any server that speaks the OpenAI protocol, as a target: streamed chat completions."""

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from ignisd.bench.target import Answer, BenchError, Chat, as_sent

_TIMEOUT_S = 1800.0
_FAILURES = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError)
"""What a server that is gone, or that speaks another protocol, makes of a call."""


_TO_THE_END = "ignore_eos"
"""The field by which most servers let an answer run on to its full length."""


class _Broken(Exception):
    """A stream that is no answer."""


class _Refused(BenchError):
    """A request that the server does not take as it is (400 or 422)."""


class ServerTarget:
    """A server behind a URL.

    It is asked to let answers run to their full length, so that runs can be compared; not any more
    once it has refused that field.

    Args:
        name: as in the tables.
        url: its base, `http://host:port` with or without `/v1`.
        extra: fields for every request's body, such as `ignore_eos` or `model`.
        key: sent as a bearer token where given.

    Raises:
        BenchError: there is no such server, or it names no model and `extra` does neither.
    """

    def __init__(
        self, name: str, url: str, extra: Mapping[str, object], key: str | None = None
    ) -> None:
        self._name = name
        self._url = url
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BenchError(f"--url {name}={url}: wanted http://HOST:PORT or https://HOST:PORT")
        self._kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._place = parts.netloc.rpartition("@")[2]
        path = parts.path.rstrip("/")
        self._base = path if path.endswith("/v1") else f"{path}/v1"
        self._headers = {"content-type": "application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._extra = dict(extra)
        self._extra.setdefault("model", self._first_model())
        self._asks_for_all = _TO_THE_END not in self._extra

    @property
    def name(self) -> str:
        """As in the tables."""
        return self._name

    def close(self) -> None:
        """Nothing is held between calls."""

    def ask(self, chat: Chat, max_tokens: int, *, reuse: bool = True) -> Answer:
        """A greedy, streamed answer; see `Target`."""
        body: dict[str, object] = {
            "messages": as_sent(chat),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
        if not reuse:
            body["reuse"] = False
        if not self._asks_for_all:
            return self._asked(body)
        try:
            return self._asked({**body, _TO_THE_END: True})
        except _Refused:
            answer = self._asked(body)  # it is refused for another reason, or answers
            self._asks_for_all = False
            return answer

    def _asked(self, body: Mapping[str, object]) -> Answer:
        try:
            with closing(self._kind(self._place, timeout=_TIMEOUT_S)) as connection:
                connection.connect()
                began_s = time.monotonic()
                connection.request(
                    "POST", f"{self._base}/chat/completions", json.dumps(body), self._headers
                )
                with connection.getresponse() as response:
                    if response.status != 200:
                        raise self._refusal(response.status, response.read())
                    return _read_answer(response, began_s)
        except _Broken as error:
            raise BenchError(f"{self._name}: {error}") from error
        except _FAILURES as error:
            raise self._failure(error) from error

    def _first_model(self) -> str:
        try:
            with closing(self._kind(self._place, timeout=_TIMEOUT_S)) as connection:
                connection.request("GET", f"{self._base}/models", headers=self._headers)
                response = connection.getresponse()
                text = response.read()
                if response.status != 200:
                    raise self._refusal(response.status, text)
                return str(json.loads(text)["data"][0]["id"])
        except _FAILURES as error:
            raise self._failure(error) from error

    def _refusal(self, status: int, text: bytes) -> BenchError:
        kind = _Refused if status in (400, 422) else BenchError
        return kind(f"{self._name}: {status} {_told(text)}")

    def _failure(self, error: Exception) -> BenchError:
        """What it means that a call failed before there was an answer."""
        if isinstance(error, ConnectionRefusedError | socket.gaierror):
            why = f"nobody answers at {self._url} ({error.strerror})"
        else:
            why = f"{type(error).__name__}: {error}"
        return BenchError(f"{self._name}: {why}")


def _told(text: bytes) -> str:
    """The message of an error as the protocol has it, or how the text begins."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return text[:400].decode(errors="replace")


def _read_answer(response: http.client.HTTPResponse, began_s: float) -> Answer:
    first_s: float | None = None
    said: list[str] = []
    usage: dict[str, Any] | None = None
    cached: int | None = None
    for event in _events(response):
        if event.get("error"):
            raise _Broken(f"the stream ended with an error: {event['error']}")
        usage = event.get("usage") or usage
        # llama.cpp's server counts here.
        cached = (event.get("timings") or {}).get("cache_n", cached)
        for choice in event.get("choices") or []:
            piece = _piece(choice.get("delta") or {})
            if piece or choice.get("finish_reason"):
                first_s = first_s or time.monotonic()
            said.append(piece)
    ended_s = time.monotonic()
    if usage is None:
        raise _Broken("the stream held no usage; stream_options.include_usage is needed")
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        began_s=began_s,
        ttft_s=(first_s or ended_s) - began_s,
        total_s=ended_s - began_s,
        prompt_tokens=int(usage["prompt_tokens"]),
        cached_tokens=details.get("cached_tokens", cached),
        completion_tokens=int(usage["completion_tokens"]),
        said="".join(said),
    )


def _piece(delta: Mapping[str, Any]) -> str:
    parts = [delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content")]
    for call in delta.get("tool_calls") or []:
        parts += [call["function"].get("name"), call["function"].get("arguments")]
    return "".join(part for part in parts if part)


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The objects of an event stream, up to its end mark; raises _Broken without one."""
    for line in response:
        name, _, data = line.decode().partition(":")
        if name != "data":
            continue
        if data.strip() == "[DONE]":
            return
        yield json.loads(data)
    raise _Broken("the stream broke off before [DONE]")
