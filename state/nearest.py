"""The retained state that shares most with a prompt, whether or not it can be resumed from."""

from bisect import bisect_left

from state.chain import Chain
from state.retained import Retained
from state.reuse import ReuseIndex


def nearest(index: ReuseIndex, chain: Chain) -> tuple[Retained, int] | None:
    """The state and how many leading tokens it shares, the longest of those that share as much.

    In the order of their tokens the two neighbours of a prompt share most with it.

    Args:
        index: the states.
        chain: of the prompt; only states under its salt count.

    Returns:
        None where nothing shares a token.
    """
    order = index.in_order.get(chain.salt, ())
    at = bisect_left(order, chain.raw, key=lambda id: index.entries[id].chain.raw)
    beside = [index.entries[id] for id in order[max(at - 1, 0) : at + 1]]
    found = [(one.chain.num_shared(chain), one.length, one.id, one) for one in beside]
    best = max(found, key=lambda one: one[:3], default=None)
    return (best[3], best[0]) if best is not None and best[0] else None


def helpful_interval(length: int, matched_tokens: int) -> tuple[int, int] | None:
    """The coarsest interval, a power of two in pages, that would have kept a state further on.

    Args:
        length: what was reused.
        matched_tokens: whole pages that were shared.

    Returns:
        the interval, and where its deepest state would have been; None where nothing is to be had.
    """
    interval = 1 << max(matched_tokens.bit_length() - 1, 0)
    while interval >= 64:
        point = matched_tokens // interval * interval
        if point > length:
            return interval, point
        interval //= 2
    return None
