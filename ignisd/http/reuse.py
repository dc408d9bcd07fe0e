"""What was reused for a request, as a header and as an object of the answer."""

from ignisd.engine.types import Reuse
from state.retention import Marks

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


def reuse_object(reuse: Reuse, marks: Marks) -> dict[str, object]:
    """The `ignis_reuse` object; what does not apply is null."""
    miss = reuse.miss
    diverged = None if miss is None else miss.diverged_at
    return {
        "tier": reuse.tier,
        "slot": reuse.place,
        "kind": reuse.kind,
        "cached_tokens": reuse.cached_tokens,
        "matched_tokens": reuse.matched_tokens,
        "miss_reason": None if miss is None else miss.reason,
        "diverged_at": None
        if diverged is None
        else {"token": diverged, "segment": segment_of(marks, diverged)},
        "restore_ms": reuse.restore_ms,
    }


def segment_of(marks: Marks, token: int) -> str:
    """The name of the part of a prompt that a token lies in: system, message k or prompt."""
    if marks.system_end is not None and token < marks.system_end:
        return "system"
    begun = sum(start <= token for start in marks.message_starts)
    if not begun:
        return "prompt"
    return f"message {begun - 1}"
