"""Random conversation trees, and a server over the real programs to send them to.

The server is the scheduler, the runner and nothing else: driven turn by turn as the loop does, with
one round under way while the next is planned. Logits of every sampled token are kept.
"""

import hashlib
import random
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ignisd.engine import scheduler
from ignisd.engine.check import check_planned, check_world
from ignisd.engine.files import FileThreads
from ignisd.engine.programs import DeviceState, Programs, Shape, compile_programs, empty_device
from ignisd.engine.runner import DeviceRunner
from ignisd.engine.tiers import Tiers
from ignisd.engine.types import Event, Finish, Finished, Request, SamplingParams
from ignisd.engine.world import Limits, new_world
from ignisd.model.forward import ForwardSpec, Params
from ignisd.model.spec import read_spec
from ignisd.model.weights import load, random_params
from state.chain import chain_of
from state.retention import Marks, RetentionPolicy
from state.spec import Class, Fingerprint, KvFormat
from state.tiers.disk import Disk
from tests.model.make_random_checkpoint import SIZES

FINGERPRINT = Fingerprint.of(test="trees")
NUM_IMAGES = 2
NUM_LANES = 3
MAX_CONTEXT = 1024
NUM_PAGES = 40
NUM_SLOTS = 6
OPENER = 3
"""Tokens of an opener, as in the templates of the family."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model with its programs, compiled once for all tests."""

    spec: ForwardSpec
    params: Params
    shape: Shape
    programs: Programs


@cache
def model(name: str) -> Model:
    """The embedded model, or a random one with other head ratios (`tiny`)."""
    params: Params
    if name == "ember":
        folder = Path(str(files("ignisd.ember") / "weights"))
        model_spec = read_spec(folder)
        params = load(folder, model_spec)
    else:
        model_spec = SIZES[name]
        params = random_params(model_spec, 7, jnp.bfloat16)
    spec = ForwardSpec(model_spec, KvFormat.BF16)
    shape = Shape(
        num_pages=NUM_PAGES,
        num_lanes=NUM_LANES,
        num_images=NUM_IMAGES,
        num_device_slots=2,
        max_context=MAX_CONTEXT,
        chunk_tokens=256,
    )
    device = empty_device(spec, shape)
    return Model(spec, params, shape, compile_programs(spec, shape, params, device))


class Bits(bytes):
    """Bytes that show as a digest: a comparison that fails must not print, nor diff, megabytes."""

    def __repr__(self) -> str:
        return f"Bits({hashlib.blake2b(self, digest_size=6).hexdigest()})"


@dataclass
class Outcome:
    """What a request gave: its tokens' logits as bytes, and how it ended."""

    logits: list[Bits]
    finish: Finish


@dataclass
class Server:
    """A scheduler over the real device, with or without reuse."""

    model: Model
    reuse: bool = True
    tiers: Tiers | None = None
    disk: Disk | None = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        shape = self.model.shape
        device: DeviceState = empty_device(self.model.spec, shape)
        # What was never written must never be read.
        device.pool = jax.tree.map(_poisoned, device.pool)
        rows = self._rows()
        self.files = None if self.disk is None or rows is None else FileThreads(self.disk, rows)
        self.runner = DeviceRunner(
            self.model.params,
            shape,
            self.model.programs,
            device,
            NUM_SLOTS - shape.num_device_slots,
            rows=rows,
            keep_logits=True,
        )
        self.world = new_world(
            Limits(
                num_lanes=shape.num_lanes,
                max_context=shape.max_context,
                chunk_tokens=shape.chunk_tokens,
                max_captures_per_chunk=shape.num_images,
                single_flight_tokens=128,
                reuse=self.reuse,
            ),
            RetentionPolicy(0, min_interrupted_tokens=64),
            FINGERPRINT,
            num_pages=shape.num_pages,
            num_device_slots=shape.num_device_slots,
            num_host_slots=NUM_SLOTS - shape.num_device_slots,
            tiers=self.tiers,
        )
        self.now_ms = 0.0
        self._under_way: object | None = None
        self._next_id = 0

    def _rows(self) -> npt.NDArray[np.uint8] | None:
        """Cells full of what no page and no image holds."""
        if self.tiers is None:
            return None
        arena = self.tiers.arena
        return np.full((arena.num_cells, arena.cell_bytes), 0xFF, np.uint8)

    def submit(
        self,
        prompt: "Prompt",
        sampling: SamplingParams,
        max_tokens: int,
        cls: Class = Class.INTERACTIVE,
    ) -> int:
        """Queue a prompt."""
        self._next_id += 1
        tokens = np.array(prompt.tokens, np.int32)
        request = Request(
            id=self._next_id,
            name=f"r{self._next_id}",
            chain=chain_of(tokens),
            marks=prompt.marks,
            sampling=sampling,
            max_tokens=max_tokens,
            cls=cls,
            arrival_ms=self.now_ms,
        )
        self.world = scheduler.submit(self.world, request, self.now_ms)
        return request.id

    def cancel(self, request_id: int) -> None:
        """The client leaves."""
        self.world = scheduler.cancel(self.world, request_id, self.now_ms)

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.world.sequences or self.world.events) or self._under_way is not None

    def turn(self) -> None:
        """One turn of the loop."""
        self.now_ms += 1.0
        check_world(self.world)
        self.world, work = scheduler.plan(self.world, self.now_ms)
        check_planned(self.world, work, self.now_ms)
        self.world, events = scheduler.take_events(self.world)
        self._fold(events)
        self.world, orders = scheduler.take_orders(self.world)
        before, self._under_way = (
            self._under_way,
            None if work is None else self.runner.run(work),
        )
        if before is not None:
            self.world, events = scheduler.commit(
                self.world, self.runner.fetch(before), self.now_ms
            )
            self._fold(events)
        for order in orders:
            assert self.files is not None, "an order for files without a disk"
            self.world = self.files.execute(order)(self.world, self.now_ms)

    def drain(self) -> None:
        """Turn until nothing is left."""
        for _ in range(5000):
            if not self.busy:
                return
            self.turn()
        raise AssertionError(f"still busy: {list(self.world.sequences)}")

    def _fold(self, events: tuple[Event, ...]) -> None:
        for event in events:
            if isinstance(event, Finished):
                kept = self.runner.logits.pop(event.request_id, [])
                rows = [Bits(np.asarray(row).tobytes()) for row in kept]
                finish = event.finish
                self.outcomes[event.request_id] = Outcome(rows[: finish.generated_tokens], finish)
                self.cached_tokens += finish.cached_tokens


def _poisoned(pages: jax.Array) -> jax.Array:
    """Pages full of NaN (bf16 bits 0x7fc0 in storage)."""
    return jnp.full_like(pages, 0x7FC0)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation."""

    tokens: tuple[int, ...]
    marks: Marks


class Conversation:
    """A tree node: a history that can be asked, answered and forked."""

    def __init__(self, rng: random.Random, vocab: int, system: tuple[int, ...]) -> None:
        self._rng = rng
        self._vocab = vocab
        self.tokens = list(system)
        self.starts = [0]
        self.system_end = len(system)

    def fork(self) -> "Conversation":
        """Another future of the same history."""
        other = Conversation(self._rng, self._vocab, ())
        other.tokens = list(self.tokens)
        other.starts = list(self.starts)
        other.system_end = self.system_end
        return other

    def ask(self, num_tokens: int) -> Prompt:
        """A user turn and an opener."""
        self.starts.append(len(self.tokens))
        self._add(num_tokens)
        self.starts.append(len(self.tokens))
        opener = len(self.tokens) + OPENER
        tokens = (*self.tokens, *range(1, 1 + OPENER), 5, 6)
        return Prompt(
            tokens,
            Marks(
                system_end=self.system_end,
                turn_open=opener,
                opener=opener,
                message_starts=tuple(self.starts),
            ),
        )

    def answer(self, num_tokens: int) -> None:
        """The assistant's turn, rendered otherwise than it was generated."""
        self.tokens += range(1, 1 + OPENER)
        self._add(num_tokens)

    def _add(self, num_tokens: int) -> None:
        self.tokens += [self._rng.randrange(8, self._vocab) for _ in range(num_tokens)]


def sampling_for(rng: random.Random) -> SamplingParams:
    """Greedy, or a draw with everything on."""
    if rng.random() < 0.6:
        return SamplingParams(temperature=0.0)
    return SamplingParams(
        temperature=0.8,
        top_k=rng.choice((0, 20)),
        top_p=rng.choice((1.0, 0.9)),
        min_p=rng.choice((0.0, 0.02)),
        presence_penalty=rng.choice((0.0, 0.5)),
        repetition_penalty=rng.choice((1.0, 1.2)),
        seed=rng.randrange(2**32),
    )
