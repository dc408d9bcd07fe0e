"""An application over a scripted engine, in this process or behind a real socket."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from hypercorn.asyncio import serve
from hypercorn.config import Sockets
from starlette.applications import Starlette

from ignisd.chat.checkpoint import ModelInfo
from ignisd.connections import ServerConfig, install
from ignisd.http.app import build_app
from ignisd.http.counters import HttpCounters
from ignisd.http.options import HttpOptions
from ignisd.http.service import Service
from tests.chat.toy import toy_model
from tests.fakes import Script, ScriptedEngine

USER = {"role": "user", "content": "hello"}
CHAT = "/v1/chat/completions"


@dataclass
class Rig:
    engine: ScriptedEngine
    service: Service
    app: Starlette
    model: ModelInfo
    counters: HttpCounters

    def say(self, text):
        """The tokens of a text, as a script takes them."""
        return self.model.tokenizer.encode(text).tolist()

    def client(self, **kwargs):
        return client_of(self.app, **kwargs)


def client_of(app, **kwargs):
    """A client of an application in this process."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test", **kwargs)


def make_rig(script=None, *, options=None, model=None, ready=True, **engine) -> Rig:
    model = model or toy_model()
    scripted = ScriptedEngine(
        script or Script(model.tokenizer.encode("hello there").tolist()), **engine
    )
    service = Service(model.name)
    if ready:
        service.set_ready(scripted, model)
    counters = HttpCounters()
    app = build_app(service, options or HttpOptions(), counters)
    return Rig(scripted, service, app, model, counters)


class _OneSocketConfig(ServerConfig):
    """Hands the server a socket that listens already: an early client waits, and is not refused."""

    def __init__(self, on_refused):
        super().__init__(on_refused)
        self.bound = socket.create_server(("127.0.0.1", 0))
        self.bound.setblocking(False)

    def create_sockets(self):
        return Sockets([], [self.bound], [])


@asynccontextmanager
async def listening(app, on_refused=lambda error: None, *, keep_alive_s=60.0) -> AsyncIterator[str]:
    """Serve an application on a free port of the loopback; yields host:port."""
    install()
    config = _OneSocketConfig(on_refused)
    config.errorlog = None
    config.graceful_timeout = 0.2
    config.keep_alive_timeout = keep_alive_s
    config.include_server_header = False
    host, port = config.bound.getsockname()
    stop = asyncio.Event()
    task = asyncio.create_task(serve(app, config, shutdown_trigger=stop.wait))
    try:
        yield f"{host}:{port}"
    finally:
        stop.set()
        await task


def ask(**fields):
    return {"messages": [USER], **fields}


def events_of(text):
    """The data events of a stream, comments left out; the last must be [DONE] or an error."""
    blocks = [block for block in text.split("\n\n") if block]
    data = [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]
    return [json.loads(each) if each != "[DONE]" else each for each in data]


def joined(events, field="content"):
    """The concatenated text of a stream."""
    pieces = []
    for event in events:
        if event == "[DONE]" or not event.get("choices"):
            continue
        pieces.append(event["choices"][0]["delta"].get(field) or "")
    return "".join(pieces)


async def until(condition, seconds=30.0):
    """Let the loop run until something holds."""
    async with asyncio.timeout(seconds):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)
