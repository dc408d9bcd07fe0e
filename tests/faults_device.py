"""Faults of the runner: what the device is told of a chunk and of a lane."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

import jax
import numpy as np

from ignisd.engine import runner
from ignisd.engine.cells import CellStore
from ignisd.engine.image_store import ImageStore
from ignisd.engine.runner import DeviceRunner
from ignisd.engine.types import LaneStart, Round
from ignisd.model.forward import Chunk
from tests.planting import mutant

Plant = AbstractContextManager[Any]


def _chunk(**changes: Any) -> Plant:
    """Every chunk is told with some of its fields replaced by functions of them."""

    def chunk(**told: Any) -> Chunk:
        return Chunk(**{**told, **{name: change(told) for name, change in changes.items()}})

    return patch.object(runner, "Chunk", chunk)


@mutant
def padding_is_read() -> Plant:
    """The rows that fill a chunk up to its width go into the state as if they were tokens."""
    return _chunk(num_tokens=lambda told: np.int32(len(told["tokens"])))


@mutant
def image_of_the_page_before() -> Plant:
    """The image of a cut is taken one page too early."""

    def earlier(told: Any) -> Any:
        keep = told["keep"]
        return np.concatenate([keep[1:], keep[:1]])

    return _chunk(keep=earlier)


@mutant
def lane_not_cleared() -> Plant:
    """A cold request begins in the state that the lane's last one left."""
    real = DeviceRunner._start

    def start(self: DeviceRunner, work: LaneStart, written: dict[int, jax.Array]) -> None:
        bank = self.device.bank
        if work.slot is not None:
            real(self, work, written)
            return
        row = self._sampling_row(work)
        lane = np.int32(work.lane)
        self.device.sampler = self.programs.set_sampling(self.device.sampler, lane, row)
        assert self.device.bank is bank

    return patch.object(DeviceRunner, "_start", start)


@mutant
def replaced_images_stay() -> Plant:
    """An image that another one has replaced is still referred to."""
    real = ImageStore.write
    kept: list[Any] = []

    def write(self: ImageStore, slot: int, image: Any) -> jax.Array:
        kept.append(image)
        return real(self, slot, image)

    return patch.object(ImageStore, "write", write)


@mutant
def what_went_down_is_kept() -> Plant:
    """An image that comes up is referred to for ever."""
    real = CellStore.image
    kept: list[Any] = []

    def image(self: CellStore, cells: tuple[int, ...]) -> Any:
        kept.append(real(self, cells))
        return kept[-1]

    return patch.object(CellStore, "image", image)


@mutant
def moved_after_the_step_whatever_it_writes() -> Plant:
    """Pages are copied after the decode step of their round, those too that it writes."""
    real = DeviceRunner._move_pages

    def at_rest(self: DeviceRunner, work: Round, since: Any = None) -> float:
        return real(self, work)

    stack = ExitStack()
    stack.enter_context(patch.object(DeviceRunner, "_moves_beside", lambda self, work: True))
    stack.enter_context(patch.object(DeviceRunner, "_move_pages", at_rest))
    return stack
