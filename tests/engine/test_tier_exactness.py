"""What came back from below equals a cold answer bit for bit, live sequences included."""

import random
from collections import Counter

import pytest

from ignisd.engine.tiers import TierLimits, Tiers
from ignisd.engine.types import FinishReason, Tier
from state.spec import Class
from state.tiers.arena import Arena
from tests.engine.test_exactness import Cold
from tests.engine.trees import Conversation, Model, Server, model, sampling_for


def tiers_for(served: Model, num_pages: int, window_pages: int) -> Tiers:
    """An arena for so many pages, and windows of so many."""
    spec = served.spec.model.state_spec(served.spec.kv_format)
    image_cells = -(-spec.image_bytes // spec.page_bytes)
    limits = TierLimits(
        image_bytes=spec.image_bytes,
        window_bytes=window_pages * spec.page_bytes + spec.image_bytes,
    )
    return Tiers(limits, Arena.empty(num_pages, image_cells, spec.page_bytes))


def press(server: Server, cold: Cold, seed: int, tiers: Counter[str]) -> None:
    """More conversations than fit at once, of both classes, each answer against its cold one."""
    rng = random.Random(seed)
    vocab = server.model.spec.model.vocab_size
    system = tuple(rng.randrange(8, vocab) for _ in range(rng.choice((64, 130, 200))))
    talks = [Conversation(rng, vocab, system) for _ in range(6)]
    flying = {}
    for _ in range(14):
        talk = rng.choice(talks)
        if len(talk.tokens) > 700:
            continue
        prompt = talk.ask(rng.choice((5, 64, 100, 260)))
        talk.answer(rng.randint(1, 40))
        ask = (prompt, sampling_for(rng), rng.choice((3, 10, 70)))
        cls = rng.choice((Class.INTERACTIVE, Class.AGENT))
        flying[server.submit(*ask, cls)] = ask
        for _ in range(rng.choice((0, 2, 6, 20, 80))):
            server.turn()
    server.drain()
    for request_id, ask in flying.items():
        outcome = server.outcomes.pop(request_id)
        finish = outcome.finish
        assert finish.reason is not FinishReason.ERROR, finish.message
        assert outcome.logits == cold.logits(*ask), (
            f"logits differ after {finish.cached_tokens} cached of {finish.prompt_tokens} tokens "
            f"({finish.reuse.tier}), {finish.evictions} evictions"
        )
        tiers[str(finish.reuse.tier)] += 1


@pytest.mark.parametrize(("name", "window_pages"), [("ember", 1), ("ember", 12), ("tiny", 3)])
def test_what_comes_back_from_below_gives_equal_bits(name: str, window_pages: int) -> None:
    served = model(name)
    server = Server(served, tiers=tiers_for(served, 200, window_pages))
    cold, tiers = Cold(served), Counter[str]()
    for seed in range(4):
        press(server, cold, seed, tiers)
    counters = server.world.counters
    assert tiers["kv_ram"], tiers
    assert counters.resumed, counters
    assert counters.restored_from(Tier.KV_RAM), counters


def test_what_finds_no_room_below_is_computed_anew_with_equal_bits() -> None:
    served = model("ember")
    server = Server(served)
    cold = Cold(served)
    press(server, cold, 5, Counter())
    assert server.world.counters.recomputed, server.world.counters
