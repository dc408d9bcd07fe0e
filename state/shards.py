"""A map that is a value: a change copies one shard of it and shares the rest."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")

NUM_SHARDS = 128
"""With 10,000 entries a change copies about 80 of them and 128 references."""


@dataclass(frozen=True, slots=True)
class ShardMap(Generic[Value]):
    """From whole numbers to anything.

    Args:
        shards: `NUM_SHARDS` plain maps, never changed once they are here. A number lies in the
            one that its remainder names.
    """

    shards: tuple[dict[int, Value], ...] = ({},) * NUM_SHARDS

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def __contains__(self, key: int) -> bool:
        return key in self.shards[key % NUM_SHARDS]

    def __getitem__(self, key: int) -> Value:
        return self.shards[key % NUM_SHARDS][key]

    def get(self, key: int) -> Value | None:
        """What the key maps to, None when it is not mapped."""
        return self.shards[key % NUM_SHARDS].get(key)

    def items(self) -> Iterator[tuple[int, Value]]:
        """Every key with what it maps to."""
        for shard in self.shards:
            yield from shard.items()

    def values(self) -> Iterator[Value]:
        """What the keys map to."""
        for shard in self.shards:
            yield from shard.values()

    def put(self, key: int, value: Value) -> "ShardMap[Value]":
        """The map with the key mapped to a value, in place of an earlier one."""
        at = key % NUM_SHARDS
        return self._with(at, self.shards[at] | {key: value})

    def drop(self, key: int) -> "ShardMap[Value]":
        """The map without the key, which is in it."""
        at = key % NUM_SHARDS
        shard = self.shards[at].copy()
        del shard[key]
        return self._with(at, shard)

    def _with(self, at: int, shard: dict[int, Value]) -> "ShardMap[Value]":
        shards = list(self.shards)
        shards[at] = shard
        return ShardMap(tuple(shards))
