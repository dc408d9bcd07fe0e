"""A daemon that tells what it holds: `python -m tests.bench.watched FILE FAULT [FLAG VALUE]...`.

It does so on SIGUSR2. FILE is written whole or not at all. FAULT is a planted one, or `none`. What
can be seen from outside, such as descriptors, is not told here.
"""

import asyncio
import json
import signal
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ignisd.cli import main
from ignisd.engine.loop import Engine
from tests.mutants import MUTANTS

_LAZY_POOLS = ("ignisd-chat", "ignisd-load")
"""Pools of a fixed most, whose threads start when there is something to do and then stay."""


def held(engine: Engine) -> dict[str, int]:
    """What an engine holds, in numbers that are the same whenever nothing is left of a request."""
    world = engine.world
    told = {
        "sequences": len(world.sequences),
        "queue": len(world.queue),
        "lanes in use": sum(seq.lane is not None for seq in world.sequences.values()),
        "captures under way": len(world.pending) + len(world.interrupted),
        "pages free": world.pages.num_free,
        "slots free": world.slots.num_free,
        "states": len(world.index),
        "streams": len(engine._streams),
        "readers behind": len(engine._behind),
        "tasks": len(asyncio.all_tasks()),
        "threads": sum(not each.name.startswith(_LAZY_POOLS) for each in threading.enumerate()),
    }
    tiers = world.tiers
    if tiers is not None:
        told |= {
            "cells free": tiers.arena.num_free,
            "states below": len(tiers.arena.index) + len(tiers.arena.pending),
            "orphans": len(tiers.orphans),
            "files under way": len(tiers.writing) + len(tiers.reading),
            "transient": len(tiers.transient),
        }
        if tiers.shelf is not None:
            told |= {"files": len(tiers.shelf.charged), "file bytes": tiers.shelf.used_bytes}
    return told


def watch(path: Path) -> None:
    """From now on tell, of the engine that is made next."""
    engines: list[Engine] = []
    real = Engine.__init__

    def init(self: Engine, *words: Any, **named: Any) -> None:
        real(self, *words, **named)
        engines.append(self)

    def tell(*_: object) -> None:
        # A handler runs in the main thread amid the loop, which has no other.
        whole = path.with_suffix(".whole")
        whole.write_text(json.dumps(held(engines[-1])))
        whole.rename(path)

    patch.object(Engine, "__init__", init).start()
    signal.signal(signal.SIGUSR2, tell)


if __name__ == "__main__":
    told_in, fault, *flags = sys.argv[1:]
    watch(Path(told_in))
    with nullcontext() if fault == "none" else MUTANTS[fault].plant():
        sys.exit(main(flags))
