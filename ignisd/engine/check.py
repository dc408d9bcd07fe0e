"""The invariants of a world between two rounds; raises AssertionError with numbers."""

from collections import Counter
from dataclasses import replace

from ignisd.engine.admission import awaits_leader, look_up, wanted_pages
from ignisd.engine.check_tiers import check_tiers
from ignisd.engine.eviction import below_entry, goes_down
from ignisd.engine.room import gainable
from ignisd.engine.types import Phase, Round
from ignisd.engine.world import Sequence, World, aged, free_lane, standing
from state.check import check_ledgers, stranded
from state.reuse import Match
from state.spec import PAGE_TOKENS, Class


def check_world(world: World) -> None:
    """Every ledger agrees with every holder, and every sequence with its phase."""
    check_ledgers(
        world.pages,
        world.slots,
        world.index,
        {key: seq.table for key, seq in world.sequences.items()},
        lanes={seq.request.id: seq.lane for seq in world.running if seq.lane is not None},
        captures={one.slot: one.retained_id for one in world.pending},
        moves=[
            *(one.table for one in world.pending),
            *(one.table for one in world.interrupted),
            *(one.table for one in world.sinking),
        ],
        written={key: seq.position for key, seq in world.sequences.items() if seq.table},
    )
    lost = stranded(world.pages, world.slots, world.index)
    assert not lost, f"retained states {lost} lack their pages or their slot"
    _check_sequences(world)
    _check_captures(world)
    check_tiers(world)
    numbers = [one.number for one in world.in_flight]
    assert numbers == sorted(set(numbers)), f"rounds under way out of order: {numbers}"
    counters = world.counters
    ended = sum(counters.finished.values())
    assert counters.submitted == ended + len(world.sequences), (
        f"{counters.submitted} requests came, {ended} ended, {len(world.sequences)} are in flight"
    )


def _check_sequences(world: World) -> None:
    waiting = (Phase.QUEUED, Phase.EVICTED)
    queued = [key for key, seq in world.sequences.items() if seq.phase in waiting]
    assert sorted(world.queue) == sorted(queued), f"queue {world.queue}, phases say {queued}"
    for key, seq in world.sequences.items():
        stands = seq.issued + seq.replaying
        assert len(seq.answer) <= stands, f"request {key}: {len(seq.answer)} fetched, {stands} due"
        assert seq.reuse.cached_tokens < seq.request.prompt_tokens, f"request {key} reads nothing"
        if seq.phase in waiting:
            assert seq.lane is None, f"request {key} is {seq.phase} and holds lane {seq.lane}"
            assert not seq.table, f"request {key} is {seq.phase} and holds {len(seq.table)} pages"
        else:
            _check_placed(world, seq)
        below = seq.phase in (Phase.EVICTED, Phase.RESTORING)
        assert not below or seq.stored_id is not None, f"request {key} is {seq.phase} from nothing"
        assert below or seq.phase is Phase.EVICTING or seq.stored_id is None, (
            f"request {key} is {seq.phase} and lies below as {seq.stored_id}"
        )


def _check_placed(world: World, seq: Sequence) -> None:
    key, prompt = seq.request.id, seq.request.prompt_tokens
    if seq.phase is not Phase.EVICTING:
        assert seq.lane is not None, f"request {key} runs without a lane"
        assert 0 <= seq.lane < world.limits.num_lanes, f"request {key} is in lane {seq.lane}"
    capacity = len(seq.table) * PAGE_TOKENS
    assert seq.position <= capacity, f"request {key}: {seq.position} tokens in {capacity}"
    if seq.phase is Phase.PREFILLING:
        assert seq.position < prompt, f"request {key} has read its {prompt} tokens"
        assert seq.position % PAGE_TOKENS == 0, f"request {key} stands at {seq.position}"
        assert all(cut.position > seq.position for cut in seq.cuts), f"request {key}: old cut"
    if seq.phase is Phase.DECODING:
        assert not seq.cuts, f"request {key} decodes with cuts {seq.cuts}"
        stands = prompt + seq.issued - 1
        assert seq.position == stands, f"request {key} at {seq.position}, not {stands}"


def _check_captures(world: World) -> None:
    under_way = {one.number for one in world.in_flight}
    for one in world.pending:
        assert one.round_number in under_way, (
            f"a capture waits for round {one.round_number}; under way: {sorted(under_way)}"
        )
    used = Counter(one.lane for one in world.interrupted)
    assert all(times == 1 for times in used.values()), f"lanes saved twice: {used}"


def _check_aged(world: World, now_ms: float) -> None:
    """An agent's request that has waited its time, and is next, waits for no lane of whoever ranks
    below it and may be moved."""
    waiting = [
        seq
        for seq in map(world.sequences.__getitem__, world.queue)
        if not (seq.phase is Phase.EVICTED and seq.held)
    ]
    if not waiting or free_lane(world) is not None or goes_down(world):
        return
    first = min(waiting, key=lambda seq: standing(seq, world.limits, now_ms))
    if first.phase is Phase.QUEUED and awaits_leader(
        world, first.request, look_up(world, first.request)
    ):
        return  # somebody may have taken the last lane meanwhile
    if first.request.cls is Class.AGENT and aged(first, world.limits, now_ms):
        lower = [seq.request.id for seq in below_entry(world, first, now_ms)]
        assert not lower, f"request {first.request.id} has waited its time; {lower} rank below it"


def check_planned(world: World, work: Round | None, now_ms: float) -> None:
    """Right after a plan: retained state delays nobody, and every lane to be saved was.

    The first in the queue that waits for pages alone lacks more than giving up all retained
    states would bring. (Giving them up for nothing would not serve it sooner.) A prefill chunk is
    planned after admission and may change who could enter; then the next plan tells.
    """
    assert not world.interrupted, f"{len(world.interrupted)} lanes were not saved by the plan"
    if work is not None and work.prefill is not None:
        return
    _check_aged(world, now_ms)
    if free_lane(world) is None:
        return
    waiting = [world.sequences[key] for key in world.queue]
    for seq in sorted(waiting, key=lambda seq: standing(seq, world.limits, now_ms)):
        if seq.phase is Phase.EVICTED:
            return
        found = look_up(world, seq.request)
        if awaits_leader(world, seq.request, found):
            continue
        shared = found.retained.table if isinstance(found, Match) else ()
        wanted = wanted_pages(world, seq, found, now_ms)
        had = gainable(replace(world, pages=world.pages.share(shared)))
        assert wanted > had, f"request {seq.request.id} waits for {wanted} pages, {had} are idle"
        return
