"""An application over a real engine with a fake device, with or without tiers below it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from ignisd.engine.files import FileThreads
from ignisd.engine.loop import Engine
from ignisd.engine.tiers import TierLimits, Tiers
from ignisd.engine.world import Limits, new_world
from ignisd.http.app import build_app
from ignisd.http.counters import HttpCounters
from ignisd.http.options import HttpOptions
from ignisd.http.service import Service
from ignisd.http.serving import Facts
from state.retention import RetentionPolicy
from state.tiers.arena import Arena
from state.tiers.disk import Disk
from state.tiers.format import Layout
from state.tiers.shelf import Shelf
from tests.chat.toy import toy_model
from tests.engine.harness import FINGERPRINT
from tests.fake_device import CELL_BYTES, FakeDevice
from tests.http.rig import CHAT, client_of

FACTS = Facts(page_bytes=1000, image_bytes=7)
SYSTEM = {"role": "system", "content": "Rules of the house. " * 12}
NUM_PAGES = 200
IMAGE_CELLS = 2


@dataclass
class Live:
    engine: Engine
    app: Starlette
    service: Service

    def client(self) -> httpx.AsyncClient:
        made: httpx.AsyncClient = client_of(self.app)
        return made


@dataclass(frozen=True)
class Below:
    """Tiers below the device.

    Args:
        num_cells: of the arena.
        low_cells: free cells from which states are written to files.
        root: where the files lie; None for no disk.
        disk: its system calls.
        limits: of moves, beyond the sizes.
    """

    num_cells: int = 60
    low_cells: int = 0
    root: Path | None = None
    disk_bytes: int = 1 << 20
    disk: Disk | None = None
    limits: dict[str, int] | None = None

    def tiers(self) -> Tiers:
        limits = TierLimits(
            image_bytes=IMAGE_CELLS * CELL_BYTES,
            low_cells=self.low_cells,
            **(self.limits or {}),
        )
        shelf = None
        if self.root is not None:
            layout = Layout(FINGERPRINT, CELL_BYTES, IMAGE_CELLS)
            shelf = Shelf.empty(self.root, layout, self.disk_bytes)
        return Tiers(limits, Arena.empty(self.num_cells, IMAGE_CELLS, CELL_BYTES), shelf)


@asynccontextmanager
async def live(
    options: HttpOptions | None = None,
    *,
    reuse: bool = True,
    below: Below | None = None,
    num_slots: int = 8,
    num_pages: int = NUM_PAGES,
) -> AsyncIterator[Live]:
    """An application over a real engine with a fake device; one slot lies in its memory."""
    world = new_world(
        Limits(num_lanes=2, max_context=4096, chunk_tokens=256, reuse=reuse),
        RetentionPolicy(),
        FINGERPRINT,
        num_pages=num_pages,
        num_device_slots=1,
        num_host_slots=num_slots - 1,
        tiers=None if below is None else below.tiers(),
    )
    ticks = iter(range(10**9))
    options = replace(options or HttpOptions(), now_ms=lambda: float(next(ticks)))
    num_cells = 0 if below is None else below.num_cells
    device = FakeDevice(num_pages, 2, num_slots, 256, num_cells)
    files = None
    if below is not None and below.root is not None:
        files = FileThreads(below.disk or Disk(), device.cell_rows)
    engine = Engine(world, device, clock=options.now_ms, check=True, files=files)
    model = toy_model()
    service = Service(model.name)
    service.set_ready(engine, model, FACTS)
    turning = asyncio.create_task(engine.run())
    try:
        yield Live(engine, build_app(service, options, HttpCounters()), service)
    finally:
        await engine.stop()
        await turning
        if files is not None:
            assert files.close(10.0), "a thread of files is stuck"


def chat(text: str, **fields: Any) -> dict[str, Any]:
    messages = [SYSTEM, {"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": 2, "return_reuse": True, **fields}


async def post(rig: Live, path: str, body: object, key: str | None = None) -> Any:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with rig.client() as client:
        response = await client.post(path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


async def get(rig: Live, path: str) -> Any:
    async with rig.client() as client:
        response = await client.get(path)
    assert response.status_code == 200, response.text
    return response.json()


async def listing(rig: Live, query: str = "") -> Any:
    return await get(rig, "/v1/reuse" + query)


async def fill(rig: Live, count: int, first: int = 0) -> None:
    """So many prompts that share nothing, one after the other."""
    for number in range(first, first + count):
        text = f"{number} " * 60
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
        await post(rig, CHAT, body)


def cached(answer: Any) -> int:
    tokens = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert isinstance(tokens, int)
    return tokens
