"""Tries settings on a trace, one after the other, and chooses the coarsest that is as good."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from ignisd.advise.replay import Seen, Setting, follow, rates_of, recorded, simulate
from ignisd.advise.trace import Session

TOLERANCE = 0.02
"""A setting that saves this much less than the best, and retains less, is recommended."""

_INTERVALS = (0, 256, 1024, 4096, 16_384)


@dataclass(frozen=True, slots=True)
class Row:
    """What one setting came to.

    Args:
        setting: what was tried.
        points, image_bytes, page_bytes: most that was retained on the device at a time, by group:
            images of linear attention, and pages of full attention.
        cached, matched, recomputed: prompt tokens saved, shared with something retained, and
            shared but read again.
        prompt_tokens: of all requests.
        evictions: retained states that gave way.
        lookup_us: mean time of a lookup, here.
        ttft_ms, ttft_p95_ms: estimated time to first token.
        saved_ms: prefill time that the cached tokens would have taken.
    """

    setting: Setting
    points: int
    image_bytes: int
    page_bytes: int
    cached: int
    matched: int
    recomputed: int
    prompt_tokens: int
    evictions: int
    lookup_us: float
    ttft_ms: float
    ttft_p95_ms: float
    saved_ms: float

    @property
    def retained_bytes(self) -> int:
        """Of both groups."""
        return self.image_bytes + self.page_bytes

    @property
    def saved_ms_per_mib(self) -> float:
        """Prefill saved for each MiB retained."""
        return self.saved_ms / max(self.retained_bytes / (1 << 20), 1e-9)

    def as_json(self) -> dict[str, object]:
        """Every number, with those that follow from others."""
        told = asdict(self)
        return {
            **told.pop("setting"),
            **told,
            "retained_bytes": self.retained_bytes,
            "saved_ms_per_mib": self.saved_ms_per_mib,
        }


def settings_to_try(
    session: Session, intervals: Sequence[int] | None, slots: Sequence[int] | None
) -> Iterator[Setting]:
    """The recorded setting first, then the others, each once.

    Args:
        intervals, slots: what to try; None is a choice that suits the trace.
    """
    base = recorded(session.head)
    longest = max(one.prompt_tokens for one in session.requests)
    chunk = int(session.head.limits["chunk_tokens"])
    if intervals is None:
        intervals = sorted({chunk, *(one for one in _INTERVALS if one < longest)})
    seen = set()
    for host_slots in slots or (base.host_slots,):
        for interval in intervals:
            setting = Setting(interval, host_slots, base.num_cells)
            if setting not in seen:
                seen.add(setting)
                yield setting
    if base not in seen:
        yield base


def row_of(session: Session, setting: Setting, seen: Seen) -> Row:
    """What a replay came to."""
    head, rates = session.head, rates_of(session)
    ends = list(seen.finishes.values())
    cached = sum(one.cached_tokens for one in ends)
    waits = sorted(one.timings.ttft_ms or 0.0 for one in ends)
    assert seen.world is not None
    counters = seen.world.counters
    return Row(
        setting=setting,
        points=seen.peak_points,
        image_bytes=seen.peak_points * head.image_bytes,
        page_bytes=seen.peak_pages * head.page_bytes,
        cached=cached,
        matched=sum(one.reuse.matched_tokens for one in ends),
        recomputed=sum(one.reuse.lost_tokens for one in ends),
        prompt_tokens=sum(one.prompt_tokens for one in ends),
        evictions=sum(counters.discarded.values()) + sum(counters.demoted.values()),
        lookup_us=1e6 * seen.looked_s / max(seen.lookups, 1),
        ttft_ms=sum(waits) / max(len(waits), 1),
        ttft_p95_ms=waits[(len(waits) - 1) * 95 // 100] if waits else 0.0,
        saved_ms=1000.0 * cached / rates["prefill_tokens_s"],
    )


def sweep(session: Session, settings: Sequence[Setting]) -> tuple[Row, ...]:
    """A row for each setting."""
    return tuple(row_of(session, one, simulate(session, one)) for one in settings)


def recommended(rows: Sequence[Row]) -> Row:
    """Of the settings that save nearly as much prefill as the best, the one that retains least.

    Among equals the one with the shorter wait for a first token, then the coarser.
    """
    best = max(row.saved_ms for row in rows)
    good = [row for row in rows if row.saved_ms >= (1 - TOLERANCE) * best]
    return min(
        good,
        key=lambda row: (
            row.retained_bytes,
            row.ttft_ms,
            -(row.setting.interval_tokens or 1 << 62),
        ),
    )


@dataclass(frozen=True, slots=True)
class Checked:
    """How a replay of the recorded turns compares with what was recorded.

    `differing` are requests that would have reused another number of tokens.
    """

    requests: int
    differing: tuple[int, ...]
    predicted: int
    live: int


def check(session: Session) -> Checked | None:
    """Follow the recorded turns; None where the file does not have all of them."""
    if not session.complete or not session.turns:
        return None
    finishes = follow(session).finishes
    predicted = {id: finish.cached_tokens for id, finish in finishes.items()}
    differing = tuple(one.id for one in session.requests if predicted.get(one.id) != one.cached)
    live = sum(one.cached for one in session.requests)
    return Checked(len(session.requests), differing, sum(predicted.values()), live)
