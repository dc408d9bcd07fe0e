"""What each group of the model keeps: points, bytes, and how often."""

from collections.abc import Mapping

from ignisd.engine.totals import Group as Part
from ignisd.engine.totals import Owner, TierTotals
from ignisd.engine.types import Tier
from ignisd.engine.world import World
from ignisd.http.serving import Facts
from state.groups import GroupName

_PARTS = {GroupName.FULL: Part.FULL, GroupName.LINEAR: Part.LINEAR}


def points_by_group(
    world: World, totals: tuple[TierTotals, ...]
) -> Mapping[tuple[GroupName, Tier], int]:
    """How many resume points each group has something for, by tier."""
    found: dict[tuple[GroupName, Tier], int] = {}
    for name in sorted(world.index.must_hit):
        for one in totals:
            whole = one.num_states
            if one.tier is Tier.DEVICE:
                whole = sum(name in held.groups for held in world.index)
            found[name, one.tier] = whole
    return found


def interval_of(world: World, name: GroupName) -> int | None:
    """Tokens between two periodic points of a group, 0 for none; None where all pages are kept."""
    if name is GroupName.FULL:
        return None
    return dict(world.policy.by_group).get(name, world.policy.interval_tokens)


def groups_told(
    world: World, facts: Facts, totals: tuple[TierTotals, ...], pages: int
) -> dict[str, dict[str, object]]:
    """Points and bytes of each group in all tiers; shared pages of a tier once.

    Args:
        world: as it stands.
        facts: sizes of the two halves of a state.
        totals: of every tier.
        pages: pages that retained states of the device list, each once.
    """
    points = points_by_group(world, totals)
    on_device = {
        GroupName.FULL: pages * facts.page_bytes,
        GroupName.LINEAR: len(world.index) * facts.image_bytes,
    }
    per_point = {GroupName.FULL: facts.page_bytes, GroupName.LINEAR: facts.image_bytes}
    told: dict[str, dict[str, object]] = {}
    for name, part in _PARTS.items():
        by_tier = {
            one.tier.value: one.num_bytes.get((part, Owner.RETAINED), 0) for one in totals
        } | {Tier.DEVICE.value: on_device[name]}
        told[name.value] = {
            "interval_tokens": interval_of(world, name),
            "points": sum(points.get((name, tier), 0) for tier in Tier),
            "points_by_tier": {tier.value: points.get((name, tier), 0) for tier in Tier},
            "bytes_per_point": per_point[name],
            "bytes": sum(by_tier.values()),
            "bytes_by_tier": by_tier,
        }
    told[GroupName.LINEAR.value]["images"] = sum(one.num_states for one in totals)
    return told
