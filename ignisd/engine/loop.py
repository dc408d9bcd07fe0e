"""The one coroutine between requests and the device.

Each turn folds in what came (requests, departures), plans a round and hands it to the device
thread together with the fetch of the round before. While the device computes the new round, this
thread commits and delivers the old one and plans the next: host and device work overlap, and one
round is under way at most times. All of it but the device calls belongs to one event loop.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from ignisd.engine import admission, control, scheduler
from ignisd.engine.check import check_planned, check_world
from ignisd.engine.files import Command, FileThreads
from ignisd.engine.picture import Measured, picture
from ignisd.engine.spilling import draining, is_written_out
from ignisd.engine.stats import EngineStats
from ignisd.engine.stream import Stream
from ignisd.engine.types import (
    Event,
    Finish,
    Finished,
    FinishReason,
    Notice,
    Request,
    Reuse,
    Round,
    RoundResult,
    Runner,
    Started,
    Tier,
    Timings,
)
from ignisd.engine.watch import Nobody, Watch
from ignisd.engine.world import World
from ignisd.errors import Draining, EngineFailure, Overloaded
from state.reuse import Match, Miss

T = TypeVar("T")

_DRAIN_STEP_MS = 50.0
"""While state is written out, the plan is asked again so often even if nothing was told."""


def _unheard(heard: Finish | Notice) -> None:
    """Nobody asked to hear of it."""


class Engine:
    """Serves requests from a world and a runner until it is stopped or dies.

    Args:
        world: as made by `new_world`.
        runner: the owner of the device; called on one thread of its own.
        clock: milliseconds that never run backwards.
        queue_limit: most requests that may wait (--server-queue).
        stream_depth: undelivered tokens at which a request is paused.
        stall_ms: a reader that takes nothing for so long from a full stream is cancelled.
        round_timeout_ms: a device that takes longer for one turn is taken for stuck, and the engine
            dies. Its thread cannot be stopped: the process should then leave by `os._exit`.
        files: the threads of kv_disk; None where it is off.
        drain_ms: how long retained state may take to be written out when the engine is stopped.
        check: verify every invariant at every round.
        late_compiles: how many programs were compiled since the start.
        on_finish: told of every end, in the loop's thread; must not raise.
        on_notice: told what belongs into the log, in the loop's thread; must not raise.
        watch: told of every turn.
    """

    def __init__(
        self,
        world: World,
        runner: Runner,
        *,
        clock: Callable[[], float],
        queue_limit: int = 256,
        stream_depth: int = 256,
        stall_ms: float = 60_000.0,
        round_timeout_ms: float | None = None,
        files: FileThreads | None = None,
        drain_ms: float = 0.0,
        check: bool = False,
        on_finish: Callable[[Finish], None] = _unheard,
        on_notice: Callable[[Notice], None] = _unheard,
        late_compiles: Callable[[], int] = lambda: 0,
        watch: Watch | None = None,
    ) -> None:
        self._world = world
        self._runner = runner
        self._clock = clock
        self._queue_limit = queue_limit
        self._stream_depth = stream_depth
        self._stall_ms = stall_ms
        self._round_timeout_ms = round_timeout_ms
        self._files = files
        self._drain_ms = drain_ms
        self._drained_at_ms: float | None = None
        self._check = check
        self._on_finish = on_finish
        self._on_notice = on_notice
        self._late_compiles = late_compiles
        self._watch = watch or Nobody()
        self._device = ThreadPoolExecutor(1, thread_name_prefix="ignisd-device")
        self._streams: dict[int, Stream] = {}
        self._inbox: list[Command] = []
        self._num_incoming = 0
        self._refused = 0
        self._behind: dict[int, tuple[int, float]] = {}
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._draining = False
        self._alive = True
        self._progress_ms = clock()
        self._measured = Measured()

    @property
    def world(self) -> World:
        """What the scheduler sees, as of now."""
        return self._world

    def submit(self, request: Request) -> Stream:
        """Queue a request.

        Raises:
            EngineFailure: the engine has died.
            Draining: it is being stopped.
            Overloaded: too many requests wait.
        """
        if not self._alive and not self._draining:
            raise EngineFailure("the engine has died; see the log")
        if self._draining:
            raise Draining
        if len(self._world.queue) + self._num_incoming >= self._queue_limit:
            self._refused += 1
            raise Overloaded(self._queue_limit)
        stream = Stream(
            request, depth=self._stream_depth, on_leave=self._leave, on_drain=self._drained
        )
        assert request.id not in self._streams, f"request {request.id} is in flight already"
        self._streams[request.id] = stream
        self._num_incoming += 1
        self._tell(lambda world, now_ms: scheduler.submit(world, request, now_ms))
        return stream

    def flush(self, tier: Tier | None = None) -> "asyncio.Future[tuple[World, World]]":
        """Give up what is retained, in one tier or in all, before the next round; the worlds
        before and after that."""

        def command(world: World) -> tuple[World, tuple[World, World]]:
            emptied = control.flushed(world, tier)
            return emptied, (world, emptied)

        return self._answered(command)

    def pin(
        self, state_id: int, pinned: bool
    ) -> "asyncio.Future[tuple[World, control.TooManyPins | None]]":
        """Pin a state before the next round, or take that back; the world then, or what hinders."""

        def command(world: World) -> tuple[World, tuple[World, control.TooManyPins | None]]:
            changed = control.pin(world, state_id, pinned)
            return changed[0], changed

        return self._answered(command)

    def _answered(self, change: Callable[[World], tuple[World, T]]) -> "asyncio.Future[T]":
        told: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def command(world: World, now_ms: float) -> World:
            world, answer = change(world)
            if not told.done():
                told.set_result(answer)
            return world

        self._tell(command)
        return told

    def adjust(self, queue_limit: int, **limits: Any) -> None:
        """Change how many requests may wait, now, and bounds of `Limits`, before the next round."""
        self._queue_limit = queue_limit
        self._tell(lambda world, now_ms: replace(world, limits=replace(world.limits, **limits)))

    def _leave(self, request_id: int, reason: FinishReason) -> None:
        self._tell(lambda world, now_ms: scheduler.cancel(world, request_id, now_ms, reason))

    def _drained(self, request_id: int) -> None:
        self._behind.pop(request_id, None)
        self._tell(lambda world, now_ms: scheduler.hold(world, request_id, held=False))

    def _tell(self, command: Command) -> None:
        self._inbox.append(command)
        self._wake.set()

    def _tell_from_thread(self, command: Command) -> None:
        """A thread of files has ended an order; the loop may be gone by then."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell, command)

    async def stop(self, grace_ms: float | None = None) -> None:
        """Take no more requests, and return when `run` has ended.

        Requests under way are finished; those left after `grace_ms` are cancelled.
        """
        self._draining = True
        self._wake.set()
        if grace_ms is not None:
            try:
                await asyncio.wait_for(self._ended.wait(), grace_ms / 1000.0)
            except TimeoutError:
                for request_id in list(self._streams):
                    self._leave(request_id, FinishReason.CANCELLED)
        await self._ended.wait()

    async def run(self) -> None:
        """Turn until stopped. Whatever else ends it has told every reader, and is raised."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._turns()
        except BaseException as error:
            if self._files is not None:
                self._files.abort()
            self._fail(f"the engine has died: {type(error).__name__}")
            raise
        finally:
            self._alive = False
            if self._files is not None:
                self._files.stop()
            self._device.shutdown(wait=False)
            self._ended.set()

    async def _turns(self) -> None:
        under_way: object | None = None
        while True:
            began_ms = self._clock()
            work = self._planned(began_ms)
            planned_ms = self._clock()
            self._measured.plan_ms += planned_ms - began_ms
            if work is None and under_way is None:
                self._progress_ms = planned_ms
                if self._draining and not self._world.sequences and not self._inbox:
                    if self._is_written_out(planned_ms):
                        return
                    if self._inbox:
                        continue
                await self._idle()
                self._progress_ms = self._clock()  # rest is not a standstill
                continue
            under_way, result = await self._on_device(work, under_way)
            fetched_ms = self._clock()
            self._measured.device_ms += fetched_ms - planned_ms
            if result is not None:
                took_ms = fetched_ms - self._world.in_flight[0].planned_ms
                self._measured.capture_s.observe(took_ms / 1000, len(result.captured))
                self._watch.committing(fetched_ms)
                self._world, events = scheduler.commit(self._world, result, fetched_ms)
                self._deliver(events, fetched_ms)
            self._progress_ms = self._clock()
            self._measured.deliver_ms += self._progress_ms - fetched_ms

    def _is_written_out(self, now_ms: float) -> bool:
        """Begin to write out what is retained; whether that has ended, or its time has."""
        if self._files is None or self._drain_ms <= 0.0:
            return True
        if self._drained_at_ms is None:
            self._drained_at_ms = now_ms + self._drain_ms
            self._tell(lambda world, now_ms: draining(world))
            return False
        return now_ms >= self._drained_at_ms or is_written_out(self._world, now_ms)

    async def _on_device(
        self, work: Round | None, under_way: object | None
    ) -> tuple[object | None, RoundResult | None]:
        loop = asyncio.get_running_loop()
        turn = loop.run_in_executor(self._device, self._turn_device, work, under_way)
        if self._round_timeout_ms is None:
            return await turn
        done, _ = await asyncio.wait({turn}, timeout=self._round_timeout_ms / 1000.0)
        if not done:
            lanes = {seq.lane: f"{seq.phase} at {seq.position}" for seq in self._world.running}
            raise EngineFailure(
                f"the device has not answered for {self._round_timeout_ms:.0f} ms; lanes: {lanes}"
            )
        return turn.result()

    def _turn_device(
        self, work: Round | None, under_way: object | None
    ) -> tuple[object | None, RoundResult | None]:
        """On the device thread: dispatch the new round first, then wait for the one before."""
        dispatched = None if work is None else self._runner.run(work)
        result = None if under_way is None else self._runner.fetch(under_way)
        return dispatched, result

    def _planned(self, now_ms: float) -> Round | None:
        """Fold in what came and plan on from there."""
        self._wake.clear()
        inbox, self._inbox, self._num_incoming = self._inbox, [], 0
        for command in inbox:
            self._world = command(self._world, now_ms)
        self._cancel_stalled(now_ms)
        self._watch.planning(self._world, now_ms)
        self._world, work = scheduler.plan(self._world, now_ms, self._look)
        if self._check:
            check_world(self._world)
            check_planned(self._world, work, now_ms)
        self._world, events = scheduler.take_events(self._world)
        self._deliver(events, now_ms)
        self._world, orders = scheduler.take_orders(self._world)
        for order in orders:
            assert self._files is not None, "an order for files, and no thread for it"
            self._files.submit(order, self._tell_from_thread)
        self._world, notices = scheduler.take_notices(self._world)
        for one in notices:
            self._on_notice(one)
        return work

    def _look(self, world: World, request: Request) -> Match | Miss:
        began_ms = self._clock()
        found = admission.look_up(world, request)
        self._measured.lookup_s.observe((self._clock() - began_ms) / 1000)
        return found

    def _deliver(self, events: tuple[Event, ...], now_ms: float) -> None:
        for event in events:
            stream = self._streams[event.request_id]
            stream.put(event)
            if isinstance(event, Finished):
                del self._streams[event.request_id]
                self._behind.pop(event.request_id, None)
                self._on_finish(event.finish)
            elif isinstance(event, Started):
                self._measured.note_reuse(event.reuse)
            elif stream.full and event.request_id not in self._behind:
                self._behind[event.request_id] = (stream.num_taken, now_ms)
                self._world = scheduler.hold(self._world, event.request_id, held=True)

    def _cancel_stalled(self, now_ms: float) -> None:
        """Cancel readers that have taken nothing for too long although their streams are full."""
        for request_id, (taken, since_ms) in list(self._behind.items()):
            stream = self._streams[request_id]
            if stream.num_taken != taken:
                self._behind[request_id] = (stream.num_taken, now_ms)
            elif now_ms - since_ms >= self._stall_ms:
                del self._behind[request_id]
                self._world = scheduler.cancel(self._world, request_id, now_ms)

    async def _idle(self) -> None:
        """Wait until something comes, or until a stalled reader is due."""
        due = [since_ms + self._stall_ms for _, since_ms in self._behind.values()]
        if self._drained_at_ms is not None:
            due.append(min(self._drained_at_ms, self._clock() + _DRAIN_STEP_MS))
        timeout_s = None
        if due:
            timeout_s = max(min(due) - self._clock(), 0.0) / 1000.0 + 0.001
        try:
            await asyncio.wait_for(self._wake.wait(), timeout_s)
        except TimeoutError:
            return

    def _fail(self, message: str) -> None:
        """End every stream with an error."""
        for request_id, stream in self._streams.items():
            seq = self._world.sequences.get(request_id)
            request = stream.request
            finish = Finish(
                request_id=request_id,
                name=request.name,
                cls=request.cls,
                reason=FinishReason.ERROR,
                prompt_tokens=request.prompt_tokens,
                generated_tokens=seq.generated if seq else 0,
                reuse=seq.reuse if seq else Reuse(),
                timings=seq.timings if seq else Timings(request.arrival_ms),
                lane=seq.lane if seq else None,
                message=message,
            )
            stream.put(Finished(request_id, finish))
            self._on_finish(finish)
        self._streams.clear()

    def stats(self) -> EngineStats:
        """A picture of the engine as it stands."""
        shown = picture(
            self._world,
            alive=self._alive,
            draining=self._draining,
            busy=bool(self._world.sequences or self._inbox),
            idle_ms=self._clock() - self._progress_ms,
            num_incoming=self._num_incoming,
            queue_limit=self._queue_limit,
            refused=self._refused,
            late_compiles=self._late_compiles(),
        )
        return self._measured.added_to(shown)
