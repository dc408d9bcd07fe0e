"""Stand-ins for the engine and for the device.

`ScriptedEngine` answers requests with given tokens, for tests of everything above the engine.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ignisd.engine.control import TooManyPins, flushed, pin
from ignisd.engine.stats import Counters, EngineStats
from ignisd.engine.stream import Stream
from ignisd.engine.types import (
    Finish,
    Finished,
    FinishReason,
    Place,
    Request,
    Reuse,
    Started,
    Tier,
    Timings,
    Token,
)
from ignisd.engine.world import Limits, World, new_world
from ignisd.errors import Draining, Overloaded
from state.retained import Kind
from state.retention import Marks, RetentionPolicy
from state.reuse import Miss, MissReason
from state.spec import Fingerprint


@dataclass(frozen=True)
class Script:
    """What a scripted engine says to one request.

    Args:
        tokens: delivered in order, cut at the request's max_tokens (then the reason is LENGTH).
        reason: how the answer ends when it is not cut.
        cached_tokens: as if that many had been reused; then `kind` names from what.
        miss: why nothing was reused, for 0 cached tokens; by default nothing matched.
        message: of an answer that ends with ERROR.
        gate: when given, awaited before each token: a test lets tokens out one by one.
        silent: the request stays queued: nothing comes until it is cancelled.
    """

    tokens: Sequence[int] = ()
    reason: FinishReason = FinishReason.STOP
    cached_tokens: int = 0
    matched_tokens: int | None = None
    kind: Kind = Kind.CHECKPOINT
    miss: Miss | None = None
    message: str | None = None
    gate: asyncio.Semaphore | None = None
    silent: bool = False

    def reuse(self, marks: Marks) -> Reuse:
        """What the events report of a prompt with these marks."""
        matched = self.cached_tokens if self.matched_tokens is None else self.matched_tokens
        if not self.cached_tokens:
            miss = self.miss or Miss(MissReason.NO_MATCH, matched, None)
            parted = miss.diverged_at
            segment = None if parted is None else marks.segment_at(parted)
            return Reuse(0, matched, miss=miss, diverged_at=parted, segment=segment)
        return Reuse(self.cached_tokens, matched, self.kind, Tier.DEVICE, Place.HOST)


def empty_world() -> World:
    return new_world(
        Limits(num_lanes=4, max_context=4096, chunk_tokens=256),
        RetentionPolicy(),
        Fingerprint(b"scripted"),
        num_pages=101,
        num_device_slots=2,
        num_host_slots=6,
    )


@dataclass
class ScriptedEngine:
    """Has the engine's `submit` and `stats`, and does what scripts say.

    `script` is one script for every request, or a function from the request. `requests` and `left`
    (request id and reason) record what happened. `limit` streams may be open at once; beyond it
    `submit` raises `Overloaded`. Set `draining` or `alive` to act as an engine that is going.
    """

    script: Script | Callable[[Request], Script]
    limit: int = 256
    depth: int = 1 << 20
    draining: bool = False
    alive: bool = True
    requests: list[Request] = field(default_factory=list)
    left: list[tuple[int, FinishReason]] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    world: World = field(default_factory=empty_world)
    _open: dict[int, "_Playing"] = field(default_factory=dict)

    def submit(self, request: Request) -> Stream:
        """Start to play a script.

        Raises:
            Draining: `draining` is set.
            Overloaded: `limit` requests are open.
        """
        if self.draining:
            raise Draining
        if len(self._open) >= self.limit:
            raise Overloaded(self.limit)
        script = self.script if isinstance(self.script, Script) else self.script(request)
        stream = Stream(request, depth=self.depth, on_leave=self._leave)
        playing = _Playing(stream, script)
        self._open[request.id] = playing
        playing.task = asyncio.get_running_loop().create_task(self._play(playing))
        self.requests.append(request)
        self.counters = self.counters.add(submitted=1)
        return stream

    def stats(self) -> EngineStats:
        """A picture in which every open request decodes."""
        return EngineStats(
            alive=self.alive,
            draining=self.draining,
            busy=bool(self._open),
            idle_ms=0.0,
            num_lanes=4,
            num_prefilling=0,
            num_decoding=len(self._open),
            num_parked=0,
            num_queued=0,
            queue_limit=self.limit,
            num_pages=100,
            num_pages_free=100,
            num_slots=8,
            num_slots_free=8,
            retained=dict.fromkeys(Kind, 0),
            retained_tokens=0,
            counters=self.counters,
        )

    def flush(self, tier: Tier | None = None) -> "asyncio.Future[tuple[World, World]]":
        """Flush the world at once."""
        told: asyncio.Future[tuple[World, World]] = asyncio.get_running_loop().create_future()
        before, self.world = self.world, flushed(self.world, tier)
        told.set_result((before, self.world))
        return told

    def pin(
        self, state_id: int, pinned: bool
    ) -> "asyncio.Future[tuple[World, TooManyPins | None]]":
        """Pin a state of the world at once."""
        told = asyncio.get_running_loop().create_future()
        self.world, refused = pin(self.world, state_id, pinned)
        told.set_result((self.world, refused))
        return told

    def fail(self, message: str) -> None:
        """End every open stream as an engine does that has died."""
        self.alive = False
        for playing in list(self._open.values()):
            self._finish(playing, FinishReason.ERROR, message)

    async def _play(self, playing: "_Playing") -> None:
        script, stream, request = playing.script, playing.stream, playing.stream.request
        if script.silent:
            return
        stream.put(Started(request.id, 0, script.reuse(request.marks)))
        for token in list(script.tokens)[: request.max_tokens]:
            if script.gate is not None:
                await script.gate.acquire()
            playing.generated += 1
            stream.put(Token(request.id, token))
            if playing.generated % 16 == 0:
                await asyncio.sleep(0)
        cut = len(script.tokens) > request.max_tokens
        playing.task = None
        self._finish(playing, FinishReason.LENGTH if cut else script.reason, script.message)

    def _leave(self, request_id: int, reason: FinishReason) -> None:
        self.left.append((request_id, reason))
        self._finish(self._open[request_id], reason, None)

    def _finish(self, playing: "_Playing", reason: FinishReason, message: str | None) -> None:
        request = playing.stream.request
        if playing.task is not None:
            playing.task.cancel()
        del self._open[request.id]
        self.counters = self.counters.tally("finished", reason)
        finish = Finish(
            request_id=request.id,
            name=request.name,
            cls=request.cls,
            reason=reason,
            prompt_tokens=request.prompt_tokens,
            generated_tokens=playing.generated,
            reuse=playing.script.reuse(request.marks),
            timings=Timings(request.arrival_ms),
            lane=0,
            message=message,
        )
        playing.stream.put(Finished(request.id, finish))


@dataclass
class _Playing:
    """A script under way."""

    stream: Stream
    script: Script
    generated: int = 0
    task: asyncio.Task[None] | None = None
