"""From a digest to the states that end there, as a value."""

from dataclasses import dataclass

NUM_SHARDS = 256


@dataclass(frozen=True, slots=True)
class DigestMap:
    """Ids by digest. A change copies one shard and shares the rest.

    Args:
        shards: plain maps, never changed once they are here. A digest lies in the one that its
            first byte names; no digest maps to no ids.
    """

    shards: tuple[dict[bytes, tuple[int, ...]], ...] = ({},) * NUM_SHARDS

    def get(self, digest: bytes) -> tuple[int, ...]:
        """The ids under a digest, from the one added first to the last."""
        return self.shards[digest[0]].get(digest, ())

    def add(self, digest: bytes, id: int) -> "DigestMap":
        """The id is found under the digest."""
        return self._with(digest, (*self.get(digest), id))

    def remove(self, digest: bytes, id: int) -> "DigestMap":
        """The id, which was found under the digest, is not any more."""
        left = list(self.get(digest))
        left.remove(id)
        return self._with(digest, tuple(left))

    def _with(self, digest: bytes, ids: tuple[int, ...]) -> "DigestMap":
        at = digest[0]
        shard = self.shards[at] | {digest: ids}
        if not ids:
            del shard[digest]
        return DigestMap((*self.shards[:at], shard, *self.shards[at + 1 :]))
