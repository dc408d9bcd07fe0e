"""Conversations as packed rows of tokens, with weights on what the assistant says."""

import random
from collections.abc import Callable
from functools import cache

import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from ignisd.ember.curriculum import Conversation
from ignisd.ember.network import Batch

CONTEXT_WEIGHT = 0.1
"""Weight of predicting a token of a conversation that the assistant does not say."""

TEXT_WEIGHT = 0.3
"""Weight of predicting a token of a plain text."""


@cache
def _marker_ids(tokenizer: Tokenizer) -> tuple[list[int], tuple[list[int], list[int]], int]:
    opener = tokenizer.encode("<|im_start|>assistant\n").ids
    empty_block = tokenizer.encode("<think>\n\n</think>\n\n").ids
    open_block = tokenizer.encode("<think>\n").ids
    (end,) = tokenizer.encode("<|im_end|>").ids
    return opener, (empty_block, open_block), end


def answer_weights(tokens: list[int], tokenizer: Tokenizer) -> np.ndarray:
    """[T] f32: one for what follows an assistant's opener, its end included, else the context's.

    The empty think block and the start of one belong to the opener: the daemon writes them.
    """
    opener, blocks, end = _marker_ids(tokenizer)
    weights = np.full(len(tokens), CONTEXT_WEIGHT, np.float32)
    weights[:1] = 0.0
    at = 0
    while at < len(tokens):
        if tokens[at : at + len(opener)] != opener:
            at += 1
            continue
        at += len(opener)
        at += next((len(block) for block in blocks if tokens[at : at + len(block)] == block), 0)
        while at < len(tokens):
            weights[at] = 1.0
            at += 1
            if tokens[at - 1] == end:
                break
    return weights


def encode(drawn: Conversation | str, tokenizer: Tokenizer) -> tuple[list[int], np.ndarray]:
    """Token ids of a whole conversation, or of a plain text, and the weight of each."""
    if isinstance(drawn, str):
        tokens = tokenizer.encode(drawn).ids
        weights = np.full(len(tokens), TEXT_WEIGHT, np.float32)
        weights[:1] = 0.0
        return tokens, weights
    tokens = tokenizer.encode(drawn.text).ids
    return tokens, answer_weights(tokens, tokenizer)


def packed_batch(
    rng: random.Random,
    draw: Callable[[random.Random], Conversation | str],
    tokenizer: Tokenizer,
    num_rows: int,
    row_tokens: int,
) -> Batch:
    """Rows filled with conversations and texts end to end; the last one of a row is cut off."""
    tokens = np.zeros((num_rows, row_tokens), np.int32)
    positions = np.zeros_like(tokens)
    conversations = np.zeros_like(tokens)
    weights = np.zeros((num_rows, row_tokens), np.float32)
    for row in range(num_rows):
        filled = 0
        while filled < row_tokens:
            ids, own_weights = encode(draw(rng), tokenizer)
            size = min(len(ids), row_tokens - filled)
            span = slice(filled, filled + size)
            tokens[row, span] = ids[:size]
            positions[row, span] = np.arange(size)
            conversations[row, span] = conversations[row, max(filled - 1, 0)] + (filled > 0)
            weights[row, span] = own_weights[:size]
            filled += size
    return Batch(*map(jnp.asarray, (tokens, positions, conversations, weights)))
