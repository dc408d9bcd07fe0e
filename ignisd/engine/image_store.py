"""Where images lie: rows of the device's slot bank, then an array of its own for each host slot.

Host slots are numbered after the device slots. On an accelerator a host slot is page-locked
memory, and an image crosses to it and back; on the CPU backend it is an ordinary array.
"""

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from ignisd.engine.programs import DeviceState, Programs
from state.device import MutableState


class ImageStore:
    """Writes images into slots and reads them, leaving what is read as it is.

    Args:
        device: the state whose slot bank holds the device slots.
        programs: its copies to and from that bank.
        num_device, num_host: slots of each kind.
    """

    def __init__(
        self, device: DeviceState, programs: Programs, num_device: int, num_host: int
    ) -> None:
        self._device = device
        self._programs = programs
        self._num_device = num_device
        self._host: list[MutableState | None] = [None] * num_host
        self._down, self._up = _crossings()

    def host_images(self) -> list[MutableState]:
        """The images in host slots."""
        return [held for held in self._host if held is not None]

    def write(self, slot: int, image: MutableState) -> jax.Array:
        """Puts an image into a slot; returns an array that is ready once it lies there."""
        if slot < self._num_device:
            slots = self._device.slots
            self._device.slots, position = self._programs.capture(slots, np.int32(slot), image)
            written: jax.Array = position
            return written
        held = image if self._down is None else jax.device_put(image, self._down)
        self._host[slot - self._num_device] = held
        return held.position

    def read(self, slot: int) -> MutableState:
        """The image in a slot, on the device."""
        if slot < self._num_device:
            image: MutableState = self._programs.read_slot(self._device.slots, np.int32(slot))
            return image
        held = self._host[slot - self._num_device]
        assert held is not None, f"slot {slot} was never written"
        return held if self._up is None else jax.device_put(held, self._up)


def _crossings() -> tuple[SingleDeviceSharding | None, SingleDeviceSharding | None]:
    """Where images go down to and come up to; None where host and device share memory."""
    if jax.default_backend() == "cpu":
        return None, None
    device = jax.devices()[0]
    return (
        SingleDeviceSharding(device, memory_kind="pinned_host"),
        SingleDeviceSharding(device, memory_kind="device"),
    )
