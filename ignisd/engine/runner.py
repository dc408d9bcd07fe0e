"""The one owner of the device: executes rounds, in order, on one thread.

`run` dispatches and does not wait; `fetch` waits for a round's tokens. Arrays that cross to the
device are made afresh for every round, since the CPU backend may read them in place and late.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ignisd.engine.cells import CellStore, SharedPages, StagedPages
from ignisd.engine.image_store import ImageStore
from ignisd.engine.moves import Lower
from ignisd.engine.programs import DeviceState, Programs, Shape
from ignisd.engine.types import (
    DecodeLane,
    LaneSave,
    LaneStart,
    PrefillWork,
    Round,
    RoundResult,
)
from ignisd.model.forward import Chunk, Params
from ignisd.model.sampler import SamplerBank
from state.spec import PAGE_TOKENS

IntArray = npt.NDArray[np.int32]


def no_time() -> float:
    """A clock that stands still."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Handle:
    """A dispatched round: arrays that will hold its tokens, and what to report."""

    number: int
    first: tuple[int, jax.Array] | None
    decoded: tuple[DecodeLane, ...]
    tokens: jax.Array | None
    captured: tuple[int, ...]
    prefill_rows: int
    awaited: tuple[jax.Array, ...]
    lowers: bool
    raised_ms: float


class DeviceRunner:
    """Executes rounds on the device state that it owns.

    Args:
        params: the model's weights.
        shape: what the programs were compiled for.
        programs: compiled for these.
        device: the state; nobody else may hold it.
        num_host_slots: images kept in host memory, numbered after the device slots.
        rows: [num_cells, cell_bytes] uint8: the cells of the arena, where there is one.
        clock: milliseconds that never run backwards; without one nothing takes any time.
        keep_logits: tests only: the logits of every sampled token are kept in `logits`.
    """

    def __init__(
        self,
        params: Params,
        shape: Shape,
        programs: Programs,
        device: DeviceState,
        num_host_slots: int,
        *,
        rows: npt.NDArray[np.uint8] | None = None,
        clock: Callable[[], float] = no_time,
        keep_logits: bool = False,
    ) -> None:
        self._params = params
        self._shape = shape
        self._programs = programs
        self._device = device
        self._seen_nothing = jnp.zeros(device.sampler.seen.shape[1], jnp.uint8)
        self._generated_nothing = jnp.zeros(device.sampler.generated.shape[1], jnp.int32)
        self._clock = clock
        self._written: jax.Array | None = None
        self._keep_logits = keep_logits
        self.logits: dict[int, list[jax.Array]] = {}
        self.images = ImageStore(device, programs, shape.num_device_slots, num_host_slots)
        self.cells = None if rows is None else _cell_store(device, rows, programs, shape)

    @property
    def device(self) -> DeviceState:
        """The state, for tests and probes that run between rounds."""
        return self._device

    @property
    def programs(self) -> Programs:
        """What it runs."""
        return self._programs

    def release(self) -> None:
        """Give all memory back, whoever still refers to this; nothing runs any more."""
        held = self._device
        kept = (held.pool, held.bank, held.images, held.slots, held.sampler)
        for leaf in jax.tree.leaves((self._params, kept, self.images.host_images())):
            leaf.delete()
        self.cells = None

    def run(self, work: Round) -> Handle:
        """Dispatches a round; its arrays are ready once `fetch` has returned."""
        before, beside = self._written, self._moves_beside(work)
        raised_ms = 0.0 if beside else self._move_pages(work)
        self._lower_images(work.lowers)
        written = {save.slot: self._save(save) for save in work.saves}
        awaited: list[jax.Array] = []
        for start in work.starts:
            began_ms = self._clock()
            self._start(start, written)
            raised_ms += self._clock() - began_ms if start.image_cells else 0.0
        first = None
        if work.prefill is not None:
            hidden = self._prefill(work.prefill, written)
            awaited.append(hidden)
            if work.prefill.last:
                first = (work.prefill.sequence_id, self._first_token(work.prefill, hidden))
            self._written = hidden
        tokens = self._decode(work.decode) if work.decode else None
        if tokens is not None:
            self._written = tokens
        if beside:
            raised_ms += self._move_pages(work, before)
        return Handle(
            number=work.number,
            first=first,
            decoded=work.decode,
            tokens=tokens,
            captured=tuple(written),
            prefill_rows=0 if work.prefill is None else len(work.prefill.tokens),
            awaited=(*awaited, *written.values()),
            lowers=bool(work.lowers),
            raised_ms=raised_ms,
        )

    def fetch(self, handle: object) -> RoundResult:
        """Waits for a round."""
        assert isinstance(handle, Handle)
        jax.block_until_ready(handle.awaited)
        if handle.lowers and self.cells is not None:
            self.cells.settle()
        tokens: dict[int, int] = {}
        if handle.first is not None:
            tokens[handle.first[0]] = int(handle.first[1])
        if handle.tokens is not None:
            row = np.array(handle.tokens)
            for step in handle.decoded:
                tokens[step.sequence_id] = int(row[step.lane])
        return RoundResult(
            handle.number, tokens, handle.captured, handle.prefill_rows, handle.raised_ms
        )

    def _save(self, save: LaneSave) -> jax.Array:
        image = self._programs.save_lane(self._device.bank, np.int32(save.lane))
        return self.images.write(save.slot, image)

    def _moves_beside(self, work: Round) -> bool:
        """Whether the round's pages may be copied while its decode step runs.

        That step writes a page of each lane and reads the others. Where it leaves alone what moves,
        it need not wait for the copies, nor these for it: only for what was computed before.
        """
        if self.cells is None or not self.cells.pages.beside or self._written is None:
            return False
        if work.prefill is not None or not work.decode:
            return False
        written = {step.table[step.position // PAGE_TOKENS] for step in work.decode if step.table}
        raised = {page for up in work.raises for page in up.pages}
        return all(written.isdisjoint(lower.pages) for lower in work.lowers) and all(
            raised.isdisjoint(step.table) for step in work.decode
        )

    def _move_pages(self, work: Round, since: jax.Array | None = None) -> float:
        """Copy pages down, then up, once `since` or all is computed; the ms that up takes."""
        if self.cells is None:
            assert not work.lowers, f"state {work.lowers[0].stored_id} has no arena to go to"
            assert not work.raises, f"state {work.raises[0].stored_id} rises from no arena"
            return 0.0
        for lower in work.lowers:
            self.cells.pages.lower(lower.pages, lower.cells, since)
        began_ms = self._clock()
        for up in work.raises:
            self.cells.pages.lift(up.cells, up.pages, since)
        return self._clock() - began_ms

    def _lower_images(self, lowers: tuple[Lower, ...]) -> None:
        """Copy down images that later parts of the round may overwrite."""
        for lower in lowers:
            if self.cells is None:
                continue
            if lower.lane is not None:
                image = self._programs.save_lane(self._device.bank, np.int32(lower.lane))
                self.cells.put_image(image, lower.image_cells)
            elif lower.slot is not None:
                self.cells.put_image(self.images.read(lower.slot), lower.image_cells)

    def _start(self, start: LaneStart, written: dict[int, jax.Array]) -> None:
        device = self._device
        lane = np.int32(start.lane)
        if start.image_cells:
            assert self.cells is not None, f"lane {start.lane} starts from no arena"
            image = self.cells.image(start.image_cells)
            if start.keep_slot is not None:
                written[start.keep_slot] = self.images.write(start.keep_slot, image)
            device.bank = self._programs.claim(device.bank, lane, image)
        elif start.slot is None:
            assert start.position == 0, f"a cleared lane starts at {start.position}"
            device.bank = self._programs.clear(device.bank, lane)
        else:
            image = self.images.read(start.slot)
            device.bank = self._programs.claim(device.bank, lane, image)
        row = self._sampling_row(start)
        device.sampler = self._programs.set_sampling(device.sampler, lane, row)

    def _sampling_row(self, start: LaneStart) -> SamplerBank:
        sampling = start.sampling
        seen, generated, last_token = self._seen_nothing, self._generated_nothing, np.int32(0)
        if sampling.repetition_penalty != 1.0:
            marks = np.zeros(seen.shape, np.uint8)
            marks[start.prompt] = 1
            seen = jnp.array(marks)
        if start.answer is not None:
            counts = np.bincount(start.answer, minlength=generated.shape[0])
            generated, last_token = jnp.array(counts, jnp.int32), start.answer[-1]
        return SamplerBank(
            temperature=np.float32(sampling.temperature),
            top_k=np.int32(min(sampling.top_k, np.iinfo(np.int32).max)),
            top_p=np.float32(sampling.top_p),
            min_p=np.float32(sampling.min_p),
            presence=np.float32(sampling.presence_penalty),
            frequency=np.float32(sampling.frequency_penalty),
            repetition=np.float32(sampling.repetition_penalty),
            seed=np.uint32(sampling.seed),
            generated=generated,
            seen=seen,
            last_token=np.int32(last_token),
        )

    def _table(self, pages: tuple[int, ...]) -> IntArray:
        table = np.zeros(self._shape.table_pages, np.int32)
        table[: len(pages)] = pages
        return table

    def _prefill(self, work: PrefillWork, written: dict[int, jax.Array]) -> jax.Array:
        device = self._device
        width = self._shape.width_for(len(work.tokens))
        tokens = np.zeros(width, np.int32)
        tokens[: len(work.tokens)] = work.tokens
        scrap = self._shape.num_images
        keep = np.full(width // PAGE_TOKENS, scrap, np.int32)
        for row, capture in enumerate(work.captures):
            keep[(capture.position - work.start) // PAGE_TOKENS - 1] = row
        chunk = Chunk(
            tokens=tokens,
            num_tokens=np.int32(len(work.tokens)),
            lane=np.int32(work.lane),
            table=self._table(work.table),
            keep=keep,
        )
        device.pool, device.bank, device.images, hidden = self._programs.prefill[width](
            self._params, device.pool, device.bank, device.images, chunk
        )
        for row, capture in enumerate(work.captures):
            image = self._programs.take_image(device.images, np.int32(row))
            written[capture.slot] = self.images.write(capture.slot, image)
        row_of_last: jax.Array = hidden
        return row_of_last

    def _first_token(self, work: PrefillWork, hidden: jax.Array) -> jax.Array:
        position = np.int32(work.start + len(work.tokens))
        self._device.sampler, token, scores = self._programs.first_token(
            self._params, self._device.sampler, np.int32(work.lane), hidden, position
        )
        if self._keep_logits:
            self.logits[work.sequence_id] = [scores]
        sampled: jax.Array = token
        return sampled

    def _decode(self, steps: tuple[DecodeLane, ...]) -> jax.Array:
        device = self._device
        tables = np.zeros((self._shape.num_lanes, self._shape.table_pages), np.int32)
        live = np.zeros(self._shape.num_lanes, np.bool_)
        for step in steps:
            tables[step.lane, : len(step.table)] = step.table
            live[step.lane] = True
        device.pool, device.bank, device.sampler, tokens, scores = self._programs.decode(
            self._params, device.pool, device.bank, device.sampler, tables, live
        )
        if self._keep_logits:
            for step in steps:
                self.logits.setdefault(step.sequence_id, []).append(scores[step.lane])
        sampled: jax.Array = tokens
        return sampled


def _cell_store(
    device: DeviceState, rows: npt.NDArray[np.uint8], programs: Programs, shape: Shape
) -> CellStore:
    """The arena's bytes; pages cross in windows where the programs were compiled for these."""
    if shape.window_pages:
        return CellStore(device, rows, StagedPages(device, rows, programs, shape.window_pages))
    return CellStore(device, rows, SharedPages(device, rows))
