"""What was reused for a request, as a header and as an object of the answer."""

from ignisd.engine.types import Reuse

HEADER = "x-ignis-reuse"


def reuse_header(reuse: Reuse) -> str:
    """One line, such as `tier=device; slot=host; kind=checkpoint; cached=1024; matched=1090`."""
    facts = {
        "tier": reuse.tier,
        "slot": reuse.place,
        "kind": reuse.kind,
        "miss": None if reuse.miss is None else reuse.miss.reason,
        "cached": reuse.cached_tokens,
        "matched": reuse.matched_tokens,
    }
    return "; ".join(f"{name}={value}" for name, value in facts.items() if value is not None)


def reuse_object(reuse: Reuse) -> dict[str, object]:
    """The `ignis_reuse` object; what does not apply is null.

    `shortfall` is why a hit was not longer. `volatile_at` tells that the system block differs from
    those of the last requests of its kind, and from which token on.
    """
    parted = reuse.diverged_at
    return {
        "tier": reuse.tier,
        "slot": reuse.place,
        "kind": reuse.kind,
        "cached_tokens": reuse.cached_tokens,
        "matched_tokens": reuse.matched_tokens,
        "miss_reason": None if reuse.miss is None else reuse.miss.reason,
        "shortfall": reuse.shortfall,
        "diverged_at": None if parted is None else {"token": parted, "segment": reuse.segment},
        "volatile_at": reuse.volatile_at,
        "restore_ms": reuse.restore_ms,
    }
