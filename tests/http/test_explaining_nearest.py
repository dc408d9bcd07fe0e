"""What POST /v1/reuse/explain says of the nearest state, and of what would have helped."""

from ignisd.engine.totals import totals_of
from ignisd.engine.types import Request, SamplingParams
from ignisd.http.explaining import explanation
from ignisd.http.occupancy import groups_told
from ignisd.http.serving import Facts
from state.chain import chain_of
from state.retention import Marks
from tests.engine.harness import Harness, words


def _asked(tokens: list[int], *, reuse: bool = True) -> Request:
    return Request(
        id=99,
        name="asked",
        chain=chain_of(tokens),
        marks=Marks(opener=len(tokens)),
        sampling=SamplingParams(),
        max_tokens=1,
        reuse=reuse,
    )


def test_the_interval_that_it_names_is_one_that_helps() -> None:
    root = words(1500, 1)
    branch = [*root[:1100], *words(50, 2)]
    harness = Harness(num_host_slots=40)
    harness.ask(root, marks=Marks(opener=1500))
    told = explanation(harness.world, _asked(branch), "fake", harness.now_ms)
    assert told["why_not_more"] == "state_missing"
    assert told["lost_tokens"] == 1088
    near = told["nearest"]
    assert isinstance(near, dict)
    held = harness.world.index.get(near["state"])
    assert held is not None
    assert (near["tokens"], near["shared_tokens"]) == (held.length, 1100) == (1472, 1100)
    assert near["groups"] == ["full", "linear"]
    wanted = told["would_have_helped"]
    assert isinstance(wanted, list)
    (helped,) = wanted
    assert helped["tokens"] == 1024
    assert helped["flag"] == "--reuse-retention-interval 1024"
    # What it says holds: with that interval the branch resumes there.
    interval = int(helped["flag"].split()[-1])
    better = Harness(num_host_slots=40, interval_tokens=interval)
    better.ask(root, marks=Marks(opener=1500))
    finish = better.ask(branch, marks=Marks(opener=len(branch)))
    assert finish.cached_tokens == helped["tokens"]


def test_nothing_is_near_where_nothing_is_shared_or_reuse_is_off() -> None:
    harness = Harness()
    harness.ask(words(300, 1), marks=Marks(opener=300))
    for asked in (_asked([509, *words(300, 2)]), _asked(words(300, 1), reuse=False)):
        assert explanation(harness.world, asked, "fake", 0.0)["nearest"] is None


def test_points_and_bytes_of_each_group() -> None:
    harness = Harness(interval_tokens=128, num_host_slots=40)
    harness.ask(words(600, 1), marks=Marks(opener=600))
    facts = Facts(page_bytes=10, image_bytes=1000)
    told = groups_told(harness.world, facts, totals_of(harness.world, 10, 1000), 9)
    # Four periodic points and the end of the prompt; their nine pages lie once.
    assert told["linear"]["points"] == told["full"]["points"] == len(harness.world.index) == 5
    assert told["linear"]["bytes"] == 5000
    assert told["full"]["bytes"] == 90
    assert (told["linear"]["interval_tokens"], told["full"]["interval_tokens"]) == (128, None)
    assert told["linear"]["bytes_per_point"] == 1000
