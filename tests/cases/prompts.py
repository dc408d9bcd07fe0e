"""Prompts that the scenarios are made of."""

from collections.abc import Sequence

from state.retention import Marks
from state.spec import PAGE_TOKENS


def floor(tokens: int) -> int:
    """The page boundary at or before an offset."""
    return tokens // PAGE_TOKENS * PAGE_TOKENS


def promised(prompt_tokens: int) -> int:
    """Where a prompt whose opener is its end can be resumed by all that continue it.

    One token is left to read when the very same prompt comes again.
    """
    return floor(prompt_tokens - 1)


def chat(system: Sequence[int], *turns: Sequence[int]) -> tuple[list[int], Marks]:
    """A prompt of messages whose opener is its end."""
    tokens = list(system)
    starts = [0] if system else []
    for turn in turns:
        starts.append(len(tokens))
        tokens += turn
    end = len(tokens)
    return tokens, Marks(len(system) or None, end, end, tuple(starts))
