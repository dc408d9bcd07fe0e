"""Pins in random traffic: states are pinned and let go, and none vanishes unaccounted for."""

import random
from collections.abc import Iterator

from ignisd.engine import control
from ignisd.engine.stats import FileWork
from ignisd.engine.world import World


class Pins:
    """Pins by chance, from a source of its own: without them a seed is what it was."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"pins {seed}")
        self.on = self.rng.random() < 0.4
        self.num_made = 0
        self.known: set[bytes] = set()
        self.lost = 0

    def disturb(self, world: World) -> World:
        """Pin something now and then, or take a pin back."""
        if not self.on or self.rng.random() > 0.1:
            return world
        ids = [held.id for held in world.index]
        if world.tiers is not None:
            ids += [one.id for one in world.tiers.arena.index]
            if world.tiers.shelf is not None:
                ids += [one.id for one in world.tiers.shelf.index]
        if not ids:
            return world
        wanted = self.rng.random() < 0.7
        changed, refused = control.pin(world, self.rng.choice(ids), wanted)
        assert refused is None or (wanted and refused.wanted > refused.most)
        assert refused is None or changed is world
        self.num_made += wanted and changed is not world
        self.note(changed)
        return changed

    def note(self, world: World) -> None:
        """What is pinned now is as it should be."""
        self.known, self.lost = set(_pinned(world)), _accounted(world)

    def check(self, world: World) -> None:
        """What is pinned is in some tier, unless it is counted why it is not."""
        if self.on:
            gone = len(self.known - set(_pinned(world)))
            counted = _accounted(world) - self.lost
            assert gone <= counted, f"{gone} pinned states are gone, {counted} are accounted for"
            self.note(world)


def _pinned(world: World) -> Iterator[bytes]:
    """The tokens of what is pinned, in any tier or on the way there.

    What was given up and waits for a move to end is gone already, and was counted then.
    """
    tiers = world.tiers
    chains = [world.index.entries[held].chain for held in world.index.pinned]
    if tiers is not None:
        below = [*tiers.arena.index.pinned()]
        below += [one for one in tiers.arena.pending.values() if one.pinned]
        if tiers.shelf is not None:
            below += tiers.shelf.index.pinned()
        chains += [one.chain for one in below if one.id not in tiers.orphans]
    return (chain.salt + b"/" + chain.raw for chain in chains)


def _accounted(world: World) -> int:
    """Pins that ended by themselves; bad files and what was flushed, which may have been pinned."""
    counters = world.counters
    ended = sum(counters.pins_ended.values())
    return ended + counters.file_faults[FileWork.READ] + counters.flushed
