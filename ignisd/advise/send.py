"""Sends traffic to a running daemon, in the order of arrival."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ignisd.advise.traffic import Call
from ignisd.errors import ConfigError

_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of a call: tokens of its prompt, those of them that were cached, and its time."""

    status: int
    prompt_tokens: int
    cached_tokens: int
    took_s: float


class Sender:
    """Makes calls to one daemon.

    A call leaves when its time has come, when the one before it in its conversation has been
    answered, and never before one that arrived earlier has left.

    Args:
        url: of the daemon, such as http://127.0.0.1:8000.
        model: that requests name.
        key: for the daemon; None for none.
        speed: how many times faster than recorded the calls are made.
        clock_s, sleep: time.
    """

    def __init__(
        self,
        url: str,
        model: str,
        key: str | None,
        speed: float = 1.0,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"--send must be http://HOST:PORT; had {url!r}.")
        self._host, self._port = parts.hostname, parts.port or 80
        self._model, self._key, self._speed = model, key, speed
        self._clock_s, self._sleep = clock_s, sleep

    def send(self, calls: Sequence[Call]) -> tuple[Sent, ...]:
        """Make the calls; what came of each, in their order.

        Raises:
            ConfigError: the daemon cannot be reached.
        """
        found: list[Sent | OSError | None] = [None] * len(calls)
        talking: dict[int, threading.Thread] = {}
        began_s = self._clock_s()
        for place, call in enumerate(calls):
            before = talking.get(call.talk)
            if before is not None:
                before.join()
            due_s = began_s + call.at_ms / 1000.0 / self._speed
            self._sleep(max(due_s - self._clock_s(), 0.0))
            left = threading.Event()
            thread = threading.Thread(target=self._call, args=(call, found, place, left))
            talking[call.talk] = thread
            thread.start()
            left.wait()
        for thread in talking.values():
            thread.join()
        return tuple(self._answers(found))

    def _answers(self, found: Sequence[Sent | OSError | None]) -> Iterator[Sent]:
        for one in found:
            if isinstance(one, Sent):
                yield one
            else:
                raise ConfigError(f"{self._host}:{self._port} does not answer: {one}")

    def _call(
        self, call: Call, found: list[Sent | OSError | None], place: int, left: threading.Event
    ) -> None:
        headers = {"content-type": "application/json"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        began_s = self._clock_s()
        try:
            body = json.dumps(call.body(self._model))
            connection.request("POST", "/v1/chat/completions", body, headers)
            left.set()
            response = connection.getresponse()
            told = json.loads(response.read())
            usage = told.get("usage") or {}
            details = usage.get("prompt_tokens_details") or {}
            found[place] = Sent(
                response.status,
                int(usage.get("prompt_tokens", 0)),
                int(details.get("cached_tokens", 0)),
                self._clock_s() - began_s,
            )
        except (OSError, http.client.HTTPException, ValueError) as error:
            found[place] = OSError(str(error))
        finally:
            left.set()
            connection.close()
