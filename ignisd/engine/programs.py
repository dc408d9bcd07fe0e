"""The device programs of a process, compiled before the first request and never after.

Every program takes the state that it changes as donated arguments and gives it back.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from ignisd.model import forward, sampler
from ignisd.model.forward import LEAST_ROWS, Chunk, ForwardSpec, Params
from ignisd.model.sampler import SamplerBank
from state.device import (
    KvPool,
    LaneBank,
    MutableState,
    SlotBank,
    empty_pool,
    empty_state,
)
from state.images import capture, claim, clear, read_slot, save_lane, take_row
from state.spec import PAGE_TOKENS
from state.windows import gather_pages, put_pages


class Compiled(Protocol):
    """A compiled program."""

    def __call__(self, *arguments: Any) -> Any:
        """Runs it."""
        ...

    def as_text(self) -> str:
        """What the compiler made of it."""
        ...


_COMPILE_THREADS = 2
_TABLE_STEP = 4
"""Page tables are a multiple of the attention's key tile."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the programs are sized for.

    Args:
        num_pages: pages of the pool, the null page included.
        num_lanes: rows of the decode batch.
        num_images: most images that one prefill pass yields.
        num_device_slots: rows of the slot bank.
        max_context: longest sequence in tokens.
        chunk_tokens: longest prefill chunk, a multiple of 64.
        window_pages: most pages that cross to the host or back at a time; 0 where the device's
            memory is the host's, or nothing crosses.
    """

    num_pages: int
    num_lanes: int
    num_images: int
    num_device_slots: int
    max_context: int
    chunk_tokens: int
    window_pages: int = 0

    @property
    def table_pages(self) -> int:
        """Entries of a page table."""
        pages = -(-self.max_context // PAGE_TOKENS)
        return -(-pages // _TABLE_STEP) * _TABLE_STEP

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the prefill programs, ascending: powers of two, then the whole chunk."""
        found = []
        width = LEAST_ROWS
        while width < self.chunk_tokens:
            found.append(width)
            width *= 2
        return (*found, max(self.chunk_tokens, LEAST_ROWS))

    def width_for(self, num_tokens: int) -> int:
        """The narrowest program that holds so many tokens."""
        return next(width for width in self.widths if width >= num_tokens)


@dataclass(slots=True)
class DeviceState:
    """All that the programs change; each call replaces what it donates."""

    pool: KvPool
    bank: LaneBank
    images: MutableState
    slots: SlotBank
    sampler: SamplerBank


def empty_device(spec: ForwardSpec, shape: Shape) -> DeviceState:
    """Zeroed pages, lanes that have read nothing, empty slots."""
    state_spec = spec.model.state_spec(spec.kv_format)
    return DeviceState(
        pool=empty_pool(state_spec, shape.num_pages),
        bank=LaneBank(empty_state(state_spec, shape.num_lanes)),
        images=empty_state(state_spec, shape.num_images + 1),
        slots=SlotBank(empty_state(state_spec, max(shape.num_device_slots, 1))),
        sampler=sampler.empty_bank(shape.num_lanes, spec.model.vocab_size),
    )


def _decode(
    spec: ForwardSpec,
    params: Params,
    pool: KvPool,
    bank: LaneBank,
    sampling: SamplerBank,
    tables: jax.Array,
    live: jax.Array,
) -> tuple[KvPool, LaneBank, SamplerBank, jax.Array, jax.Array]:
    """One step: each live lane is fed its last token; returns state, tokens and logits."""
    pool, bank, hidden = forward.decode(spec, params, pool, bank, sampling.last_token, tables, live)
    scores = forward.logits(spec, params, hidden, live)
    sampling, tokens = sampler.sample_lanes(sampling, scores, bank.lanes.position, live)
    return pool, bank, sampling, tokens, scores


def _first_token(
    spec: ForwardSpec,
    params: Params,
    sampling: SamplerBank,
    lane: jax.Array,
    hidden: jax.Array,
    position: jax.Array,
) -> tuple[SamplerBank, jax.Array, jax.Array]:
    """Samples from the last row of a prompt. The product has the decode step's rows."""
    num_lanes = sampling.last_token.shape[0]
    live = jnp.arange(num_lanes) == lane
    rows = jnp.broadcast_to(hidden, (num_lanes, *hidden.shape))
    scores = forward.logits(spec, params, rows, live)[lane]
    sampling, token = sampler.sample_lane(sampling, lane, scores, position)
    return sampling, token, scores


@dataclass(frozen=True, slots=True)
class Programs:
    """Compiled programs; `prefill` by width. See `compile_programs` for their arguments.

    Those that move windows of pages take none where the shape has no window.
    """

    prefill: dict[int, Compiled]
    decode: Compiled
    first_token: Compiled
    set_sampling: Compiled
    claim: Compiled
    clear: Compiled
    save_lane: Compiled
    take_image: Compiled
    capture: Compiled
    read_slot: Compiled
    gather_pages: Compiled
    put_pages: Compiled


def _abstract(tree: Any, skip: int = 0) -> Any:
    """The tree's shapes, without the `skip` leading axes."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[skip:], leaf.dtype), tree)


def _abstract_chunk(shape: Shape, width: int) -> Chunk:
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    return Chunk(
        tokens=jax.ShapeDtypeStruct((width,), jnp.int32),
        num_tokens=scalar,
        lane=scalar,
        table=jax.ShapeDtypeStruct((shape.table_pages,), jnp.int32),
        keep=jax.ShapeDtypeStruct((width // PAGE_TOKENS,), jnp.int32),
    )


Job = tuple[Any, tuple[Any, ...]]
"""A jitted function and the shapes of its arguments."""


def _model_jobs(spec: ForwardSpec, shape: Shape, params: Params, device: DeviceState) -> list[Job]:
    """The programs that run the model: prefill from the widest on, decode, first token."""
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    given, pool, bank = _abstract(params), _abstract(device.pool), _abstract(device.bank)
    stack, sampling = _abstract(device.images), _abstract(device.sampler)
    tables = jax.ShapeDtypeStruct((shape.num_lanes, shape.table_pages), jnp.int32)
    live = jax.ShapeDtypeStruct((shape.num_lanes,), jnp.bool_)
    hidden = jax.ShapeDtypeStruct((spec.model.hidden_size,), jnp.float32)
    prefill = jax.jit(partial(forward.prefill, spec), donate_argnums=(1, 2, 3))
    decode = jax.jit(partial(_decode, spec), donate_argnums=(1, 2, 3))
    first = jax.jit(partial(_first_token, spec), donate_argnums=1)
    chunks = [_abstract_chunk(shape, width) for width in shape.widths[::-1]]
    return [
        *((prefill, (given, pool, bank, stack, chunk)) for chunk in chunks),
        (decode, (given, pool, bank, sampling, tables, live)),
        (first, (given, sampling, scalar, hidden, scalar)),
    ]


def _copy_jobs(device: DeviceState, window_pages: int) -> list[Job]:
    """The programs that set lanes up and move images, in the order of `Programs`."""
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    bank, slots = _abstract(device.bank), _abstract(device.slots)
    stack, image = _abstract(device.images), _abstract(device.images, skip=1)
    sampling, row = _abstract(device.sampler), _abstract(device.sampler, skip=1)
    pool, pages = _abstract(device.pool), jax.ShapeDtypeStruct((window_pages,), jnp.int32)
    window = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((window_pages, *leaf.shape[1:]), leaf.dtype), device.pool
    )
    return [
        (jax.jit(sampler.set_lane, donate_argnums=0), (sampling, scalar, row)),
        (claim, (bank, scalar, image)),
        (clear, (bank, scalar)),
        (save_lane, (bank, scalar)),
        (take_row, (stack, scalar)),
        (capture, (slots, scalar, image)),
        (read_slot, (slots, scalar)),
        (gather_pages, (pool, pages)),
        (put_pages, (pool, pages, window)),
    ]


def compile_programs(
    spec: ForwardSpec,
    shape: Shape,
    params: Params,
    device: DeviceState,
    progress: Callable[[int, int], None] | None = None,
) -> Programs:
    """Compiles everything that a process runs.

    Args:
        progress: called after each program with how many are done, and of how many.

    Returns:
        programs with these arguments, those marked * donated:
        prefill(params, *pool, *bank, *images, chunk), decode(params, *pool, *bank, *sampling,
        tables, live), first_token(params, *sampling, lane, hidden, position), set_sampling(*bank,
        lane, row), claim(*bank, lane, image), clear(*bank, lane), save_lane(bank, lane),
        take_image(images, row), capture(*slots, slot, image), read_slot(slots, slot),
        gather_pages(pool, pages), put_pages(*pool, pages, window).
    """
    # The longest compilations first, so that the threads end together.
    jobs = [*_model_jobs(spec, shape, params, device), *_copy_jobs(device, shape.window_pages)]
    done = 0

    def build(job: Job) -> Compiled:
        nonlocal done
        function, arguments = job
        compiled: Compiled = function.lower(*arguments).compile()
        done += 1
        if progress is not None:
            progress(done, len(jobs))
        return compiled

    with ThreadPoolExecutor(_COMPILE_THREADS) as threads:
        built = list(threads.map(build, jobs))
    widths = len(shape.widths)
    return Programs(dict(zip(shape.widths[::-1], built[:widths], strict=True)), *built[widths:])
