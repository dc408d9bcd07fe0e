"""Where images come from: cuts in a prefill chunk, cancelled prefills; and their publication."""

from dataclasses import replace
from types import MappingProxyType

from ignisd.engine.room import Wish, reserve_slot
from ignisd.engine.stats import SkipReason
from ignisd.engine.types import Capture, LaneSave
from ignisd.engine.world import Interrupted, Pending, Sequence, World, skip, tally
from state.retained import KIND_ORDER, Kind, Retained
from state.retention import Cut
from state.spec import PAGE_TOKENS


def plan_captures(
    world: World, seq: Sequence, end: int, now_ms: float
) -> tuple[World, Sequence, int, tuple[Capture, ...]]:
    """Reserve slots for the cuts of a chunk that runs from `seq.position` to `end`.

    More cuts than one chunk may yield shorten the chunk to the last one that it can; a cut that
    finds no slot is dropped and counted, and its chunk goes on.

    Returns:
        the world, the sequence without the cuts that were dealt with, where the chunk now ends,
        and the captures.
    """
    captures: list[Capture] = []
    dealt = 0
    for cut in seq.cuts:
        if cut.position > end:
            break
        if len(captures) == world.limits.max_captures_per_chunk:
            end = captures[-1].position
            break
        dealt += 1
        world, seq, slot = _reserve(world, seq, cut, now_ms)
        if slot is not None:
            captures.append(Capture(cut.position, slot))
    return world, replace(seq, cuts=seq.cuts[dealt:]), end, tuple(captures)


def _reserve(
    world: World, seq: Sequence, cut: Cut, now_ms: float
) -> tuple[World, Sequence, int | None]:
    request = seq.request
    present = _with_kept(world, seq, cut)
    if present is not None:
        return skip(present, SkipReason.PRESENT), replace(seq, kept_at=cut.position), None
    periodic = cut.kind is Kind.PERIODIC
    crowded = world.slots.num_free == 0
    if crowded and _exceeds_its_share(world, seq, cut):
        return _without_slot(world, wished=cut, seq=seq, reason=SkipReason.QUOTA), seq, None
    table = seq.table[: cut.position // PAGE_TOKENS]
    wish = Wish(cut.kind, request.chain, cut.position, table, request.cls)
    reserved = reserve_slot(world, wish, now_ms)
    if isinstance(reserved, SkipReason):
        return _without_slot(world, wished=cut, seq=seq, reason=reserved), seq, None
    world, slot = reserved
    world = _add_pending(world, wish, slot, request.id, seq.parent_id)
    seq = replace(seq, kept_at=cut.position, displaced=seq.displaced + (periodic and crowded))
    return world, seq, slot


def _exceeds_its_share(world: World, seq: Sequence, cut: Cut) -> bool:
    """Whether a cut may not take a slot from others, whatever they hold.

    A prompt's periodic states take a quarter of the slots. A junction takes one only if it saves
    its followers more than the least that is worth it: siblings under one system block often share
    the first words of what comes after it, and each pair of them would leave a state there.
    """
    if cut.kind is Kind.JUNCTION:
        return cut.position - seq.reuse.cached_tokens < world.limits.junction_tokens
    return cut.kind is Kind.PERIODIC and (seq.displaced + 1) * 4 > world.slots.num_slots


def _without_slot(world: World, seq: Sequence, wished: Cut, reason: SkipReason) -> World:
    """The world in which a cut found no slot, of which a request that looks for it is told."""
    index = world.index.without_slot(seq.request.chain, wished.position)
    return skip(replace(world, index=index), reason)


def _with_kept(world: World, seq: Sequence, cut: Cut) -> World | None:
    """The world if the state at a cut is retained or being captured, its kind now no lower than
    the cut's; None if it is neither.
    """
    chain = seq.request.chain
    held = world.index.find(chain, cut.position)
    if held is not None:
        return replace(world, index=world.index.promote(held.id, cut.kind))
    for place, one in enumerate(world.pending):
        if (
            one.length == cut.position
            and one.chain.digest_at(cut.position) == chain.digest_at(cut.position)
            and one.chain.num_shared(chain) >= cut.position
        ):
            higher = max(one.kind, cut.kind, key=KIND_ORDER.__getitem__)
            raised = replace(one, kind=higher)
            pending = (*world.pending[:place], raised, *world.pending[place + 1 :])
            return replace(world, pending=pending)
    return None


def keep_restored(
    world: World, seq: Sequence, kind: Kind, length: int, now_ms: float
) -> tuple[World, int | None]:
    """A slot for a copy of the image that a sequence resumes from, if its rank finds one.

    So the next request finds the state on the device; without a slot it restores as this one did.
    """
    chain = seq.request.chain
    if world.index.find(chain, length) is not None:
        return world, None
    wish = Wish(kind, chain, length, seq.table[: length // PAGE_TOKENS], seq.request.cls)
    reserved = reserve_slot(world, wish, now_ms)
    if isinstance(reserved, SkipReason):
        return skip(world, SkipReason.RESTORED), None
    world, slot = reserved
    return _add_pending(world, wish, slot, seq.request.id, None), slot


def _add_pending(
    world: World, wish: Wish, slot: int, sequence_id: int, parent_id: int | None
) -> World:
    pending = Pending(
        round_number=world.next_round,
        retained_id=world.next_retained_id - 1,
        sequence_id=sequence_id,
        parent_id=parent_id,
        slot=slot,
        kind=wish.kind,
        chain=wish.chain,
        length=wish.length,
        table=wish.table,
        cls=wish.cls,
    )
    return replace(world, pages=world.pages.share(wish.table), pending=(*world.pending, pending))


def interrupt(world: World, seq: Sequence) -> World:
    """Note that a prefill is cancelled whose state, still in its lane, is worth keeping.

    Everything planned so far will have been executed before the next round, and a chunk that is
    not the last one ends on the grid: so the lane's state stands at `seq.position` by then, and
    the next round can save it before the lane is used again.
    """
    assert seq.lane is not None, f"request {seq.request.id} prefills without a lane"
    cut = world.policy.interrupted(seq.position, seq.kept_at)
    if cut is None or not seq.keeps or not world.limits.reuse:
        return world
    assert cut.position == seq.position, f"prefill stands at {seq.position}, off the grid"
    table = seq.table[: seq.position // PAGE_TOKENS]
    noted = Interrupted(
        lane=seq.lane,
        sequence_id=seq.request.id,
        parent_id=seq.parent_id,
        chain=seq.request.chain,
        length=seq.position,
        table=table,
        cls=seq.request.cls,
    )
    return replace(world, pages=world.pages.share(table), interrupted=(*world.interrupted, noted))


def plan_saves(world: World, now_ms: float) -> tuple[World, tuple[LaneSave, ...]]:
    """Reserve slots for what cancelled prefills left in their lanes."""
    saves: list[LaneSave] = []
    for noted in world.interrupted:
        wish = Wish(Kind.INTERRUPTED, noted.chain, noted.length, noted.table, noted.cls)
        reserved = reserve_slot(world, wish, now_ms)
        if isinstance(reserved, SkipReason):
            index = world.index.without_slot(noted.chain, noted.length)
            world = skip(replace(world, index=index), reserved)
        else:
            world, slot = reserved
            world = _add_pending(world, wish, slot, noted.sequence_id, noted.parent_id)
            saves.append(LaneSave(noted.lane, slot, noted.length))
        world = replace(world, pages=world.pages.drop(noted.table))
    return replace(world, interrupted=()), tuple(saves)


def publish(world: World, number: int, written: frozenset[int], now_ms: float) -> World:
    """Make the captures of an executed round findable; only those that the device wrote.

    The share of the pages and the slot pass from the capture to the retained state.
    """
    mine = [one for one in world.pending if one.round_number == number]
    world = replace(
        world, pending=tuple(one for one in world.pending if one.round_number != number)
    )
    newest: dict[int, int] = {}
    for one in mine:
        if one.slot not in written:
            world = skip(world, SkipReason.UNWRITTEN)
            world = replace(
                world, pages=world.pages.drop(one.table), slots=world.slots.drop(one.slot)
            )
            continue
        retained = Retained(
            id=one.retained_id,
            kind=one.kind,
            chain=one.chain,
            length=one.length,
            table=one.table,
            slot=one.slot,
            cls=one.cls,
            conversation=0,
            superseded=False,
            hits=0,
            published_ms=now_ms,
            used_ms=now_ms,
            fingerprint=world.index.fingerprint,
        )
        parent_id = newest.get(one.sequence_id, one.parent_id)
        world = replace(world, index=world.index.insert(retained, parent_id), skipped_in_row=0)
        world = tally(world, "captured", one.kind)
        newest[one.sequence_id] = one.retained_id
    return _continue_from(world, newest)


def _continue_from(world: World, newest: dict[int, int]) -> World:
    """Let later captures of the same sequences continue the states just published."""
    if not newest:
        return world
    sequences = {
        key: replace(seq, parent_id=newest.get(key, seq.parent_id))
        for key, seq in world.sequences.items()
    }
    pending = tuple(
        replace(one, parent_id=newest.get(one.sequence_id, one.parent_id)) for one in world.pending
    )
    return replace(world, sequences=MappingProxyType(sequences), pending=pending)
