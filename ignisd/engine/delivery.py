"""Sampled tokens: delivered to their readers, and the answers that they end ended."""

from collections.abc import Mapping
from dataclasses import replace

from ignisd.engine.types import Event, FinishReason, Timings, Token
from ignisd.engine.world import Sequence, World, count, finish, notice, with_sequences


def fold_tokens(world: World, tokens: Mapping[int, int], now_ms: float) -> World:
    """Deliver the tokens of a round, and end the answers that they end.

    Args:
        tokens: by request. One for a request that has ended already is dropped.
    """
    fed: list[Sequence] = []
    events: list[Event] = []
    ends: list[tuple[Sequence, FinishReason, str | None]] = []
    for request_id, token in tokens.items():
        seq = world.sequences.get(request_id)
        if seq is None:
            continue
        if seq.replaying:
            differs = _difference(seq, token)
            if differs is None:
                fed.append(replace(seq, replaying=seq.replaying - 1))
            else:
                ends.append((seq, FinishReason.ERROR, differs))
            world = count(world, replayed_tokens=1)
            continue
        reason = _end(seq, token)
        if seq.limit_tokens > 0:
            seq = replace(
                seq,
                answer=seq.answer.add(token),
                generated=seq.generated + 1,
                timings=_later(seq.timings, now_ms),
            )
            if reason is not FinishReason.STOP:
                events.append(Token(request_id, token))
        if reason is None:
            fed.append(seq)
        else:
            ends.append((seq, reason, None))
    world = with_sequences(world, fed)
    world = replace(world, events=(*world.events, *events))
    for seq, reason, message in ends:
        if message is not None:
            world = notice(world, "not computed anew", id=seq.request.name)
        world = finish(world, seq, reason, now_ms, message)
    return world


def _difference(seq: Sequence, token: int) -> str | None:
    """What is wrong with a token that was delivered before its sequence had to begin anew, and has
    been sampled again; None where it is the same, as it is wherever the backend is exact.
    """
    place = len(seq.answer) - seq.replaying
    if token == seq.answer[place]:
        return None
    return (
        "the request had to give way, was computed anew, and came to another answer after "
        f"{place} tokens; give it room to wait with --reuse-kv-host-pool-bytes"
    )


def _end(seq: Sequence, token: int) -> FinishReason | None:
    """Why a sequence ends with its next token, None when it goes on."""
    if seq.limit_tokens == 0:
        return FinishReason.LENGTH
    if token in seq.request.stop_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if seq.generated + 1 == seq.limit_tokens else None


def _later(timings: Timings, now_ms: float) -> Timings:
    """The timings after one token more."""
    if timings.first_token_ms is None or timings.last_token_ms is None:
        return replace(timings, first_token_ms=now_ms, last_token_ms=now_ms)
    gap_ms = max(timings.longest_gap_ms, now_ms - timings.last_token_ms)
    return replace(timings, last_token_ms=now_ms, longest_gap_ms=gap_ms)
