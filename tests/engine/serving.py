"""A running engine with tiers below its fake device, and real threads for its files."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ignisd.engine.files import FileThreads
from ignisd.engine.loop import Engine
from ignisd.engine.types import Finish
from tests.engine.below import Tiered
from tests.engine.test_loop import Setup, Watched, _clock

PATIENCE_S = 30.0


@dataclass
class Below(Setup):
    """A running engine; `made` is what its world and its disk were made with."""

    made: Tiered | None = None

    @property
    def harness(self) -> Tiered:
        """What the world was made with; it does not follow what becomes of it."""
        assert self.made is not None
        return self.made


@asynccontextmanager
async def serving(made: Tiered, **options: Any) -> AsyncIterator[Below]:
    """An engine that begins with a harness's world; stopped at the end, unless it has died."""
    device = Watched(made.device)
    finishes: list[Finish] = []
    files = FileThreads(made.disk, made.device.cell_rows)
    engine = Engine(
        made.world,
        device,
        clock=_clock,
        check=True,
        on_finish=finishes.append,
        files=files,
        **options,
    )
    task = asyncio.create_task(engine.run())
    try:
        yield Below(engine, device, finishes, task, made=made)
        if not task.done():
            await asyncio.wait_for(engine.stop(), PATIENCE_S)
            await task
            assert not engine.world.sequences
    finally:
        if device.gate is not None:
            device.gate.release(1000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert files.close(PATIENCE_S)
