"""What comes up again: retained state for a request, and evicted sequences that go on.

A sequence that restores holds its lane and its pages; what is missing in these is raised a window a
round, and in the round of the last window it starts from the image in the arena. What lies in a
file is read into the arena first. A retained state stays where it was; a copy of its image is kept
in a slot as well if its rank finds one, so that the next request finds it on the device.
"""

from dataclasses import replace

from ignisd.engine.accounts import account
from ignisd.engine.captures import keep_restored
from ignisd.engine.demotion import displacing, may_give_way
from ignisd.engine.moves import Raise, ReadFile
from ignisd.engine.stats import FileWork
from ignisd.engine.tiers import Tiers, file_done, given_up, let_go
from ignisd.engine.types import LaneStart, Phase, Request, Tier
from ignisd.engine.world import (
    Below,
    Sequence,
    World,
    count,
    standing,
    tally,
    with_sequence,
)
from state.reuse import Match, Miss, MissReason
from state.tiers.index import TierIndex
from state.tiers.stored import Stored


def look_below(
    world: World, request: Request, found: Match | Miss
) -> tuple[Match | Miss, Below | None]:
    """The state of a lower tier that saves enough more than what the tiers above it have.

    Ties go up: a tier is asked only for its floor more than the best above it has. What lies
    below and adds less than the floor is the reason why nothing, or no more, was reused.
    """
    tiers = world.tiers
    if tiers is None or not (world.limits.reuse and request.reuse):
        return found, None
    best: Below | None = None
    length, below_floor = found.length, False
    held = longest_in(tiers, tiers.arena.index, request)
    if held is not None and held.length > length:
        below_floor = held.length < length + tiers.limits.ram_floor_tokens
        if not below_floor:
            best, length = Below(held, Tier.KV_RAM), held.length
    if tiers.shelf is not None:
        held = longest_in(tiers, tiers.shelf.index, request)
        if held is not None and held.length > length:
            below_floor = held.length < length + tiers.limits.disk_floor_tokens
            if not below_floor:
                best = Below(held, Tier.KV_DISK)
    if below_floor and best is None:
        if isinstance(found, Miss):
            return replace(found, reason=MissReason.BELOW_FLOOR), None
        return replace(found, shortfall=MissReason.BELOW_FLOOR), None
    return found, best


def longest_in(tiers: Tiers, index: TierIndex, request: Request) -> Stored | None:
    """The longest state of a tier that a request could resume from.

    What was given up and is still touched by something is as good as gone.
    """
    return index.longest_match(request.chain, request.prompt_tokens, tiers.orphans)


def brought_up(world: World, stored: Stored, now_ms: float) -> World | None:
    """The world in which a state is in the arena or on its way there; None without room for it.

    It is held there, for the caller, once it has landed.
    """
    tiers = world.tiers
    assert tiers is not None
    if stored.id in tiers.arena.index:
        return replace(world, tiers=replace(tiers, arena=tiers.arena.hold(stored.id)))
    if stored.id in tiers.arena.pending:
        return world
    assert tiers.shelf is not None, f"state {stored.id} is in no tier"
    coming = replace(stored, used_ms=now_ms, hits=stored.hits + 1, held=0, pinned=False)
    # A file may prove bad only when all of it was read, so it is read into cells of its own.
    placement = tiers.arena.plan(coming, now_ms, world.limits.ttl_ms, may_give_way, alone=True)
    if placement is None:
        return None
    world = displacing(world, tiers, placement)
    arena, located = tiers.arena.place(coming, placement)
    order = ReadFile(stored.id, tiers.shelf.read_order(stored.id), located.cells)
    tiers = replace(
        tiers,
        arena=arena,
        shelf=tiers.shelf.hold(stored.id),
        reading=tiers.reading | {stored.id},
        transient=tiers.transient | {stored.id},
    )
    return replace(world, tiers=tiers.ordered(order))


def file_read(world: World, stored_id: int, fault: str | None, now_ms: float) -> World:
    """A file has been read into the arena and verified, or it is of no use (`fault`)."""
    tiers = world.tiers
    assert tiers is not None
    assert tiers.shelf is not None
    num_bytes = tiers.shelf.file_bytes(tiers.arena.pending[stored_id])
    tiers = replace(tiers, shelf=tiers.shelf.release(stored_id))
    waiting = [
        seq
        for seq in world.sequences.values()
        if seq.phase is Phase.RESTORING and seq.stored_id == stored_id
    ]
    if fault is None:
        arena = tiers.arena.land(stored_id)
        for _ in waiting:
            arena = arena.hold(stored_id)
        tiers = file_done(replace(tiers, arena=arena), stored_id)
        return count(replace(world, tiers=tiers), files_read=1, disk_read_bytes=num_bytes)
    tiers = file_done(replace(tiers, orphans=tiers.orphans | {stored_id}), stored_id)
    world = replace(world, tiers=tiers)
    for seq in waiting:
        world = _unrestored(world, seq)
    return tally(world, "file_faults", FileWork.READ)


def _unrestored(world: World, seq: Sequence) -> World:
    """A sequence whose file is of no use: a request looks again, an evicted one begins anew."""
    live = seq.found is None
    world = replace(world, pages=world.pages.drop(seq.table), queue=(*world.queue, seq.request.id))
    seq = replace(
        seq,
        phase=Phase.QUEUED,
        looked=None,
        lane=None,
        table=(),
        position=0,
        stored_id=None,
        moved_pages=0,
        found=None,
        corrupt=not live,
        recomputed=seq.recomputed + live,
        issued=0,
        replaying=len(seq.answer),
        cuts=(),
        kept_at=0,
    )
    return count(with_sequence(world, seq), recomputed=live)


def plan_raises(world: World, now_ms: float) -> tuple[World, tuple[LaneStart, ...]]:
    """Raise the next window of who restores, best standing first; who has all of it starts."""
    starts: list[LaneStart] = []
    restoring = [seq for seq in world.running if seq.phase is Phase.RESTORING]
    for seq in sorted(restoring, key=lambda seq: standing(seq, world.limits, now_ms)):
        tiers = world.tiers
        assert tiers is not None
        assert seq.stored_id is not None
        stored = tiers.arena.index.get(seq.stored_id)
        if stored is None:
            continue
        world, seq = _raised(world, seq, stored)
        if seq.moved_pages == stored.num_pages:
            world, start = _started(world, seq, stored, now_ms)
            starts.append(start)
    return world, tuple(starts)


def _raised(world: World, seq: Sequence, stored: Stored) -> tuple[World, Sequence]:
    tiers = world.tiers
    assert tiers is not None
    begin = seq.moved_pages
    end = min(begin + tiers.affordable_pages(), stored.num_pages)
    if end == begin:
        return world, seq
    cells = tiers.arena.located(stored.id).page_cells[begin:end]
    work = Raise(stored.id, cells, seq.table[begin:end])
    tiers = tiers.charged(end - begin, 0).touching(stored.id, world.next_round)
    tiers = replace(tiers, raises=(*tiers.raises, work))
    seq = replace(seq, moved_pages=end)
    world = count(replace(world, tiers=tiers), raised_pages=end - begin)
    return with_sequence(world, seq), seq


def _started(world: World, seq: Sequence, stored: Stored, now_ms: float) -> tuple[World, LaneStart]:
    """The sequence goes on in its lane in the round that is being planned."""
    tiers = world.tiers
    assert tiers is not None
    assert seq.lane is not None, f"request {seq.request.id} restores without a lane"
    start = LaneStart(
        lane=seq.lane,
        slot=None,
        position=stored.length,
        sampling=seq.request.sampling,
        prompt=seq.request.chain.tokens,
        image_cells=tiers.arena.located(stored.id).image_cells,
    )
    tiers = tiers.charged(0, 1).touching(stored.id, world.next_round)
    seq = replace(seq, stored_id=None, moved_pages=0, start_round=world.next_round)
    world = replace(world, tiers=tiers)
    if seq.found is None:
        return _resumed(world, seq, stored, start, now_ms)
    return _claimed(world, seq, stored, start, now_ms)


def _resumed(
    world: World, seq: Sequence, stored: Stored, start: LaneStart, now_ms: float
) -> tuple[World, LaneStart]:
    """An evicted sequence goes on where it stopped; nothing of it stays below."""
    assert world.tiers is not None
    reads = stored.length < seq.request.prompt_tokens
    if not reads:
        start = replace(start, answer=seq.answer.tokens(seq.issued))
    seq = replace(seq, phase=Phase.PREFILLING if reads else Phase.DECODING, position=stored.length)
    tiers = given_up(let_go(world.tiers, stored.id), stored.id)
    return count(with_sequence(replace(world, tiers=tiers), seq), resumed=1), start


def _claimed(
    world: World, seq: Sequence, stored: Stored, start: LaneStart, now_ms: float
) -> tuple[World, LaneStart]:
    """A request resumes from a retained state, which stays below."""
    tiers, found = world.tiers, seq.found
    assert tiers is not None
    assert found is not None
    assert stored.kind is not None
    from_file = stored.id in tiers.transient
    tiers = replace(
        tiers,
        arena=tiers.arena.touch(stored.id, now_ms),
        claimed=(*tiers.claimed, (world.next_round, stored.id)),
    )
    if tiers.shelf is not None and tiers.on_shelf(stored.id) is not None:
        tiers = replace(tiers, shelf=tiers.shelf.touch(stored.id, now_ms))
    world = replace(world, tiers=tiers)
    tier = Tier.KV_DISK if from_file else Tier.KV_RAM
    reuse = seq.reuse
    if not seq.told:
        world, reuse = account(world, seq.request, found, (stored, tier))
        began_ms = seq.timings.admitted_ms
        reuse = replace(reuse, restore_ms=0.0 if began_ms is None else now_ms - began_ms)
    world, slot = keep_restored(world, seq, stored.kind, stored.length, now_ms)
    seq = replace(
        seq,
        phase=Phase.PREFILLING,
        position=stored.length,
        found=None,
        reuse=reuse,
    )
    world = tally(with_sequence(world, seq), "restored", (tier, stored.kind))
    return world, replace(start, keep_slot=slot)
