"""A reused answer equals a cold one bit for bit, whatever else the server did meanwhile."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from ignisd.engine.probe import probe
from ignisd.engine.programs import empty_device
from ignisd.engine.types import FinishReason, SamplingParams
from tests.engine.trees import Bits, Conversation, Model, Prompt, Server, model, sampling_for

Key = tuple[tuple[int, ...], SamplingParams, int]


@dataclass
class Seen:
    """What the trees went through, to show that the property is no empty one."""

    compared: int = 0
    hits: int = 0
    cancelled: int = 0
    together: int = 0
    kinds: set[str] = field(default_factory=set)


class Cold:
    """Answers without reuse, one at a time, each computed once."""

    def __init__(self, served: Model) -> None:
        self._server = Server(served, reuse=False)
        self._known: dict[Key, list[Bits]] = {}

    def logits(self, prompt: Prompt, sampling: SamplingParams, max_tokens: int) -> list[Bits]:
        """Logits of each token of the cold answer."""
        key = (prompt.tokens, sampling, max_tokens)
        if key not in self._known:
            request_id = self._server.submit(prompt, sampling, max_tokens)
            self._server.drain()
            outcome = self._server.outcomes[request_id]
            assert outcome.finish.cached_tokens == 0
            self._known[key] = outcome.logits
        return self._known[key]


def grow(server: Server, cold: Cold, seed: int, seen: Seen) -> None:
    """One conversation tree: turns, forks, retries, siblings and departures, some together."""
    rng = random.Random(seed)
    # Prefixes that were hit keep their slots from others until they have been idle for a while.
    server.now_ms += 120_000.0
    vocab = server.model.spec.model.vocab_size
    system = tuple(rng.randrange(8, vocab) for _ in range(rng.choice((0, 40, 64, 130, 200))))
    trees = [Conversation(rng, vocab, system)]
    asked: list[tuple[Prompt, SamplingParams, int]] = []
    flying: dict[int, tuple[Prompt, SamplingParams, int]] = {}
    for _ in range(rng.randint(4, 6)):
        move = rng.random()
        if asked and move < 0.2:
            ask = rng.choice(asked)
        else:
            talk = rng.choice(trees)
            if move < 0.45:
                talk = Conversation(rng, vocab, system) if move < 0.3 else talk.fork()
                trees.append(talk)
            if len(talk.tokens) > 500:
                continue
            prompt = talk.ask(rng.choice((1, 5, 30, 63, 64, 65, 100, 180)))
            talk.answer(rng.randint(1, 40))
            ask = (prompt, sampling_for(rng), rng.randint(1, 4))
        asked.append(ask)
        flying[server.submit(*ask)] = ask
        seen.together += len(flying) > 1
        if rng.random() < 0.3:
            for _ in range(rng.randint(0, 4)):
                server.turn()
            if rng.random() < 0.4:
                server.cancel(rng.choice(list(flying)))
            continue
        server.drain()
        judge(server, cold, flying, seen)
    server.drain()
    judge(server, cold, flying, seen)


def judge(
    server: Server,
    cold: Cold,
    flying: dict[int, tuple[Prompt, SamplingParams, int]],
    seen: Seen,
) -> None:
    """Every answer so far against its cold one; a cancelled one against the part it gave."""
    for request_id, ask in flying.items():
        outcome = server.outcomes.pop(request_id)
        finish = outcome.finish
        want = cold.logits(*ask)
        if finish.reason is FinishReason.CANCELLED:
            seen.cancelled += 1
            want = want[: len(outcome.logits)]
        assert finish.reason is not FinishReason.ERROR, finish.message
        assert outcome.logits == want, (
            f"logits differ after {finish.cached_tokens} cached of {finish.prompt_tokens} tokens "
            f"({finish.reuse.kind})"
        )
        seen.compared += len(want)
        seen.hits += finish.cached_tokens > 0
        if finish.reuse.kind is not None:
            seen.kinds.add(finish.reuse.kind)
    flying.clear()


def run_trees(name: str, seeds: range) -> Seen:
    """Trees one after another on one server, so that each finds what the others left."""
    served = model(name)
    server, cold, seen = Server(served), Cold(served), Seen()
    for seed in seeds:
        grow(server, cold, seed, seen)
    assert server.world.pages.num_used == sum(
        1 for page in range(1, served.shape.num_pages) if server.world.pages.holders(page)
    )
    return seen


@pytest.mark.parametrize(("name", "count"), [("ember", 120), ("tiny", 80)])
def test_trees_give_equal_bits(name: str, count: int) -> None:
    seen = run_trees(name, range(count))
    assert seen.compared > 5 * count
    assert seen.hits > count, seen
    assert seen.cancelled > count // 8, seen
    assert seen.together > count // 2, seen
    assert {"prefix", "checkpoint"} <= seen.kinds or {"prefix", "turn_open"} <= seen.kinds, seen


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ember", "tiny"])
def test_many_trees_give_equal_bits(name: str) -> None:
    seen = run_trees(name, range(1000, 1300))
    assert seen.hits > 300, seen


@pytest.mark.parametrize("name", ["ember", "tiny"])
def test_the_probe_finds_the_backend_exact(name: str) -> None:
    served = model(name)
    device = empty_device(served.spec, served.shape)
    assert probe(served.params, served.shape, served.programs, device) == []


def test_the_probe_sees_a_difference() -> None:
    """Other weights in one of the programs: every comparison must notice."""
    served = model("tiny")
    device = empty_device(served.spec, served.shape)
    widest = max(served.shape.widths)
    honest = served.programs.prefill[widest]

    class Drifting:
        """The widest program, with weights that are not those of the narrower ones."""

        def __call__(self, params: Any, *rest: Any) -> Any:
            return honest({**params, "embed": params["embed"] * 1.01}, *rest)

        def as_text(self) -> str:
            return honest.as_text()

    served.programs.prefill[widest] = Drifting()
    try:
        found = probe(served.params, served.shape, served.programs, device)
    finally:
        served.programs.prefill[widest] = honest
    assert any("logits" in line for line in found)
    assert any("pages" in line for line in found)
    assert any("images" in line for line in found)
