"""A picture of the engine: what its world shows, and what was measured beside it."""

from dataclasses import dataclass, field, replace

from ignisd.engine.histogram import LOOKUP_SECONDS, ROUND_SECONDS, Histogram
from ignisd.engine.stats import LOWER_TIERS, EngineStats
from ignisd.engine.types import Phase, Reuse, Tier
from ignisd.engine.world import World
from state.retained import Kind


@dataclass(slots=True)
class Measured:
    """Times of all rounds together, in the parts of a round, and of what happens in them."""

    plan_ms: float = 0.0
    device_ms: float = 0.0
    deliver_ms: float = 0.0
    lookup_s: Histogram = field(default_factory=lambda: Histogram(LOOKUP_SECONDS))
    capture_s: Histogram = field(default_factory=lambda: Histogram(ROUND_SECONDS))
    restore_s: dict[Tier, Histogram] = field(
        default_factory=lambda: {tier: Histogram(ROUND_SECONDS) for tier in LOWER_TIERS}
    )

    def note_reuse(self, reuse: Reuse) -> None:
        """A request has begun from what it reuses."""
        if reuse.tier is not None and reuse.tier in self.restore_s:
            self.restore_s[reuse.tier].observe(reuse.restore_ms / 1000)

    def added_to(self, stats: EngineStats) -> EngineStats:
        """The picture with these times, which go their own way from here."""
        return replace(
            stats,
            plan_ms=self.plan_ms,
            device_ms=self.device_ms,
            deliver_ms=self.deliver_ms,
            lookup_s=self.lookup_s.copy(),
            capture_s=self.capture_s.copy(),
            restore_s={tier: self.restore_s[tier].copy() for tier in LOWER_TIERS},
        )


def picture(
    world: World,
    *,
    alive: bool,
    draining: bool,
    busy: bool,
    idle_ms: float,
    num_incoming: int,
    queue_limit: int,
    refused: int,
    late_compiles: int,
) -> EngineStats:
    """What the world shows between two rounds.

    Args:
        world: as it stands.
        alive, draining, busy, idle_ms, queue_limit, late_compiles: as in `EngineStats`.
        num_incoming: requests that the world does not know yet.
        refused: requests turned away.
    """
    phases = [seq.phase for seq in world.running]
    retained = dict.fromkeys(Kind, 0)
    retained_tokens = 0
    for held in world.index:
        retained[held.kind] += 1
        retained_tokens += held.length
    return EngineStats(
        alive=alive,
        draining=draining,
        busy=busy,
        idle_ms=idle_ms,
        num_lanes=world.limits.num_lanes,
        num_prefilling=phases.count(Phase.PREFILLING),
        num_decoding=phases.count(Phase.DECODING),
        num_parked=sum(seq.parked for seq in world.running),
        num_queued=len(world.queue) + num_incoming,
        queue_limit=queue_limit,
        num_pages=world.pages.num_pages - 1,
        num_pages_free=world.pages.num_free,
        num_slots=world.slots.num_slots,
        num_slots_free=world.slots.num_free,
        retained=retained,
        retained_tokens=retained_tokens,
        counters=world.counters.add(refused=refused),
        late_compiles=late_compiles,
        skipped_in_row=world.skipped_in_row,
    )
