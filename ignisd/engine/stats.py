"""What the engine counts, and what it shows of itself."""

import enum
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Self, TypeVar

from ignisd.engine.histogram import LOOKUP_SECONDS, ROUND_SECONDS, Histogram
from ignisd.engine.types import FinishReason, Tier
from state.retained import Kind
from state.reuse import MissReason

Key = TypeVar("Key", bound=enum.StrEnum)


DEGRADED_SKIPS = 3
"""Skipped captures in a row from which the engine counts as degraded."""


class SkipReason(enum.StrEnum):
    """Why the state at a cut was not kept."""

    NO_SLOT = "no_slot"  # every slot holds something of higher rank
    QUOTA = "quota"  # this prompt has displaced its share with periodic states
    PRESENT = "present"  # the same state is already retained
    RESTORED = "restored"  # no slot for the copy of a state that stays in a lower tier
    UNWRITTEN = "unwritten"  # the device did not report the slot as written

    @property
    def is_failure(self) -> bool:
        """Whether something that was to be kept is lost, and not just by design."""
        return self in (SkipReason.NO_SLOT, SkipReason.UNWRITTEN)


class NotDemoted(enum.StrEnum):
    """Why a retained state that the device gave up did not go down to the arena."""

    NO_ROOM = "no_room"  # the arena is full of what ranks above it, or smaller than the state
    WINDOW = "window"  # the round could not carry it


class Use(enum.StrEnum):
    """What a retained state that is gone had been good for."""

    USED = "used"  # it had been claimed or restored
    UNUSED = "unused"
    STRANDED = "stranded"  # one half of it was gone; a bug


class FileWork(enum.StrEnum):
    """What is done with a file of kv_disk."""

    WRITE = "write"
    READ = "read"
    REMOVE = "remove"


class PinEnd(enum.StrEnum):
    """Why a pin ended although nobody took it back."""

    NO_ROOM = "no_room"  # live work needed the device, and nothing below had room: it is gone
    LIMIT = "limit"  # it went down as any other, as enough is pinned there


Gone = tuple[Tier, Kind, Use]
"""Where a state was that is in no tier any more, what it was, and whether it had been used."""

Restored = tuple[Tier, Kind]
"""From which tier a state was restored, and what it was."""

LOWER_TIERS = (Tier.KV_RAM, Tier.KV_DISK)


def _zeros(kind: type[Key]) -> Mapping[Key, int]:
    return dict.fromkeys(kind, 0)


def _none_gone() -> Mapping[Gone, int]:
    return dict.fromkeys(product(Tier, Kind, Use), 0)


def _none_restored() -> Mapping[Restored, int]:
    return dict.fromkeys(product(LOWER_TIERS, Kind), 0)


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the start. Names in mappings are complete: what never happened counts 0.

    Args:
        submitted: requests taken in; equals the sum of `finished` once all have ended.
        refused: requests turned away because the queue was full.
        finished: requests ended, by reason.
        computed_tokens: prompt tokens read, counted from rows that the device executed.
        device_tokens: prompt tokens that a claim made unnecessary to read.
        generated_tokens: tokens sampled for requests that had not ended.
        late_tokens: tokens that arrived for a request that had ended.
        lookups: admissions that asked the index.
        queried_tokens: prompt tokens of those admissions.
        matched_tokens: prompt tokens that agreed with something retained, usable or not.
        lost_tokens: those among them that were computed all the same, as no image stood so far.
        volatile: admissions whose system block differed from the last three of its kind.
        hits: claims and restores, by the kind of the state.
        misses: admissions without a claim, by reason.
        captured: states published, by kind.
        skipped: states at cuts that were not kept, by reason.
        discarded: retained states that went and lie in no tier below.
        flushed: retained states given up because somebody asked for it, in any tier.
        demoted: retained states sent down to the arena, by kind.
        demoted_present: retained states given up by the device that lay below already.
        not_demoted: retained states given up by the device and not sent down, by reason.
        spilled: retained states written from the arena to files, by kind.
        evictions: sequences that gave way and lie below.
        evicted_to_disk: those of them whose state was written on to a file.
        evicted_pages: pages that went down for them.
        recomputed: sequences that gave way and are computed anew, for want of room below.
        resumed: evicted sequences that went on.
        restored: retained states claimed from a lower tier.
        ram_tokens, disk_tokens: prompt tokens that those made unnecessary to read.
        raised_pages: pages that came up.
        replayed_tokens: tokens sampled once more for sequences that were computed anew.
        files_written, files_read: files of kv_disk.
        disk_written_bytes, disk_read_bytes: what these had.
        file_faults: orders for files that failed, by what was to be done.
        pins_ended: pins that ended although nobody took them back.
        parks: times that a lane began to wait for a page.
        holds: times that a sequence was paused because its reader was behind.
        unplaced: sequences ended with an error because no page could be found for any lane.
        rounds: rounds committed.
        prefill_chunks: rounds among them with a prefill chunk.
        decode_steps: rounds among them with a decode step.
    """

    submitted: int = 0
    refused: int = 0
    finished: Mapping[FinishReason, int] = field(default_factory=lambda: _zeros(FinishReason))
    computed_tokens: int = 0
    device_tokens: int = 0
    generated_tokens: int = 0
    late_tokens: int = 0
    lookups: int = 0
    queried_tokens: int = 0
    matched_tokens: int = 0
    lost_tokens: int = 0
    volatile: int = 0
    hits: Mapping[Kind, int] = field(default_factory=lambda: _zeros(Kind))
    misses: Mapping[MissReason, int] = field(default_factory=lambda: _zeros(MissReason))
    captured: Mapping[Kind, int] = field(default_factory=lambda: _zeros(Kind))
    skipped: Mapping[SkipReason, int] = field(default_factory=lambda: _zeros(SkipReason))
    discarded: Mapping[Gone, int] = field(default_factory=_none_gone)
    flushed: int = 0
    demoted: Mapping[Kind, int] = field(default_factory=lambda: _zeros(Kind))
    demoted_present: int = 0
    not_demoted: Mapping[NotDemoted, int] = field(default_factory=lambda: _zeros(NotDemoted))
    spilled: Mapping[Kind, int] = field(default_factory=lambda: _zeros(Kind))
    evictions: int = 0
    evicted_to_disk: int = 0
    evicted_pages: int = 0
    recomputed: int = 0
    resumed: int = 0
    restored: Mapping[Restored, int] = field(default_factory=_none_restored)
    ram_tokens: int = 0
    disk_tokens: int = 0
    raised_pages: int = 0
    replayed_tokens: int = 0
    files_written: int = 0
    files_read: int = 0
    disk_written_bytes: int = 0
    disk_read_bytes: int = 0
    file_faults: Mapping[FileWork, int] = field(default_factory=lambda: _zeros(FileWork))
    pins_ended: Mapping[PinEnd, int] = field(default_factory=lambda: _zeros(PinEnd))
    parks: int = 0
    holds: int = 0
    unplaced: int = 0
    rounds: int = 0
    prefill_chunks: int = 0
    decode_steps: int = 0

    def add(self, **amounts: int) -> Self:
        """These counters with plain ones raised by the given amounts."""
        raised: dict[str, Any] = {name: getattr(self, name) + by for name, by in amounts.items()}
        return replace(self, **raised)

    def tally(self, name: str, key: Hashable) -> Self:
        """These counters with one entry of a mapping raised by one."""
        old: Mapping[Hashable, int] = getattr(self, name)
        raised: dict[str, Any] = {name: {**old, key: old[key] + 1}}
        return replace(self, **raised)

    def restored_from(self, tier: Tier) -> int:
        """Retained states of all kinds that were claimed from a tier."""
        return sum(self.restored[tier, kind] for kind in Kind)

    @property
    def file_failures(self) -> int:
        """Orders for files that failed, whatever was to be done."""
        return sum(self.file_faults.values())

    @property
    def prompt_tokens(self) -> Mapping[str, int]:
        """Prompt tokens by where they came from: `computed`, or the tier that they lay in."""
        return {
            "computed": self.computed_tokens,
            Tier.DEVICE.value: self.device_tokens,
            Tier.KV_RAM.value: self.ram_tokens,
            Tier.KV_DISK.value: self.disk_tokens,
        }


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A picture of the engine between two rounds.

    Args:
        alive: False once the engine has died or stopped.
        draining: no new requests are taken.
        idle_ms: time since the engine last made progress; meaningful while `busy`.
        busy: something is queued or running.
        num_lanes, num_prefilling, num_decoding, num_parked: lanes, and what occupies them.
        num_queued: requests that wait, those not yet seen by the scheduler included.
        queue_limit: most that may wait.
        num_pages, num_pages_free: pages of the pool, without the null page.
        num_slots, num_slots_free: slots for images.
        retained: retained states by kind.
        retained_tokens: sum of their lengths, common pages counted as often as they are shared.
        counters: totals since the start.
        late_compiles: programs compiled since the model was ready; more than 0 is a bug.
        plan_ms, device_ms, deliver_ms: time spent in each part of all rounds together.
        skipped_in_row: captures skipped for want of a slot, or not written, since the last one
            that was published.
        lookup_s: what a search for the longest retained state took.
        capture_s: from the plan of the round that writes a state until it can be found.
        restore_s: by tier, from admission until a request resumes from what lay there.
    """

    alive: bool
    draining: bool
    busy: bool
    idle_ms: float
    num_lanes: int
    num_prefilling: int
    num_decoding: int
    num_parked: int
    num_queued: int
    queue_limit: int
    num_pages: int
    num_pages_free: int
    num_slots: int
    num_slots_free: int
    retained: Mapping[Kind, int]
    retained_tokens: int
    counters: Counters
    plan_ms: float = 0.0
    device_ms: float = 0.0
    deliver_ms: float = 0.0
    late_compiles: int = 0
    skipped_in_row: int = 0
    lookup_s: Histogram = field(default_factory=lambda: Histogram(LOOKUP_SECONDS))
    capture_s: Histogram = field(default_factory=lambda: Histogram(ROUND_SECONDS))
    restore_s: Mapping[Tier, Histogram] = field(
        default_factory=lambda: {tier: Histogram(ROUND_SECONDS) for tier in LOWER_TIERS}
    )

    @property
    def degraded(self) -> bool:
        """Whether what requests leave behind is not kept at present: three skips in a row."""
        return self.skipped_in_row >= DEGRADED_SKIPS
