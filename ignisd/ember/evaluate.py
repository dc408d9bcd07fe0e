"""How often ember repeats a fact that it was told some hundred tokens earlier.

Every probe tells three facts whose values were held out of training, talks of other things, and
asks for one of them. It counts when greedy decoding would give exactly the expected reply with its
end: each of its tokens is the likeliest one after those before it.
"""

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from ignisd.ember import WEIGHTS_DIR, checkpoint
from ignisd.ember import tokenizer as ember_tokenizer
from ignisd.ember.curriculum import Probe, probe
from ignisd.ember.network import Batch, Params, Shape, forward
from ignisd.ember.render import render

EVALUATION_SEED = 20_260_101
DISTANCES = (64, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Recall:
    """Results at one distance.

    Args:
        by_form: kind of fact, probes of that kind, right ones.
        misses: the probes that went wrong, with the likeliest tokens instead.
    """

    distance_tokens: int
    num_probes: int
    num_right: int
    by_form: tuple[tuple[str, int, int], ...]
    misses: tuple[tuple[Probe, str], ...]

    @property
    def rate(self) -> float:
        """Share of probes answered exactly."""
        return self.num_right / self.num_probes


def probes_at(
    distance_tokens: int, count: int, tokenizer: Tokenizer, seed: int = EVALUATION_SEED
) -> list[Probe]:
    """Probes whose fact ends 0.9 to 1.15 times `distance_tokens` before the reply begins."""
    rng = random.Random(f"{seed}/{distance_tokens}")
    found: list[Probe] = []
    while len(found) < count:
        drawn = probe(rng, held_out=True, long_enough=partial(_reaches, distance_tokens, tokenizer))
        if distance_of(drawn, tokenizer) <= 1.15 * distance_tokens + 16:
            found.append(drawn)
    return found


def _reaches(distance_tokens: int, tokenizer: Tokenizer, drawn: Probe) -> bool:
    return distance_of(drawn, tokenizer) >= 0.9 * distance_tokens


def distance_of(drawn: Probe, tokenizer: Tokenizer) -> int:
    """Tokens between the message that tells the fact and the reply, the opener included."""
    after = drawn.messages[drawn.told_at + 1 :]
    return len(tokenizer.encode(render(after, opener=True)).ids)


def measure(
    params: Params,
    shape: Shape,
    tokenizer: Tokenizer,
    distance_tokens: int,
    count: int,
    dtype: jnp.dtype = jnp.float32,
    rows_at_once: int = 32,
) -> Recall:
    """Recall over `count` probes at one distance."""
    probes = probes_at(distance_tokens, count, tokenizer)
    misses: list[tuple[Probe, str]] = []
    for first in range(0, count, rows_at_once):
        some = probes[first : first + rows_at_once]
        for drawn, (given, expected) in zip(
            some, _best_replies(params, shape, tokenizer, some, rows_at_once, dtype), strict=True
        ):
            if given != expected:
                misses.append((drawn, tokenizer.decode(given, skip_special_tokens=False)))
    asked = Counter(drawn.form for drawn in probes)
    missed = Counter(drawn.form for drawn, _ in misses)
    by_form = tuple((form, asked[form], asked[form] - missed[form]) for form in sorted(asked))
    return Recall(distance_tokens, count, count - len(misses), by_form, tuple(misses))


def _best_replies(
    params: Params,
    shape: Shape,
    tokenizer: Tokenizer,
    probes: list[Probe],
    num_rows: int,
    dtype: jnp.dtype,
) -> Iterator[tuple[list[int], list[int]]]:
    """Per probe the likeliest token at each place of the expected reply, and that reply."""
    encoded = [
        (
            tokenizer.encode(render(drawn.messages, opener=True)).ids,
            tokenizer.encode(drawn.answer + "<|im_end|>").ids,
        )
        for drawn in probes
    ]
    longest = max(len(prompt) + len(reply) for prompt, reply in encoded)
    length = -(-longest // 256) * 256
    tokens = np.zeros((num_rows, length), np.int32)
    for row, (prompt, reply) in enumerate(encoded):
        tokens[row, : len(prompt) + len(reply)] = prompt + reply
    likeliest = np.asarray(_argmax_program(shape, dtype)(params, jnp.asarray(tokens)))
    for row, (prompt, reply) in enumerate(encoded):
        begin = len(prompt) - 1
        yield likeliest[row, begin : begin + len(reply)].tolist(), reply


@cache
def _argmax_program(shape: Shape, dtype: jnp.dtype) -> Callable[[Params, jax.Array], jax.Array]:
    @jax.jit
    def program(params: Params, tokens: jax.Array) -> jax.Array:
        zeros = jnp.zeros_like(tokens)
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
        batch = Batch(tokens, positions, zeros, zeros)
        return jnp.argmax(forward(params, batch, shape, dtype), -1)

    return program


def main() -> None:
    """Prints recall by distance, and by kind of fact if asked."""
    parser = argparse.ArgumentParser(
        prog="python -m ignisd.ember.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=WEIGHTS_DIR, help="checkpoint directory")
    parser.add_argument("--probes", type=int, default=512, help="probes at each distance")
    parser.add_argument("--distances", type=int, nargs="+", default=list(DISTANCES))
    parser.add_argument("--forms", action="store_true", help="also by kind of fact")
    parser.add_argument("--misses", type=int, default=0, help="wrong replies to show")
    options = parser.parse_args()
    params, shape = checkpoint.read(options.model)
    tokenizer = ember_tokenizer.load(options.model)
    print(f"{'distance':>10} {'probes':>8} {'recall':>8}")
    for distance in options.distances:
        result = measure(params, shape, tokenizer, distance, options.probes)
        print(f"{distance:>10} {result.num_probes:>8} {result.rate:>8.1%}", flush=True)
        for form, asked, right in result.by_form if options.forms else ():
            print(f"    {form:<18} {right:>4} of {asked}")
        for drawn, given in result.misses[: options.misses]:
            print(f"    {drawn.messages[-1]['content']!r}: {given!r}, expected {drawn.answer!r}")


if __name__ == "__main__":
    main()
