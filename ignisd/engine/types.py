"""What crosses the engine's borders: a request in, rounds to the device, events out.

    QUEUED -> [RESTORING ->] PREFILLING -> DECODING -> finished
                                            |    ^
                                        EVICTING  RESTORING
                                            v    |
                                            EVICTED

A request that is QUEUED holds nothing. PREFILLING holds a lane and the pages of its whole prompt
and of its first step; DECODING holds a lane and the pages it has used, and grows. EVICTING gives
its lane up with its first window and its pages when the last has landed; EVICTED holds cells of the
arena or a file, and nothing on the device. RESTORING holds a lane and pages, and waits for what
goes into them. Where a sequence that must give way finds no room below, it is QUEUED again and
computed anew. Any phase may be cancelled, at a round's end.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ignisd.engine.moves import Lower, Raise
from state.chain import Chain
from state.retained import Kind
from state.retention import Marks
from state.reuse import Miss, MissReason
from state.spec import Class

Tokens = npt.NDArray[np.int32]


class Phase(enum.StrEnum):
    """Where a request stands; the module's docstring draws the ways between."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    EVICTING = "evicting"
    EVICTED = "evicted"
    RESTORING = "restoring"


class FinishReason(enum.StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Tier(enum.StrEnum):
    """Where retained state lay when it was used."""

    DEVICE = "device"
    KV_RAM = "kv_ram"
    KV_DISK = "kv_disk"


class Place(enum.StrEnum):
    """Which memory the slot of an image is in; both belong to the tier `device`."""

    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn.

    Args:
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        min_p: 0 is off.
        presence_penalty: subtracted once from the logit of every token generated before.
        frequency_penalty: subtracted as often as the token was generated.
        repetition_penalty: divides positive and multiplies negative logits of every token seen,
            prompt included; 1 is off.
        seed: uint32; draws depend on it and on the token's position alone.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue.

    Args:
        id: unique in this process; orders requests that arrive in the same millisecond.
        name: the public identity, as in answers and logs.
        chain: the prompt's tokens and their page hashes; never empty.
        marks: token offsets found while rendering; they decide where state is kept.
        sampling: how tokens are drawn.
        max_tokens: most tokens to generate. 0 reads the prompt, keeps its state and ends.
        stop_ids: a sampled token among these ends the answer and is not delivered.
        cls: who waits for it.
        reuse: False neither uses nor leaves retained state.
        arrival_ms: when it came, on the engine's clock.
    """

    id: int
    name: str
    chain: Chain
    marks: Marks
    sampling: SamplingParams
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    cls: Class = Class.INTERACTIVE
    reuse: bool = True
    arrival_ms: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self.chain.num_tokens


@dataclass(frozen=True, slots=True)
class LaneSave:
    """Copy a lane's state, which stands at `position` tokens, into a slot; the lane is left."""

    lane: int
    slot: int
    position: int


@dataclass(frozen=True, slots=True)
class LaneStart:
    """Begin a sequence in a lane, or let an evicted one go on there.

    The image in `slot` or in `image_cells` of the arena, which stands at `position`, is copied into
    the lane and stays where it is; without either the lane is cleared and `position` is 0.

    Args:
        prompt: the whole prompt, for the penalties that look at it.
        answer: tokens that were sampled before; the last of them is fed next.
        keep_slot: where a copy of the image in the arena is put as well.
    """

    lane: int
    slot: int | None
    position: int
    sampling: SamplingParams
    prompt: Tokens
    image_cells: tuple[int, ...] = ()
    answer: Tokens | None = None
    keep_slot: int | None = None


@dataclass(frozen=True, slots=True)
class Capture:
    """Write the state after `position` tokens (absolute, a multiple of 64) into a slot."""

    position: int
    slot: int


@dataclass(frozen=True, slots=True)
class PrefillWork:
    """Read one chunk of a prompt.

    Args:
        sequence_id: whose prompt.
        lane: the lane whose state reads on from `start`.
        tokens: int32 [n], 1 <= n <= chunk; a multiple of 64 unless `last`.
        start: position of tokens[0], a multiple of 64.
        table: the sequence's pages, page i holding tokens [64 i, 64 i + 64).
        captures: ascending, start < position <= start + n.
        last: the chunk ends the prompt, so that the first token is sampled as well.
    """

    sequence_id: int
    lane: int
    tokens: Tokens
    start: int
    table: tuple[int, ...]
    captures: tuple[Capture, ...]
    last: bool


@dataclass(frozen=True, slots=True)
class DecodeLane:
    """Feed a lane the token that it sampled last, whose keys and values go to `position`."""

    sequence_id: int
    lane: int
    position: int
    table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of the device.

    The parts run in this order: what goes down, saves, what comes up, starts, the prefill chunk
    with its captures, the sampling of a first token, one decode step of all listed lanes. A
    sequence samples at most one token in a round.
    """

    number: int
    lowers: tuple[Lower, ...] = ()
    saves: tuple[LaneSave, ...] = ()
    raises: tuple[Raise, ...] = ()
    starts: tuple[LaneStart, ...] = ()
    prefill: PrefillWork | None = None
    decode: tuple[DecodeLane, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round did.

    Args:
        number: the round's.
        tokens: sequence id to the token that it sampled.
        captured: slots that were written, by captures and saves alike.
        prefill_rows: prompt tokens that were really read; padding does not count.
        raised_ms: what it took to hand over what comes up from the arena in it.
    """

    number: int
    tokens: Mapping[int, int]
    captured: tuple[int, ...]
    prefill_rows: int
    raised_ms: float = 0.0


class Runner(Protocol):
    """The owner of the device; both calls are made on its one thread, in the order of rounds."""

    def run(self, work: Round) -> object:
        """Dispatch a round and return a handle for `fetch`, without waiting for the device."""
        ...

    def fetch(self, handle: object) -> RoundResult:
        """Wait for a dispatched round."""
        ...


@dataclass(frozen=True, slots=True)
class Reuse:
    """What was reused for a request, or why nothing was.

    Args:
        cached_tokens: prompt tokens that were not computed; 0 on a miss.
        matched_tokens: prompt tokens that agree with something retained, usable or not.
        kind: of the retained state that was claimed.
        tier: where it lay.
        place: which memory its slot was in.
        miss: why nothing was claimed; None on a hit, and until the request is admitted.
        restore_ms: time spent on bringing state up from a lower tier.
        diverged_at: offset at which the prompt parts from what agrees with it longest; None where
            one of the two just ends.
        segment: the part of the prompt in which that is: tools, system or message k.
        shortfall: why no more was claimed, on a hit that could have been longer.
        volatile_at: the system block differs from the last three of its kind, from this token on.
    """

    cached_tokens: int = 0
    matched_tokens: int = 0
    kind: Kind | None = None
    tier: Tier | None = None
    place: Place | None = None
    miss: Miss | None = None
    restore_ms: float = 0.0
    diverged_at: int | None = None
    segment: str | None = None
    shortfall: MissReason | None = None
    volatile_at: int | None = None

    @property
    def lost_tokens(self) -> int:
        """Tokens that agree with something retained and are computed all the same."""
        return max(self.matched_tokens - self.cached_tokens, 0)


@dataclass(frozen=True, slots=True)
class Timings:
    """When things happened to a request, on the engine's clock; None where they did not."""

    arrival_ms: float
    admitted_ms: float | None = None
    first_token_ms: float | None = None
    last_token_ms: float | None = None
    longest_gap_ms: float = 0.0
    finished_ms: float | None = None

    @property
    def ttft_ms(self) -> float | None:
        """From arrival to the first token."""
        return None if self.first_token_ms is None else self.first_token_ms - self.arrival_ms

    @property
    def decode_ms(self) -> float:
        """From the first token to the last."""
        if self.first_token_ms is None or self.last_token_ms is None:
            return 0.0
        return self.last_token_ms - self.first_token_ms


@dataclass(frozen=True, slots=True)
class Finish:
    """How a request ended.

    `generated_tokens` counts a stop token, which is sampled though not delivered. `evictions` are
    times that it gave way, `recomputed` those among them after which it was computed anew.
    `message` is set when the reason is ERROR.
    """

    request_id: int
    name: str
    cls: Class
    reason: FinishReason
    prompt_tokens: int
    generated_tokens: int
    reuse: Reuse
    timings: Timings
    lane: int | None = None
    evictions: int = 0
    recomputed: int = 0
    message: str | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed."""
        return self.reuse.cached_tokens


@dataclass(frozen=True, slots=True)
class Started:
    """The claim, if any, has succeeded: what was reused is now certain."""

    request_id: int
    lane: int
    reuse: Reuse


@dataclass(frozen=True, slots=True)
class Token:
    """The next token of the answer."""

    request_id: int
    token: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request; exactly one comes."""

    request_id: int
    finish: Finish


Event = Started | Token | Finished


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the operator should read in the log; no request's text is in it."""

    event: str
    facts: Mapping[str, int | str]
