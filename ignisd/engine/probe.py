"""Whether this backend keeps the promise of exact reuse, tried on the programs that will serve.

The same prompt is read through chunks of different widths and in different lanes; images, pages
and logits must agree bit by bit. Then one lane decodes alone and another in company.
"""

from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from ignisd.engine.programs import DeviceState, Programs, Shape
from ignisd.engine.rates import Stopwatch, Timed
from ignisd.engine.runner import DeviceRunner
from ignisd.engine.types import Capture, DecodeLane, LaneStart, PrefillWork, Round, SamplingParams
from ignisd.model.forward import Params
from state.spec import PAGE_TOKENS

_SEED = 20_240_607
_TAIL_TOKENS = 10
"""The probe's prompt ends short of a page, as most prompts do."""
_DECODE_STEPS = 2

Bits = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one way of reading the prompt left behind, as bytes.

    images: by position; pages: keys and values of the full pages; logits: of the next token.
    """

    images: dict[int, Bits]
    pages: Bits
    logits: bytes


def _bits(tree: object) -> Bits:
    return tuple(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))


def probe(
    params: Params,
    shape: Shape,
    programs: Programs,
    device: DeviceState,
    watch: Stopwatch | None = None,
) -> list[str]:
    """What differs, as sentences; empty where the backend is exact.

    Overwrites lanes and the first pages of `device`, which must hold nothing yet.

    Args:
        watch: times the widest chunks, by tokens, and decode steps, by lanes.
    """
    num_tokens = max(shape.widths) - _TAIL_TOKENS
    vocab_size = device.sampler.seen.shape[1]
    tokens = np.random.default_rng(_SEED).integers(0, vocab_size, num_tokens).astype(np.int32)
    trial = _Trial(params, shape, programs, device, tokens, watch or Stopwatch())
    last_lane = shape.num_lanes - 1
    found: list[str] = []
    whole = trial.read((max(shape.widths),), 0, 0)
    for widths in _splits(shape):
        other = trial.read(widths, last_lane, 1)
        way = f"{widths} against {max(shape.widths)}"
        if other.logits != whole.logits:
            found.append(f"logits of a prompt differ, chunks {way}")
        if other.pages != whole.pages:
            found.append(f"pages of a prompt differ, chunks {way}")
        found += [
            f"images at {position} tokens differ, chunks {way}"
            for position, image in other.images.items()
            if position in whole.images and image != whole.images[position]
        ]
    alone = trial.decode([0])
    in_company = trial.decode(list(range(shape.num_lanes)))
    if alone != in_company:
        found.append(f"decoding differs between 1 and {shape.num_lanes} live lanes")
    return found


def _splits(shape: Shape) -> list[tuple[int, ...]]:
    """Other ways to read as many tokens as the widest chunk."""
    widest = max(shape.widths)
    ways = [(width,) * -(-widest // width) for width in shape.widths if width < widest]
    return [*ways, (PAGE_TOKENS, widest - PAGE_TOKENS)] if widest > PAGE_TOKENS else ways


class _Trial:
    """Reads one prompt in many ways, through rounds as the scheduler makes them."""

    def __init__(
        self,
        params: Params,
        shape: Shape,
        programs: Programs,
        device: DeviceState,
        tokens: np.ndarray,
        watch: Stopwatch,
    ) -> None:
        self._watch = watch
        self._shape = shape
        self._tokens = tokens
        self._device = device
        self._num_pages = -(-(len(tokens) + _DECODE_STEPS) // PAGE_TOKENS)
        num_host_slots = self._num_pages
        self._runner = DeviceRunner(
            params, shape, programs, device, num_host_slots, keep_logits=True
        )
        self._number = 0

    def _run(self, work: Round) -> None:
        self._runner.fetch(self._runner.run(work))
        self._number += 1

    def read(self, widths: tuple[int, ...], lane: int, copy: int) -> Reading:
        """The prompt through chunks of these widths, in pages of its own copy."""
        first = 1 + copy * self._num_pages
        table = tuple(range(first, first + self._num_pages))
        assert table[-1] < self._shape.num_pages, "the pool is too small for the probe"
        sampling = SamplingParams(temperature=0.0)
        self._run(Round(self._number, starts=(LaneStart(lane, None, 0, sampling, self._tokens),)))
        images: dict[int, Bits] = {}
        start = 0
        for width in widths:
            part = self._tokens[start : start + width]
            captures = self._captures(start, len(part))
            last = start + len(part) == len(self._tokens)
            work = PrefillWork(copy, lane, part, start, table, captures, last)
            reading = Round(self._number, prefill=work)
            self._watch.time(Timed.PREFILL, len(part), partial(self._run, reading))
            for capture in captures:
                images[capture.position] = _bits(self._runner.images.read(capture.slot))
            start += len(part)
        full = np.array(table[: len(self._tokens) // PAGE_TOKENS])
        pages = _bits([pages[full] for pages in (*self._device.pool.k, *self._device.pool.v)])
        return Reading(images, pages, np.asarray(self._runner.logits.pop(copy)[0]).tobytes())

    def _captures(self, start: int, num_tokens: int) -> tuple[Capture, ...]:
        """As many of a chunk's page boundaries as one pass yields, the last ones."""
        ends = [start + PAGE_TOKENS * (i + 1) for i in range(num_tokens // PAGE_TOKENS)][
            -self._shape.num_images :
        ]
        offset = self._shape.num_device_slots
        return tuple(Capture(end, offset + end // PAGE_TOKENS - 1) for end in ends)

    def decode(self, lanes: list[int]) -> list[bytes]:
        """Logits of lane 0 over a few steps, with the other lanes at the same prompt's start."""
        widest = max(self._shape.widths)
        self.read((widest,), 0, 0)
        for lane in lanes[1:]:
            sampling = SamplingParams(temperature=0.0)
            self._run(
                Round(self._number, starts=(LaneStart(lane, None, 0, sampling, self._tokens),))
            )
        own = tuple(range(1, 1 + self._num_pages))
        found = []
        for step in range(_DECODE_STEPS):
            # The others write to a page that nobody reads.
            spare = (1 + self._num_pages,)
            steps = [DecodeLane(0, 0, len(self._tokens) + step, own)]
            steps += [DecodeLane(lane, lane, step, spare) for lane in lanes[1:]]
            stepping = Round(self._number, decode=tuple(steps))
            self._watch.time(Timed.DECODE, len(steps), partial(self._run, stepping))
            found.append(np.asarray(self._runner.logits.pop(0)[0]).tobytes())
        self._runner.logits.clear()
        return found
