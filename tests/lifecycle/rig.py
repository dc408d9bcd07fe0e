"""A daemon without a device and without a socket: real engines over a fake device, whose models
are loaded by a loader that does what a test tells it.
"""

import asyncio
import functools
import json
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ignisd.catalog import Catalog
from ignisd.chat.checkpoint import ModelInfo
from ignisd.engine.types import Round, RoundResult
from ignisd.engine.world import Limits, World, new_world
from ignisd.errors import ConfigError
from ignisd.holder import Holder
from ignisd.http.app import build_app
from ignisd.http.counters import HttpCounters
from ignisd.http.keys import KeyRing
from ignisd.http.service import Service
from ignisd.http.serving import Facts
from ignisd.lifecycle import Lifecycle
from ignisd.listen import http_options
from ignisd.live import LiveSettings
from ignisd.resolve import resolve
from ignisd.settings import Settings
from state.retention import RetentionPolicy
from state.spec import Fingerprint
from tests import fake_device
from tests.chat.toy import toy_model
from tests.fake_device import FakeDevice

NAMES = ("a", "b", "c")
WAIT_S = 10.0
CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}
BYTES = 256
"""Tokens of the toy's vocabulary that are text."""


class Gate:
    """Holds a thread up while it is shut; `reached` tells that one has come to it."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.reached = threading.Event()

    def shut(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def passed(self) -> None:
        """Called by whom it holds up."""
        self.reached.set()
        assert self._open.wait(WAIT_S), "a gate was left shut"


class Device:
    """A fake device that may be held up, or break."""

    def __init__(self, gate: Gate) -> None:
        self.inner = FakeDevice(101, 2, 4, 64)
        self.gate = gate
        self.breaks = False

    def run(self, work: Round) -> object:
        assert not self.breaks, "the device is on fire"
        return self.inner.run(work)

    def fetch(self, handle: object) -> RoundResult:
        self.gate.passed()
        return self.inner.fetch(handle)


class FakeModel:
    """A loaded model; `log` hears that it was closed."""

    files = None
    drain_ms = 0.0

    def __init__(self, loader: "FakeLoader", name: str, settings: Settings) -> None:
        self._loader = loader
        self.settings = settings
        self.info: ModelInfo = toy_model(name=name)
        self.runner = Device(loader.rounds)
        self.facts = Facts(page_bytes=10)
        self.world: World = new_world(
            Limits(num_lanes=2, max_context=4096, chunk_tokens=64),
            RetentionPolicy(),
            Fingerprint.of(model=name),
            num_pages=101,
            num_device_slots=0,
            num_host_slots=4,
        )

    def close(self) -> bool:
        self._loader.closing.passed()
        self._loader.events.append(f"close {self.info.name}")
        return not self._loader.stuck


@dataclass
class FakeLoader:
    """Loads fake models.

    Args:
        events: what was done, in order.
        unfit: by name, why a model is refused before anything is given up.
        broken: by name, what loading it raises.
        loading, checking, closing, rounds: hold the steps up.
        stuck: whether closing fails.
        models: those that were loaded.
    """

    events: list[str] = field(default_factory=list)
    unfit: dict[str, str] = field(default_factory=dict)
    broken: dict[str, Exception] = field(default_factory=dict)
    loading: Gate = field(default_factory=Gate)
    checking: Gate = field(default_factory=Gate)
    closing: Gate = field(default_factory=Gate)
    rounds: Gate = field(default_factory=Gate)
    stuck: bool = False
    models: list[FakeModel] = field(default_factory=list)

    def check(self, settings: Settings) -> None:
        name = Path(settings.model).name
        self.checking.passed()
        if name in self.unfit:
            raise ConfigError(self.unfit[name])

    def load(self, settings: Settings, report: Callable[[float], None]) -> FakeModel:
        name = Path(settings.model).name
        report(0.5)
        self.loading.passed()
        if name in self.broken:
            self.events.append(f"fail {name}")
            raise self.broken[name]
        self.events.append(f"load {name}")
        self.models.append(FakeModel(self, name, settings))
        return self.models[-1]

    def free(self) -> None:
        self.events.append("free")


class Uncounted:
    """Counts no compiles."""

    num_compiles = 0

    def start_counting(self) -> None:
        """Nothing is compiled."""

    def stop_counting(self) -> None:
        """Nothing is compiled."""


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def code(self) -> str:
        """Of an error."""
        code: str = self.json["error"]["code"]
        return code


@dataclass
class Rig:
    """The daemon and whoever asks it."""

    folder: Path
    loader: FakeLoader
    service: Service
    lifecycle: Lifecycle
    live: LiveSettings
    app: Any

    async def call(
        self,
        path: str,
        body: object = None,
        *,
        method: str = "",
        leave: asyncio.Event | None = None,
    ) -> Answer:
        """One request; its client leaves when `leave` is set."""
        content = b"" if body is None else json.dumps(body).encode()
        sent = [{"type": "http.request", "body": content, "more_body": False}]
        gone = leave or asyncio.Event()
        messages: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if sent:
                return sent.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method or ("GET" if body is None else "POST"),
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        }
        await asyncio.wait_for(self.app(scope, receive, send), WAIT_S)
        head = messages[0]
        headers = {name.decode(): value.decode() for name, value in head["headers"]}
        text = b"".join(message.get("body", b"") for message in messages[1:]).decode()
        return Answer(head["status"], headers, text)

    def ask(self, model: str | None = None, **fields: Any) -> Awaitable[Answer]:
        """A chat, in a task of its own."""
        leave = fields.pop("leave", None)
        body = {"messages": [USER], "max_tokens": 3, "temperature": 0, **fields}
        if model is not None:
            body["model"] = model
        return asyncio.create_task(self.call(CHAT, body, leave=leave))

    def switch(self, model: str, **more: Any) -> "asyncio.Task[Answer]":
        """A switch, in a task of its own."""
        return asyncio.create_task(self.call("/v1/models/switch", {"model": model}, **more))

    async def health(self) -> tuple[int, str]:
        answer = await self.call("/health")
        return answer.status, answer.json["status"]

    async def statuses(self) -> dict[str, str]:
        listed = (await self.call("/v1/models")).json
        return {each["id"]: each["status"] for each in listed["data"]}

    async def metric(self, line: str) -> float:
        text = (await self.call("/metrics")).text
        (found,) = [each for each in text.splitlines() if each.startswith(f"{line} ")]
        return float(found.split()[-1])

    def is_clean(self) -> bool:
        """Whether nobody waits, nothing is claimed, nothing runs and no model comes."""
        engine, serving = self.service.engine, self.service._serving
        claims = 0 if serving is None else serving.num_claims
        sequences = {} if engine is None else engine.world.sequences
        waits = self.service.num_waiting or self.lifecycle._change is not None
        return not (waits or claims or sequences)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until something holds."""
    ends_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends_s, "it did not happen"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def rigged(*, start: bool = True, **options: str) -> AsyncIterator[Rig]:
    """A daemon that serves model a; b and c are known as well."""
    with (
        tempfile.TemporaryDirectory() as name,
        patch.object(fake_device, "VOCABULARY", BYTES),
    ):
        folder = Path(name)
        for each in NAMES:
            (folder / each).mkdir()
            (folder / each / "config.json").touch()
        chosen = {"model": "a", "models_dir": str(folder), "check": "on", **options}
        live = LiveSettings(resolve(chosen, {}))
        settings = live.settings
        catalog, loader = Catalog(settings.model, settings.models_dir), FakeLoader()
        service = Service(catalog.first.name)
        holder = Holder(
            live,
            service,
            loader,
            Uncounted(),  # type: ignore[arg-type]
            catalog.first,
            clock_s=time.monotonic,
            clock_ms=lambda: time.monotonic() * 1000.0,
        )
        lifecycle = Lifecycle(live, service, catalog, holder, time.monotonic)
        http = http_options(settings, KeyRing(()))
        live.on_change(lambda now: http.follow(http_options(now, KeyRing(()))))
        app = build_app(service, http, HttpCounters(), live)
        rig = Rig(folder, loader, service, lifecycle, live, app)
        if start:
            await lifecycle.start()
        yield rig
        for gate in (loader.loading, loader.checking, loader.closing, loader.rounds):
            gate.open()
        if service.phase != "draining":  # the story has not stopped it
            await asyncio.wait_for(lifecycle.stop(0.0), WAIT_S)


def plays(
    *, start: bool = True, **options: str
) -> Callable[[Callable[[Rig], Awaitable[None]]], Callable[[], None]]:
    """Make of a story of a rig a test without arguments, which a planted fault may make fail."""

    def make(story: Callable[[Rig], Awaitable[None]]) -> Callable[[], None]:
        async def play() -> None:
            async with rigged(start=start, **options) as rig:
                await story(rig)

        def test() -> None:
            asyncio.run(play())

        functools.update_wrapper(test, story)
        del test.__wrapped__  # type: ignore[attr-defined]
        return test

    return make
