"""What the model makes of probes: the likeliest reply against the expected one, bits of a text."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from ignisd.ember import WEIGHTS_DIR, checkpoint
from ignisd.ember import tokenizer as ember_tokenizer
from ignisd.ember.network import Batch, Params, Shape, forward
from ignisd.ember.probes import MOST_NEW_TOKENS, Probe
from ignisd.ember.reading import Answer, fits, read_answer, vocabulary

_TOKENS_AT_ONCE = 8192
_TEXT_ROW_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint in memory."""

    params: Params
    shape: Shape
    tokenizer: Tokenizer
    directory: Path = WEIGHTS_DIR
    dtype: jnp.dtype = jnp.bfloat16


def read_model(directory: Path) -> Model:
    """The checkpoint of a directory."""
    params, shape = checkpoint.read(directory)
    return Model(params, shape, ember_tokenizer.load(directory), directory)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A probe and the reply that greedy decoding gives, the end of the turn included.

    Args:
        is_right: the reply is the expected one, letter by letter.
        given: its tokens; where it is wrong those up to the first wrong one.
    """

    probe: Probe
    is_right: bool
    given: tuple[int, ...]


def answer_all(model: Model, probes: Sequence[Probe]) -> list[Outcome]:
    """Outcomes in the order of the probes.

    A reply is right when each of its tokens is the likeliest one after those before it: that is
    when greedy decoding would give it. All its tokens are tried in one pass.
    """
    encode = model.tokenizer.encode
    encoded = [(encode(probe.prompt).ids, encode(probe.answer).ids) for probe in probes]
    lengths = [_padded(len(prompt) + len(reply)) for prompt, reply in encoded]
    outcomes: dict[int, Outcome] = {}
    for length in sorted(set(lengths)):
        same = [index for index, each in enumerate(lengths) if each == length]
        num_rows = _most_rows(length)
        for first in range(0, len(same), num_rows):
            some = same[first : first + num_rows]
            likeliest = _likeliest(
                model, [[*encoded[index][0], *encoded[index][1]] for index in some], length
            )
            for row, index in enumerate(some):
                prompt, reply = encoded[index]
                begin = len(prompt) - 1
                given = likeliest[row, begin : begin + len(reply)].tolist()
                outcomes[index] = _outcome(probes[index], given, reply)
    return [outcomes[index] for index in range(len(probes))]


def _outcome(probe: Probe, given: list[int], expected: list[int]) -> Outcome:
    wrong = next(
        (at for at, pair in enumerate(zip(given, expected, strict=True)) if pair[0] != pair[1]),
        None,
    )
    return Outcome(probe, wrong is None, tuple(given if wrong is None else given[: wrong + 1]))


def _padded(length: int) -> int:
    step = 256 if length <= 1536 else 512
    return -(-length // step) * step


def _most_rows(length: int) -> int:
    return max(1, _TOKENS_AT_ONCE // length)


def _likeliest(model: Model, rows: list[list[int]], length: int) -> np.ndarray:
    """[rows, length] int32: the likeliest token after each place."""
    # As many rows as a power of two, so that few shapes are compiled.
    num_rows = min(_most_rows(length), 1 << (len(rows) - 1).bit_length())
    tokens = np.zeros((num_rows, length), np.int32)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    program = _argmax_program(model.shape, model.dtype)
    return np.asarray(program(model.params, jnp.asarray(tokens)))


@cache
def _argmax_program(shape: Shape, dtype: jnp.dtype) -> Callable[[Params, jax.Array], jax.Array]:
    @jax.jit
    def program(params: Params, tokens: jax.Array) -> jax.Array:
        return jnp.argmax(forward(params, _plain_batch(tokens), shape, dtype), -1)

    return program


def _plain_batch(tokens: jax.Array) -> Batch:
    """Rows of one conversation each."""
    zeros = jnp.zeros_like(tokens)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    return Batch(tokens, positions, zeros, zeros)


def decode_on(model: Model, outcomes: Sequence[Outcome]) -> list[tuple[int, ...]]:
    """The whole greedy replies of outcomes that are wrong, without the end of the turn."""
    (end,) = model.tokenizer.encode("<|im_end|>").ids
    prompts = [model.tokenizer.encode(outcome.probe.prompt).ids for outcome in outcomes]
    replies = [list(outcome.given) for outcome in outcomes]
    for _ in range(MOST_NEW_TOKENS):
        going = [at for at, reply in enumerate(replies) if end not in reply]
        if not going:
            break
        length = _padded(max(len(prompts[at]) + len(replies[at]) for at in going))
        num_rows = _most_rows(length)
        for first in range(0, len(going), num_rows):
            some = going[first : first + num_rows]
            rows = [prompts[at] + replies[at] for at in some]
            likeliest = _likeliest(model, rows, length)
            for row, at in enumerate(some):
                replies[at].append(int(likeliest[row, len(rows[row]) - 1]))
    return [tuple(reply[: reply.index(end)] if end in reply else reply) for reply in replies]


def answers_of(model: Model, outcomes: Sequence[Outcome]) -> list[Answer]:
    """The replies as the daemon reads them; those that went wrong are decoded to their end."""
    wrong = [outcome for outcome in outcomes if not outcome.is_right]
    decoded = iter(decode_on(model, wrong))
    answers = []
    for outcome in outcomes:
        tokens = outcome.given[:-1] if outcome.is_right else next(decoded)
        probe = outcome.probe
        answers.append(read_answer(tokens, probe.tools, probe.enable_thinking, model.directory))
    return answers


def is_valid_call(probe: Probe, answer: Answer) -> bool:
    """Whether there is a call, and each is one of an offered tool with arguments of its schema."""
    return bool(answer.calls) and all(
        fits(probe.tools, name, arguments) for name, arguments in answer.calls
    )


def is_valid_json(probe: Probe, answer: Answer) -> bool:
    """Whether the reply is JSON with the keys and values that were asked for."""
    try:
        return bool(json.loads(answer.content) == probe.expected_json)
    except ValueError:
        return False


def bits_per_byte(model: Model, text: str) -> float:
    """Mean bits that a byte of a text costs, read in rows of 2,048 tokens that start anew."""
    ids = model.tokenizer.encode(text).ids
    num_rows = len(ids) // _TEXT_ROW_TOKENS
    rows = np.array(ids[: num_rows * _TEXT_ROW_TOKENS], np.int32).reshape(num_rows, -1)
    program = _bits_program(model.shape, model.dtype)
    bits = sum(float(jnp.sum(program(model.params, jnp.asarray(row[None])))) for row in rows)
    # The first token of a row costs nothing, so its bytes do not count either.
    spelled = vocabulary(model.directory).token_bytes
    return bits / sum(len(spelled(int(token))) for token in rows[:, 1:].reshape(-1))


@cache
def _bits_program(shape: Shape, dtype: jnp.dtype) -> Callable[[Params, jax.Array], jax.Array]:
    @jax.jit
    def program(params: Params, tokens: jax.Array) -> jax.Array:
        logits = forward(params, _plain_batch(tokens), shape, dtype)[:, :-1]
        chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return (jax.nn.logsumexp(logits, -1) - chosen) / math.log(2)

    return program
