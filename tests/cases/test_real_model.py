"""The scenarios in which the arithmetic itself could be wrong, on the embedded model.

Every page of the pool holds NaN until it is written. Answers are compared by the bits of their
logits, with those of a server that reuses nothing and serves one request at a time.
"""

import random

import numpy as np

from ignisd.engine.types import SamplingParams
from state.retention import Marks
from tests.cases.prompts import promised
from tests.engine.trees import Bits, Outcome, Prompt, Server, model
from tests.planting import catches

GREEDY = SamplingParams(temperature=0.0)


def prompt_of(tokens: list[int], system: int | None = None) -> Prompt:
    end = len(tokens)
    return Prompt(tuple(tokens), Marks(system, end, end))


def tokens_of(count: int, seed: int) -> list[int]:
    vocab = model("ember").spec.model.vocab_size
    rng = random.Random(seed)
    return [rng.randrange(8, vocab) for _ in range(count)]


def answered(server: Server, prompt: Prompt, max_tokens: int = 3) -> Outcome:
    """A request on its own, to its end."""
    request_id = server.submit(prompt, GREEDY, max_tokens)
    server.drain()
    return server.outcomes.pop(request_id)


def cold(prompt: Prompt, max_tokens: int = 3) -> list[Bits]:
    """The logits of a server without reuse that has served nothing else."""
    outcome = answered(Server(model("ember"), reuse=False), prompt, max_tokens)
    assert outcome.finish.cached_tokens == 0
    return outcome.logits


@catches("image-of-the-page-before")
def test_v05_a_prompt_of_whole_pages_gives_the_cold_bits_again() -> None:
    server = Server(model("ember"))
    whole = tokens_of(192, 5)
    for tokens, hit in ((whole, 0), (whole, 128), ([*whole, 9], 128), (whole[:-1], 128)):
        outcome = answered(server, prompt_of(tokens))
        assert outcome.finish.cached_tokens == hit
        assert outcome.logits == cold(prompt_of(tokens))


@catches("image-of-the-page-before", "stale-page")
def test_l41_a_restored_state_is_whole_and_reads_nothing_unwritten() -> None:
    server = Server(model("ember"))
    system = tokens_of(150, 41)
    for turn in range(3):
        prompt = prompt_of(system + tokens_of(70, 50 + turn), system=150)
        outcome = answered(server, prompt)
        assert outcome.finish.cached_tokens == (128 if turn else 0)
        for row in outcome.logits:
            assert np.isfinite(np.frombuffer(row, np.float32)).all()
        assert outcome.logits == cold(prompt)
        again = answered(server, prompt)
        assert again.finish.cached_tokens == promised(220)
        assert again.logits == outcome.logits


@catches("padding-is-read")
def test_l34_rows_of_mixed_lengths_are_read_as_if_alone() -> None:
    server = Server(model("ember"))
    prompts = [prompt_of(tokens_of(length, length)) for length in (10, 26, 385)]
    ids = [server.submit(prompt, GREEDY, 3) for prompt in prompts]
    server.drain()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert server.outcomes[request_id].logits == cold(prompt)
    longer = prompt_of([*prompts[2].tokens, 9, 10])
    outcome = answered(server, longer)
    assert outcome.finish.cached_tokens == promised(385)
    assert outcome.logits == cold(longer)


@catches("lane-not-cleared")
def test_l28_a_cold_request_finds_an_empty_lane() -> None:
    server = Server(model("ember"))
    for seed in range(3):
        prompt = prompt_of(tokens_of(90, 28 + seed))
        outcome = answered(server, prompt)
        assert outcome.finish.cached_tokens == 0
        assert outcome.logits == cold(prompt)
