"""placeholder"""

from ignisd.engine.world import World


def plan_spills(world: World, now_ms: float) -> World:
    return world
