"""Faults of what is kept, found, ranked and reported, and of what ends a request."""

import codecs
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ignisd.chat import output
from ignisd.engine import accounts, admission, captures, check, leaving, room, scheduler
from ignisd.engine.loop import Engine
from ignisd.engine.stats import SkipReason
from ignisd.engine.types import FinishReason, LaneStart, Phase, SamplingParams
from ignisd.engine.volatile import FirstSegments
from ignisd.engine.world import Limits, World, count, finish
from state import chain, ranking, retention
from state.chain import Chain
from state.retained import Kind, Retained
from state.retention import Marks, RetentionPolicy
from state.reuse import Match, Miss, MissReason, ReuseIndex
from tests.planting import mutant

Plant = AbstractContextManager[Any]


def _never_cut(*kinds: Kind) -> Plant:
    real = RetentionPolicy._wanted

    def wanted(self: RetentionPolicy, marks: Marks, num_tokens: int) -> Any:
        return [cut for cut in real(self, marks, num_tokens) if cut[1] not in kinds]

    return patch.object(RetentionPolicy, "_wanted", wanted)


@mutant
def no_prefix_cut() -> Plant:
    """Only the ends of prompts are kept, and not the system block that others share."""
    return _never_cut(Kind.PREFIX)


@mutant
def no_turn_open_cut() -> Plant:
    """Nothing is kept right after the last real user message."""
    return _never_cut(Kind.TURN_OPEN)


@mutant
def no_opener_cut() -> Plant:
    """Nothing is kept at the end of a prompt."""
    return _never_cut(Kind.CHECKPOINT, Kind.TURN_OPEN)


@mutant
def no_periodic_cut() -> Plant:
    """The retention interval is accepted and does nothing."""
    return patch.object(RetentionPolicy, "promised", lambda self, num_tokens: {})


@mutant
def one_cut_a_prompt() -> Plant:
    """Of several places to keep in one prompt only the last is."""
    real = RetentionPolicy.cuts

    def cuts(self: RetentionPolicy, *args: Any, **more: Any) -> Any:
        return real(self, *args, **more)[-1:]

    return patch.object(RetentionPolicy, "cuts", cuts)


@mutant
def no_junctions() -> Plant:
    """Where a request parts from an earlier one is not kept."""
    real = RetentionPolicy.cuts

    def cuts(
        self: RetentionPolicy, marks: Marks, num_tokens: int, at: int, junctions: Any = ()
    ) -> Any:
        return real(self, marks, num_tokens, at)

    return patch.object(RetentionPolicy, "cuts", cuts)


@mutant
def partings_in_flight_unseen() -> Plant:
    """Requests that come together and part where nobody foresaw it are each read whole."""
    return patch.object(admission, "mark_partings", lambda world, request, found: world)


@mutant
def cut_beyond_the_seam() -> Plant:
    """A plain prompt is kept to its very end, where a continuation may tokenize otherwise."""
    return patch.object(retention, "SEAM_TOKENS", 0)


@mutant
def a_kind_is_for_ever() -> Plant:
    """A state that was left by chance keeps its low kind when a prompt would keep that place."""
    return patch.object(ReuseIndex, "promote", lambda self, id, kind: self)


@mutant
def cancelled_prefill_is_lost() -> Plant:
    """A cancelled prefill leaves nothing."""
    return patch.object(leaving, "interrupt", lambda world, seq: world)


@mutant
def cancel_flushes() -> Plant:
    """A cancelled request takes everything retained with it."""
    real = scheduler.cancel

    def cancel(world: World, *args: Any, **more: Any) -> World:
        return room.flush(real(world, *args, **more))

    return patch.object(scheduler, "cancel", cancel)


@mutant
def longer_replaces_shorter() -> Plant:
    """A published state discards all states that it extends."""
    real = captures.publish

    def publish(world: World, *args: Any) -> World:
        before = {one.id for one in world.index}
        world = real(world, *args)
        for new in [one for one in world.index if one.id not in before]:
            for old in list(world.index):
                if old.length < new.length and old.chain.is_prefix_of(new.chain):
                    world = room.discard(world, old)
        return world

    return patch.object(scheduler, "publish", publish)


@mutant
def latest_goes_first() -> Plant:
    """Among equals the one used last gives way first."""

    def key(one: Retained, now_ms: float, ttl_ms: float = 0.0) -> tuple[bool, float, int]:
        return True, -one.used_ms, -one.id

    return patch.object(ranking, "rank_key", key)


@mutant
def prefixes_take_all_slots() -> Plant:
    """However many prefixes were hit lately, all of them rank above every checkpoint."""

    def victims(world: World, now_ms: float) -> Any:
        return world.index.victims(now_ms, world.limits.ttl_ms)

    return patch.object(room, "victims", victims)


@mutant
def no_share_of_slots() -> Plant:
    """One prompt may fill every slot with its own states."""
    return patch.object(captures, "_exceeds_its_share", lambda world, seq, cut: False)


@mutant
def full_slots_keep_requests_out() -> Plant:
    """No request enters while every slot holds something."""
    real = admission._admit

    def admit(world: World, *args: Any) -> Any:
        if world.slots.num_slots and not world.slots.num_free:
            return None
        return real(world, *args)

    return patch.object(admission, "_admit", admit)


@mutant
def the_salt_is_left_out() -> Plant:
    """Salts do not keep chains apart."""
    stack = ExitStack()
    stack.enter_context(patch.object(chain, "digest_of_salt", lambda salt: bytes(16)))
    real = Chain.is_prefix_of
    stack.enter_context(
        patch.object(
            Chain, "is_prefix_of", lambda self, other: real(replace(self, salt=other.salt), other)
        )
    )
    return stack


@mutant
def hits_are_thrown_away() -> Plant:
    """What matches is found, and not used."""
    real = ReuseIndex.longest_match

    def longest_match(self: ReuseIndex, chain: Chain, num_tokens: int) -> Any:
        found = real(self, chain, num_tokens)
        if isinstance(found, Match):
            return Miss(MissReason.NO_MATCH)
        return found

    return patch.object(ReuseIndex, "longest_match", longest_match)


@mutant
def every_miss_is_no_match() -> Plant:
    """A miss never says why."""
    real = ReuseIndex.longest_match

    def longest_match(self: ReuseIndex, chain: Chain, num_tokens: int) -> Any:
        found = real(self, chain, num_tokens)
        return Miss(MissReason.NO_MATCH) if isinstance(found, Miss) else found

    return patch.object(ReuseIndex, "longest_match", longest_match)


@mutant
def lost_tokens_uncounted() -> Plant:
    """What matched and could not be used is not counted."""

    def counted(world: World, **amounts: int) -> World:
        return count(world, **{**amounts, "lost_tokens": 0})

    return patch.object(accounts, "count", counted)


@mutant
def lookups_counted_while_waiting() -> Plant:
    """A waiting request's lookup is counted in every round."""
    real = admission.admit_all

    def admit_all(world: World, *more: Any) -> Any:
        return real(count(world, lookups=len(world.queue)), *more)

    return patch.object(scheduler, "admit_all", admit_all)


@mutant
def cached_is_what_matched() -> Plant:
    """The tokens that matched are reported as those that were reused."""
    real = accounts.reuse_of

    def reuse_of(*args: Any) -> Any:
        reuse = real(*args)
        return replace(reuse, cached_tokens=reuse.matched_tokens)

    return patch.object(accounts, "reuse_of", reuse_of)


@mutant
def volatile_prompts_unseen() -> Plant:
    """A system block that changes every time looks like so many new conversations."""
    return patch.object(FirstSegments, "seen", lambda self, *args: (self, None))


@mutant
def skips_in_a_row_unseen() -> Plant:
    """Captures fail, and the engine calls itself well."""

    def skip(world: World, reason: SkipReason) -> World:
        return replace(world, counters=world.counters.tally("skipped", reason))

    return patch.object(captures, "skip", skip)


@mutant
def finished_turns_stay() -> Plant:
    """A turn's last checkpoint holds its place although the next turn has dropped its tokens."""

    def goes_on(index: ReuseIndex, parent: Retained, kind: Kind) -> bool:
        return index.members[parent.conversation][-1] == parent.id

    return patch.object(ReuseIndex, "_goes_on", goes_on)


@mutant
def reuse_off_is_ignored() -> Plant:
    """A request that asked for no reuse gets it."""

    def look_up(world: World, request: Any) -> Match | Miss:
        return world.index.longest_match(request.chain, request.prompt_tokens)

    stack = ExitStack()
    stack.enter_context(patch.object(admission, "look_up", look_up))
    stack.enter_context(patch.object(check, "look_up", look_up))
    return stack


@mutant
def any_chunk_is_accepted() -> Plant:
    """A chunk that is no multiple of the page is taken, and its ends are off the grid."""
    return patch.object(Limits, "__post_init__", lambda self: None)


@mutant
def sampling_is_forgotten() -> Plant:
    """A request that resumes is sampled as if nothing had been asked."""

    def start(*, sampling: SamplingParams, slot: int | None, **more: Any) -> LaneStart:
        return LaneStart(sampling=sampling if slot is None else SamplingParams(), slot=slot, **more)

    return patch.object(admission, "LaneStart", start)


@mutant
def the_queue_ignores_departures() -> Plant:
    """A queued request runs although its client has left."""
    return _deaf(Phase.QUEUED)


@mutant
def lanes_ignore_departures() -> Plant:
    """A request that runs goes on to its end although its client has left."""
    return _deaf(Phase.PREFILLING, Phase.DECODING)


def _deaf(*phases: Phase) -> Plant:
    real = scheduler.cancel

    def cancel(
        world: World, request_id: int, now_ms: float, reason: Any = FinishReason.CANCELLED
    ) -> World:
        seq = world.sequences.get(request_id)
        if seq is not None and seq.phase in phases:
            return world
        return real(world, request_id, now_ms, reason)

    return patch.object(scheduler, "cancel", cancel)


@mutant
def prefill_before_decode() -> Plant:
    """No lane steps while a prompt is being read."""
    real = scheduler._plan_decode

    def plan_decode(world: World, now_ms: float) -> Any:
        reading = any(seq.phase is Phase.PREFILLING for seq in world.running)
        return (world, ()) if reading else real(world, now_ms)

    return patch.object(scheduler, "_plan_decode", plan_decode)


@mutant
def a_departure_goes_uncounted() -> Plant:
    """A request that is cancelled is in no counter of ends."""

    def ended(world: World, seq: Any, reason: FinishReason, *args: Any) -> World:
        after = finish(world, seq, reason, *args)
        if reason is FinishReason.CANCELLED:
            after = replace(after, counters=world.counters)
        return after

    return patch.object(scheduler, "finish", ended)


@mutant
def a_token_without_being_asked() -> Plant:
    """A request for no tokens is answered with one."""
    real = scheduler.submit

    def submit(world: World, request: Any, now_ms: float) -> World:
        return real(world, replace(request, max_tokens=max(request.max_tokens, 1)), now_ms)

    return patch.object(scheduler, "submit", submit)


@mutant
def a_stuck_device_is_waited_for() -> Plant:
    """The engine never gives up on a device that does not answer."""
    real = Engine.__init__

    def init(self: Engine, *args: Any, **more: Any) -> None:
        real(self, *args, **{**more, "round_timeout_ms": None})

    return patch.object(Engine, "__init__", init)


@mutant
def a_dead_engine_calls_itself_alive() -> Plant:
    """After its death the engine's picture still says that it lives."""
    real = Engine.stats
    return patch.object(Engine, "stats", lambda self: replace(real(self), alive=True))


@mutant
def characters_are_cut() -> Plant:
    """Every token's bytes become text at once, unfinished characters included."""

    def feed(self: output.TextDecoder, data: bytes) -> str:
        return codecs.decode(data, "utf-8", "replace")

    return patch.object(output.TextDecoder, "feed", feed)


@mutant
def a_stop_in_one_piece_only() -> Plant:
    """Nothing is held back that may still become a stop string."""
    real = output.StopMatcher._advance

    def advance(self: output.StopMatcher, *, final: bool) -> str:
        return real(self, final=True)

    return patch.object(output.StopMatcher, "_advance", advance)
