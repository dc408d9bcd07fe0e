"""How prefill and decoding share the device (`--model-decode-share`).

After a prefill chunk that took t, the next one waits until decoding has had t s / (1 - s), with s
the share. Rounds overlap the host's work, so a plan cannot know how long the rounds before it will
take; it counts those under way at what their kind took last.
"""

from dataclasses import replace

from ignisd.engine.world import InFlight, Limits, Pace, World


def owed_ms(limits: Limits, chunk_ms: float) -> float:
    """What decoding is due for a prefill chunk."""
    return chunk_ms * limits.decode_share / (100 - limits.decode_share)


def may_prefill(world: World) -> bool:
    """Whether decoding will have had its due when the next round begins."""
    pace = world.pace
    debt_ms = pace.debt_ms
    for under_way in world.in_flight:
        if under_way.prefill:
            debt_ms += owed_ms(world.limits, pace.chunk_ms)
        if under_way.num_decode:
            debt_ms -= pace.decode_ms
    return debt_ms <= 0.0


def paced(pace: Pace, limits: Limits, done: InFlight, now_ms: float) -> Pace:
    """The pace after a round that is committed now.

    Rounds run one after another, so this one began when it was planned or when the one before it
    ended, whichever was later. In a round with both, the decode step is taken to have lasted as
    long as the last one on its own. Chunks that nobody waited for leave no debt but the last one's.
    """
    took_ms = max(now_ms - max(done.planned_ms, pace.committed_ms), 0.0)
    pace = replace(pace, committed_ms=now_ms)
    decode_ms = min(pace.decode_ms, took_ms) if done.num_decode else 0.0
    if done.prefill:
        chunk_ms = took_ms - decode_ms
        before_ms = pace.debt_ms if done.num_decode else 0.0
        debt_ms = before_ms + owed_ms(limits, chunk_ms) - decode_ms
        return replace(pace, debt_ms=max(debt_ms, 0.0), chunk_ms=chunk_ms)
    if not done.num_decode:
        return pace
    return replace(pace, debt_ms=max(pace.debt_ms - took_ms, 0.0), decode_ms=took_ms)
