"""How the daemon is although requests are answered: what is degraded, and what is worth a note.

The words are told to everybody who may ask whether the daemon is well; reasons may name a folder
and are told behind the key.
"""

from collections.abc import Mapping

from ignisd.engine.stats import EngineStats
from ignisd.engine.world import World
from state.tiers.condition import Condition

REUSE = "reuse"
"""What requests leave behind is not kept at present."""

UNLOCKED = "kv_ram_unlocked"
"""The memory of kv_ram may be swapped out: it serves, on an accelerator more slowly."""


def degraded(stats: EngineStats, world: World) -> Mapping[str, str]:
    """What does not work as it should, each with the reason."""
    found = {}
    if stats.degraded:
        found[REUSE] = f"{stats.skipped_in_row} captures in a row were skipped or not written"
    tiers = world.tiers
    if tiers is not None and tiers.shelf is not None:
        writer = tiers.shelf.writer
        if writer.condition is not Condition.WRITING:
            found[f"kv_disk_{writer.condition}"] = writer.why
    return found


def notes(kv_ram: Mapping[str, object] | None) -> Mapping[str, str]:
    """What works and is not as it could be, each with the reason.

    Args:
        kv_ram: what loading told of it; None where there is none.
    """
    if kv_ram is None or kv_ram.get("locked", True):
        return {}
    return {UNLOCKED: str(kv_ram.get("why_not_locked") or "")}
