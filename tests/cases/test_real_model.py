"""The scenarios in which the arithmetic itself could be wrong, on the embedded model.

Every page of the pool holds NaN until it is written. Answers are compared by the bits of their
logits, with those of a server that reuses nothing and serves one request at a time.
"""

import gc
import random
import resource
from pathlib import Path

import jax
import numpy as np

from ignisd.engine.cells import CellStore, SharedPages
from ignisd.engine.types import SamplingParams, Tier
from state.retention import Marks
from state.tiers.memory import HostArena
from tests.cases.prompts import promised
from tests.engine.test_tier_exactness import tiers_for
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


@catches("replaced-images-stay")
def test_l53_a_retained_image_keeps_nothing_of_the_pass_that_made_it() -> None:
    server = Server(model("ember"))
    held = []
    for turn in range(14):
        answered(server, prompt_of(tokens_of(200, 80 + turn), system=100), max_tokens=1)
        gc.collect()
        held.append(sum(array.nbytes for array in jax.live_arrays()))
    image = sum(leaf.nbytes for leaf in jax.tree.leaves(server.runner.images.read(2)))
    assert server.world.slots.num_free == 0
    assert held[-1] - held[7] < image, "full slots take what they took"


@catches("lane-not-cleared", "image-of-the-page-before")
def test_l38_two_forks_of_a_state_that_came_from_below_do_not_meet() -> None:
    served = model("ember")
    server = Server(served, tiers=tiers_for(served, 200, 4))
    base = tokens_of(200, 90)
    answered(server, prompt_of(base))
    for filler in range(8):
        answered(server, prompt_of(tokens_of(150, 100 + filler)))
    forks = [prompt_of(base + tokens_of(70, 120 + fork)) for fork in range(2)]
    ids = [server.submit(fork, GREEDY, 6) for fork in forks]
    server.drain()
    outcomes = [server.outcomes[key] for key in ids]
    assert [one.finish.cached_tokens for one in outcomes] == [promised(200)] * 2
    assert Tier.KV_RAM in {one.finish.reuse.tier for one in outcomes}
    for fork, outcome in zip(forks, outcomes, strict=True):
        assert outcome.logits == cold(fork, 6)


def resident_bytes() -> int:
    """Main memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@catches("what-went-down-is-kept")
def test_l52_five_hundred_states_through_the_arena_take_no_memory_beside_it() -> None:
    served = model("ember")
    tiers = tiers_for(served, 4096, 4)
    cell_bytes, image_cells = tiers.arena.cell_bytes, tiers.arena.image_cells
    memory = HostArena.reserve(4096, cell_bytes)
    server = Server(served)
    store = CellStore(
        server.runner.device, memory.rows, SharedPages(server.runner.device, memory.rows)
    )
    image = server.runner.programs.save_lane(server.runner.device.bank, np.int32(0))
    taken = []
    for cycle in range(550):
        at = cycle * (image_cells + 4) % (4096 - image_cells - 4)
        store.put_image(image, tuple(range(at, at + image_cells)))
        store.pages.lower((1, 2, 3, 4), range(at + image_cells, at + image_cells + 4))
        store.settle()
        image = store.image(tuple(range(at, at + image_cells)))
        if cycle in (50, 549):
            gc.collect()
            taken.append(resident_bytes())
    assert taken[1] - taken[0] <= memory.rows.nbytes // 10
    del store
    memory.close()
