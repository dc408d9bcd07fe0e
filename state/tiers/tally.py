"""What the states of a tier add up to, kept as they come and go rather than counted when asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from state.retained import Kind
from state.tiers.stored import Stored


def _none() -> Mapping[Kind, int]:
    return dict.fromkeys(Kind, 0)


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of states, tokens and pages; common pages count as often as they are shared.

    Args:
        kinds: retained states by kind, complete.
        tokens: the sum of their lengths.
        pages: the sum of their pages.
        num_live: live sequences.
        live_pages: the sum of their pages.
        key_bytes: host memory that holds the tokens and digests of all of them.
    """

    kinds: Mapping[Kind, int] = field(default_factory=_none)
    tokens: int = 0
    pages: int = 0
    num_live: int = 0
    live_pages: int = 0
    key_bytes: int = 0

    @property
    def num_retained(self) -> int:
        """Retained states of all kinds."""
        return sum(self.kinds.values())

    def with_one(self, stored: Stored, by: int = 1) -> "Tally":
        """With one state more, or with `by` -1 one less."""
        kind, key_bytes = stored.kind, self.key_bytes + by * stored.chain.num_bytes
        if kind is None:
            return Tally(
                self.kinds,
                self.tokens,
                self.pages,
                self.num_live + by,
                self.live_pages + by * stored.num_pages,
                key_bytes,
            )
        return Tally(
            {**self.kinds, kind: self.kinds[kind] + by},
            self.tokens + by * stored.length,
            self.pages + by * stored.num_pages,
            self.num_live,
            self.live_pages,
            key_bytes,
        )
