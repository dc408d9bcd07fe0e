"""An OpenAI-compatible server that answers from a script, and resumes what it has seen."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAGE = 8
"""Its unit of reuse, in words; each word is a token."""


@dataclass
class Scripted:
    """How a server behaves, and what it was asked.

    Args:
        name: noted with every request in `log`.
        log: may be shared by servers, to see who was asked when.
        cold_word: `reuse: false` is understood.
        tells: `usage` counts cached tokens.
        wrong: a reused answer differs from a cold one.
        wrong_together: answers differ while others are under way.
        remembers: it resumes prompts; how often one has to be sent before is `remembers_after`.
        seen_all: it claims to have seen every prompt.
        delay_s: before each answer.
        lines: when given, the body of every answer.
        status: of every answer.
        refuses: fields that it answers with 400, as strict servers do.
    """

    name: str = "server"
    log: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    cold_word: bool = True
    tells: bool = True
    wrong: bool = False
    wrong_together: bool = False
    remembers: bool = True
    remembers_after: int = 1
    seen_all: bool = False
    delay_s: float = 0.0
    lines: list[str] | None = None
    status: int = 200
    refuses: tuple[str, ...] = ()
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    _seen: dict[str, int] = field(default_factory=dict)
    _open: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, body: dict[str, Any]) -> list[str]:
        """The lines of a stream."""
        words = " ".join(f"{m['role']} {m['content']}" for m in body["messages"]).split()
        cold = self.cold_word and body.get("reuse") is False
        with self._lock:
            self.log.append((self.name, body))
            cached = 0 if cold else self._cached(words)
            together = self._open > 1
        said = hashlib.sha256(" ".join(words).encode()).hexdigest()
        if (self.wrong and cached) or (self.wrong_together and together):
            said = "0" + said[1:] if said[0] != "0" else "1" + said[1:]
        tokens = [f"{said[place % 64]} ü" for place in range(body["max_tokens"])]
        usage: dict[str, Any] = {"prompt_tokens": len(words), "completion_tokens": len(tokens)}
        if self.tells:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        events: list[dict[str, Any]] = [
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
        ]
        events += [{"choices": [{"delta": {"content": token}}]} for token in tokens]
        events += [{"choices": [{"delta": {}, "finish_reason": "length"}]}]
        lines = [": ping", *(f"data: {json.dumps(event)}" for event in events)]
        return [*lines, f"data: {json.dumps({'choices': [], 'usage': usage})}", "data: [DONE]"]

    def _cached(self, words: list[str]) -> int:
        """The longest prefix in whole pages that was sent often enough before; notes this one."""
        most = 0
        for end in range(PAGE, len(words), PAGE):
            prefix = " ".join(words[:end])
            times = self._seen.get(prefix, 0)
            if self.remembers and times >= self.remembers_after:
                most = end
            self._seen[prefix] = times + 1
        return len(words) - 1 if self.seen_all else most


@contextmanager
def serving(*servers: Scripted) -> Iterator[None]:
    """Each server on a port of its own; `url` says where."""
    running = []
    for scripted in servers:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(scripted))
        server.daemon_threads = True
        scripted.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        running.append((server, thread))
    try:
        yield
    finally:
        for server, thread in running:
            server.shutdown()
            thread.join()
            server.server_close()


def _handler(scripted: Scripted) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/models"
            self._send([json.dumps({"data": [{"id": f"model of {scripted.name}"}]})])

        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            scripted.headers.append({name.lower(): text for name, text in self.headers.items()})
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            scripted._open += 1
            time.sleep(scripted.delay_s)
            try:
                strange = [name for name in scripted.refuses if name in body]
                if strange:
                    error = {"message": f"no field {strange[0]}", "param": strange[0]}
                    self._send([json.dumps({"error": error})], 400)
                    return
                lines = scripted.answer(body) if scripted.lines is None else scripted.lines
                self._send(lines)
            finally:
                scripted._open -= 1

        def _send(self, lines: list[str], status: int | None = None) -> None:
            self.send_response(status or scripted.status)
            self.end_headers()
            self.wfile.write("".join(f"{line}\n\n" for line in lines).encode())

        def log_message(self, *parts: object) -> None:
            """Nothing on the standard error."""

    return Handler
