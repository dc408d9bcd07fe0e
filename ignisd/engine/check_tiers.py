"""The invariants of what lies below the device; raises AssertionError with numbers."""

from collections import Counter
from collections.abc import Iterator

from ignisd.engine.tiers import Tiers
from ignisd.engine.types import Phase
from ignisd.engine.world import Sequence, World
from state.check import check_tier
from state.tiers.stored import Stored


def check_tiers(world: World) -> None:
    """Each tier holds what moves and sequences say and no more, and nothing waits for nobody."""
    tiers = world.tiers
    if tiers is None:
        below = [key for key, seq in world.sequences.items() if seq.stored_id is not None]
        assert not below, f"requests {below} lie below, where no tier is"
        return
    check_tier(tiers.arena, reads=_reads(world, tiers), writes=_writes(world, tiers))
    if tiers.shelf is not None:
        check_tier(tiers.shelf, reads=dict.fromkeys(tiers.reading, 1), writes=tiers.writing)
    for seq in world.sequences.values():
        _check_below(tiers, seq)
    _check_numbers(world, tiers)
    _check_live(world, tiers)
    _check_marks(tiers)


def _reads(world: World, tiers: Tiers) -> Counter[int]:
    """How many moves read each state of the arena."""
    restoring = (
        seq.stored_id
        for seq in world.sequences.values()
        if seq.phase is Phase.RESTORING and seq.stored_id is not None
    )
    reads = Counter(key for key in restoring if key in tiers.arena.index)
    reads.update(stored_id for _, stored_id in tiers.claimed)
    reads.update(tiers.writing)
    return reads


def _writes(world: World, tiers: Tiers) -> set[int]:
    """The states whose bytes are on their way to the arena, or were when nobody wanted them."""
    writes = set(tiers.reading)
    writes.update(stored_id for _, stored_id in tiers.landings)
    writes.update(
        seq.stored_id
        for seq in world.sequences.values()
        if seq.phase is Phase.EVICTING and seq.stored_id is not None
    )
    writes.update(one.stored_id for one in world.sinking)
    unwanted = {key for key in tiers.orphans if key in tiers.arena.pending}
    if tiers.ahead is not None and tiers.ahead.stored_id in tiers.arena.pending:
        writes.add(tiers.ahead.stored_id)
    return writes | unwanted


def _check_below(tiers: Tiers, seq: Sequence) -> None:
    key, stored_id = seq.request.id, seq.stored_id
    if stored_id is None:
        return
    landed = stored_id in tiers.arena.index or tiers.on_shelf(stored_id) is not None
    if seq.phase is Phase.EVICTING:
        assert stored_id in tiers.arena.pending, f"request {key} goes down as nothing, {stored_id}"
    else:
        assert landed, f"request {key} is {seq.phase} from {stored_id}, which lies nowhere"


def _check_numbers(world: World, tiers: Tiers) -> None:
    """No state below has the number of one on the device, nor one that is still to be given."""
    below = {stored_id for stored_id, _ in tiers.arena.places.items()}
    if tiers.shelf is not None:
        below |= {one.id for one in tiers.shelf.index} | tiers.shelf.pending.keys()
    both = below & {one.id for one in world.index}
    both |= below & {one.retained_id for one in world.pending}
    assert not both, f"states {sorted(both)} are on the device and others of that number below"
    assert all(one < world.next_retained_id for one in below), (
        f"state {max(below)} lies below, {world.next_retained_id} is the next number"
    )


def _check_live(world: World, tiers: Tiers) -> None:
    """A live state belongs to a sequence that is away, or is about to go."""
    owners = {seq.stored_id: key for key, seq in world.sequences.items()}
    for stored in _live(tiers):
        given_up = stored.id in tiers.orphans
        assert given_up or owners.get(stored.id) == stored.owner, (
            f"state {stored.id} lies below of request {stored.owner}, which does not go on from it"
        )


def _live(tiers: Tiers) -> Iterator[Stored]:
    states = [*tiers.arena.index, *tiers.arena.pending.values()]
    if tiers.shelf is not None:
        states += tiers.shelf.index
    return (one for one in states if one.is_live)


def _check_marks(tiers: Tiers) -> None:
    """What is marked is there, and what waits to be given back waits for something."""
    places = {*tiers.arena.pending, *(one.id for one in tiers.arena.index)}
    for name, marked in (("touched", set(tiers.touched)), ("transient", set(tiers.transient))):
        assert marked <= places, f"{name} states {marked - places} are not in the arena"
    held = {one.id for one in tiers.arena.index if one.held}
    busy = {*tiers.touched, *tiers.writing, *tiers.reading, *held}
    assert tiers.orphans <= busy, f"states {tiers.orphans - busy} are not given back"
    landing = [stored_id for _, stored_id in tiers.landings]
    assert len(landing) == len(set(landing)), f"states land twice: {landing}"
