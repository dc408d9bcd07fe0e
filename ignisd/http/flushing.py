"""POST /v1/reuse/flush: what it freed in each tier, and what it could not free yet.

A flush takes effect at once in what can be found. What moves, what a restore reads and what lies in
files goes a moment later: it is waited for a little, and what is left then is told.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ignisd.engine.types import Tier
from ignisd.engine.world import World
from ignisd.http.listing import Told, listed_pages
from ignisd.http.serving import Facts


@dataclass(frozen=True, slots=True)
class Flush:
    """The worlds before and after a flush, next to each other.

    Args:
        tier: the one that was flushed; None is all.
    """

    tier: Tier | None
    before: World
    after: World

    def is_done(self, now: World) -> bool:
        """Whether all that could not go at once has gone."""
        return not (self._held(now) or self._files(now))

    def told(self, now: World, facts: Facts) -> Told:
        """The body of the answer.

        Args:
            now: the world some time after the flush.
            facts: sizes of the two halves of a state.
        """
        device, ram, disk = self._device(facts), self._ram(now), self._disk(now)
        freed = {Tier.DEVICE: device, Tier.KV_RAM: ram, Tier.KV_DISK: disk}
        if self.before.tiers is None:
            del freed[Tier.KV_RAM], freed[Tier.KV_DISK]
        held, files = self._held(now), self._files(now)
        shared = self.after.pages.counts[listed_pages(self.before)] > 0
        flushes_device = self.tier in (None, Tier.DEVICE)
        return {
            "object": "reuse.flush",
            "tier": self.tier,
            "freed": {
                "states": sum(one["states"] for one in freed.values()),
                "pages": device["pages"],
                "slots": device["slots"],
                "bytes": sum(one["bytes"] for one in freed.values()),
                "bytes_by_tier": {tier.value: one["bytes"] for tier, one in freed.items()},
                "states_by_tier": {tier.value: one["states"] for tier, one in freed.items()},
            },
            "kept": {
                # Pages of discarded states that running requests read, and captures under way,
                # whose states appear when they are written.
                "pages_in_use": int(np.count_nonzero(shared)) if flushes_device else 0,
                "captures_under_way": len(now.pending) + len(now.interrupted),
                # States of kv_ram that a move, a restore or a file being written still touches.
                "states_in_use": len(held),
                # Files that are still to be removed, or being written for nobody.
                "files_in_use": len(files),
                "file_bytes_in_use": sum(files.values()),
            },
        }

    def _device(self, facts: Facts) -> dict[str, int]:
        before, after = self.before, self.after
        pages = after.pages.num_free - before.pages.num_free
        slots = after.slots.num_free - before.slots.num_free
        return {
            "states": len(before.index) - len(after.index),
            "pages": pages,
            "slots": slots,
            "bytes": pages * facts.page_bytes + slots * facts.image_bytes,
        }

    def _ram(self, now: World) -> dict[str, int]:
        """Retained states that are found no more, and the cells that are free or were held."""
        before, after = self.before.tiers, self.after.tiers
        if before is None or after is None:
            return {"states": 0, "bytes": 0}
        held = self._orphans(self.after)
        gone = len(self._in_ram(self.before)) - len(self._in_ram(self.after))
        num_bytes = before.arena.used_bytes - after.arena.used_bytes
        late = held - self._held(now)
        num_bytes += sum(after.arena.num_sole(id) for id in late) * after.arena.cell_bytes
        return {"states": gone, "bytes": num_bytes}

    def _disk(self, now: World) -> dict[str, int]:
        before, after = self.before.tiers, self.after.tiers
        if before is None or before.shelf is None or after is None or after.shelf is None:
            return {"states": 0, "bytes": 0}
        tallies = before.shelf.index.tally, after.shelf.index.tally
        left = self._files(now)
        going = self._going(self.after)
        return {
            "states": tallies[0].num_retained - tallies[1].num_retained,
            "bytes": sum(size for path, size in going.items() if path not in left),
        }

    @staticmethod
    def _in_ram(world: World) -> set[int]:
        """Retained states that can be found in kv_ram, or are on their way there."""
        tiers = world.tiers
        assert tiers is not None
        landed = {one.id for one in tiers.arena.index if not one.is_live} - tiers.transient
        coming = {one.id for one in tiers.arena.pending.values() if not one.is_live}
        return (landed | (coming - tiers.reading)) - tiers.orphans

    def _orphans(self, world: World) -> set[int]:
        """Those that the flush gave up and that still hold cells."""
        before, tiers = self.before.tiers, world.tiers
        if before is None or tiers is None:
            return set()
        return {id for id in tiers.orphans - before.orphans if tiers.arena.places.get(id)}

    def _held(self, now: World) -> set[int]:
        return self._orphans(self.after) & self._orphans(now)

    def _going(self, world: World) -> dict[Path, int]:
        """The files that the flush left to nobody, with their bytes."""
        before, tiers = self.before.tiers, world.tiers
        if before is None or before.shelf is None or tiers is None or tiers.shelf is None:
            return {}
        shelf = tiers.shelf
        paths = shelf.leaving | shelf.clearing
        unwanted = {id for id, one in shelf.pending.items() if one.unwanted or id in tiers.orphans}
        paths |= {shelf.pending[id].path for id in unwanted}
        paths -= before.shelf.leaving | before.shelf.clearing
        return {path: shelf.charged[path] for path in paths}

    def _files(self, now: World) -> dict[Path, int]:
        mine = self._going(self.after).keys()
        return {path: size for path, size in self._going(now).items() if path in mine}
