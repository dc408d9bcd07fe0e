"""What came back from below equals a cold answer bit for bit, live sequences included."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ignisd.engine.runner import DeviceRunner
from ignisd.engine.spilling import draining, is_written_out
from ignisd.engine.tiers import TierLimits, Tiers
from ignisd.engine.types import FinishReason, Round, Tier
from state.retained import DEFAULT_TTL_MS
from state.spec import Class
from state.tiers.adopt import adopt
from state.tiers.arena import Arena
from state.tiers.disk import Disk
from state.tiers.format import Layout
from state.tiers.scan import scan
from state.tiers.shelf import Shelf
from tests.engine.test_exactness import Cold
from tests.engine.trees import FINGERPRINT, Conversation, Model, Server, model, sampling_for


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


@pytest.mark.parametrize(
    ("name", "window_pages"),
    [("ember", 2), ("tiny", 3), pytest.param("ember", 12, marks=pytest.mark.slow)],
)
def test_what_comes_back_from_below_gives_equal_bits(
    name: str, window_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Counter[bool]()
    real = DeviceRunner._moves_beside

    def counted(runner: DeviceRunner, work: Round) -> bool:
        found = real(runner, work)
        beside[found] += bool(work.lowers or work.raises)
        return found

    monkeypatch.setattr(DeviceRunner, "_moves_beside", counted)
    served = model(name)
    server = Server(served, tiers=tiers_for(served, 200, window_pages))
    cold, tiers = Cold(served), Counter[str]()
    for seed in range(4):
        press(server, cold, seed, tiers)
    counters = server.world.counters
    assert tiers["kv_ram"], tiers
    assert counters.resumed, counters
    assert counters.restored_from(Tier.KV_RAM), counters
    assert beside[True], beside
    assert beside[False], beside


def test_what_finds_no_room_below_is_computed_anew_with_equal_bits() -> None:
    served = model("ember")
    server, cold = Server(served), Cold(served)
    for seed in range(3):
        press(server, cold, seed, Counter())
    assert server.world.counters.recomputed, server.world.counters


def shelf_for(server: Tiers, root: Path, adopted_ms: float | None = None) -> Tiers:
    """The tiers with files below, all that were found there adopted if a time is given."""
    arena = server.arena
    layout = Layout(FINGERPRINT, arena.cell_bytes, arena.image_cells)
    shelf = Shelf.empty(root, layout, 1 << 30)
    limits = replace(server.limits, low_cells=arena.num_cells // 2)
    if adopted_ms is not None:
        found = scan(Disk(), root, layout, deep=True)
        assert found.records, "nothing was written before the restart"
        shelf = adopt(shelf, found, 1, adopted_ms, adopted_ms, DEFAULT_TTL_MS)
    return replace(server, limits=limits, shelf=shelf)


def test_what_comes_back_from_files_gives_equal_bits_also_after_a_restart(tmp_path: Path) -> None:
    served, arena_pages = model("ember"), 70
    cold, tiers = Cold(served), Counter[str]()
    below = shelf_for(tiers_for(served, arena_pages, 8), tmp_path)
    server = Server(served, tiers=below, disk=Disk())
    for seed in range(4):
        press(server, cold, seed, tiers)
    assert tiers["kv_disk"], tiers
    write_out(server)

    again = Server(
        served, tiers=shelf_for(tiers_for(served, arena_pages, 8), tmp_path, 1.0), disk=Disk()
    )
    again.world = replace(again.world, next_retained_id=10_000)
    tiers.clear()
    for seed in range(4):
        press(again, cold, seed, tiers)
    assert tiers["kv_disk"], tiers


def write_out(server: Server) -> None:
    """End as the daemon ends: what is retained goes to files, what is not wanted is removed."""
    server.world = draining(server.world)
    for _ in range(400):
        server.turn()
        if is_written_out(server.world, server.now_ms):
            return
    raise AssertionError("the state was never written out")
