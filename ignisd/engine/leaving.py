"""A request that leaves before its prompt was read: what it has read is kept, wherever it stands.

In a lane, the next round saves its state into a slot. Below, what it would have gone on from is
retained there; of a sequence on its way down the windows that are left still go.
"""

from dataclasses import replace

from ignisd.engine.captures import interrupt
from ignisd.engine.tiers import Tiers, given_up
from ignisd.engine.types import Phase
from ignisd.engine.windows import send_window
from ignisd.engine.world import Sequence, Sinking, World, tally
from state.retained import Kind


def keep_read(world: World, seq: Sequence) -> tuple[World, Sequence]:
    """Keep what a request that leaves has read of its prompt, if that is worth it.

    Returns:
        the world, and the sequence as it is to be ended.
    """
    if seq.phase is Phase.PREFILLING:
        return interrupt(world, seq), seq
    tiers = world.tiers
    if tiers is None or not (seq.keeps and world.limits.reuse):
        return world, seq
    if seq.phase is Phase.EVICTING and seq.lane is not None:
        reads = seq.position < seq.request.prompt_tokens
        return interrupt(world, seq) if reads else world, seq
    stored_id = seq.stored_id
    if stored_id is None or seq.found is not None or not _is_only_in_arena(tiers, stored_id):
        return world, seq
    stored = tiers.arena.index.get(stored_id) or tiers.arena.pending[stored_id]
    cut = world.policy.interrupted(stored.length, seq.kept_at)
    # Of a prompt that was read to its end nothing is kept for its own sake.
    if cut is None or stored.length >= seq.request.prompt_tokens:
        return world, seq
    if tiers.arena.holds(stored.chain, stored.length) is not None:
        return world, seq
    world = replace(world, tiers=_kept(tiers, stored_id, seq.phase is Phase.RESTORING))
    if seq.phase is Phase.EVICTING and not _is_sent(tiers, stored_id):
        sinking = Sinking(stored_id, seq.table, seq.moved_pages)
        world = replace(
            world, pages=world.pages.share(seq.table), sinking=(*world.sinking, sinking)
        )
    return tally(world, "captured", Kind.INTERRUPTED), replace(seq, stored_id=None)


def plan_sinking(world: World) -> World:
    """Move the next window of what was left on its way down; then its pages are free."""
    left: list[Sinking] = []
    for one in world.sinking:
        tiers = world.tiers
        assert tiers is not None
        if one.stored_id not in tiers.arena.pending or one.stored_id in tiers.orphans:
            tiers = given_up(tiers, one.stored_id)
            world = replace(world, tiers=tiers, pages=world.pages.drop(one.table))
            continue
        tiers, moved = send_window(
            tiers, one.stored_id, one.table, one.moved_pages, world.next_round
        )
        world = replace(world, tiers=tiers)
        if _is_sent(tiers, one.stored_id):
            world = replace(world, pages=world.pages.drop(one.table))
        else:
            left.append(replace(one, moved_pages=moved))
    return replace(world, sinking=tuple(left))


def _is_only_in_arena(tiers: Tiers, stored_id: int) -> bool:
    """Whether no file holds a state and no thread of files touches it: a file tells whose it is."""
    if stored_id in tiers.writing or stored_id in tiers.reading or stored_id in tiers.transient:
        return False
    there = stored_id in tiers.arena.index or stored_id in tiers.arena.pending
    return there and tiers.on_shelf(stored_id) is None


def _is_sent(tiers: Tiers, stored_id: int) -> bool:
    return any(one == stored_id for _, one in tiers.landings)


def _kept(tiers: Tiers, stored_id: int, restoring: bool) -> Tiers:
    """With a live state retained from now on; what a round under way reads stays held so long."""
    arena = tiers.arena.keep(stored_id, Kind.INTERRUPTED)
    if not restoring:
        return replace(tiers, arena=arena)
    last = tiers.touched.get(stored_id)
    if last is None:
        return replace(tiers, arena=arena.release(stored_id))
    return replace(tiers, arena=arena, claimed=(*tiers.claimed, (last, stored_id)))
