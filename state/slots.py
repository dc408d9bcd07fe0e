"""Who owns each place for an image."""

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class SlotLedger:
    """Owner of every slot, as a value: slots on the device come first, then those in host memory.

    Args:
        num_device: slots 0 to num_device - 1 lie in device memory, all others in host memory.
        owners: one entry a slot, None where it is free.
    """

    num_device: int
    owners: tuple[int | None, ...]

    @staticmethod
    def empty(num_device: int, num_host: int) -> "SlotLedger":
        """All slots free."""
        assert num_device >= 0, f"{num_device} device slots"
        assert num_host >= 0, f"{num_host} host slots"
        return SlotLedger(num_device, (None,) * (num_device + num_host))

    @property
    def num_slots(self) -> int:
        """Slots in device and host memory together."""
        return len(self.owners)

    @property
    def num_free(self) -> int:
        """Slots that `take` could hand out."""
        return self.owners.count(None)

    @property
    def num_used(self) -> int:
        """Slots with an owner."""
        return self.num_slots - self.num_free

    def take(self, owner: int) -> "tuple[SlotLedger, int] | None":
        """Hand out the lowest free slot, one on the device while there is one; None when full."""
        if None not in self.owners:
            return None
        slot = self.owners.index(None)
        return self._with(slot, owner), slot

    def drop(self, slot: int) -> "SlotLedger":
        """The slot has no owner any more."""
        assert self.owner(slot) is not None, f"slot {slot} has no owner to drop"
        return self._with(slot, None)

    def assign(self, slot: int, owner: int) -> "SlotLedger":
        """The slot passes from its owner to another, as when a capture is published."""
        assert self.owner(slot) is not None, f"slot {slot} has no owner to pass it on"
        return self._with(slot, owner)

    def owner(self, slot: int) -> int | None:
        """Who owns the slot, None when it is free."""
        assert 0 <= slot < self.num_slots, f"slot {slot} of {self.num_slots}"
        return self.owners[slot]

    def is_host(self, slot: int) -> bool:
        """Whether the slot lies in host memory."""
        assert 0 <= slot < self.num_slots, f"slot {slot} of {self.num_slots}"
        return slot >= self.num_device

    def owned(self) -> Iterator[tuple[int, int]]:
        """Every slot that has an owner, with the owner, in order of the slots."""
        for slot, owner in enumerate(self.owners):
            if owner is not None:
                yield slot, owner

    def _with(self, slot: int, owner: int | None) -> "SlotLedger":
        return replace(self, owners=(*self.owners[:slot], owner, *self.owners[slot + 1 :]))
