"""Groups: what each needs, how intervals are read, and where all of them together let one resume.

The fake model has all four groups. It keeps, per state and group, the positions whose keys, values
or images it has, so an oracle that knows nothing of pages, digests or policies can say from where a
prompt could go on.
"""

import random
from dataclasses import dataclass, field

import pytest

from state.chain import chain_of
from state.groups import (
    Group,
    GroupName,
    Intervals,
    must_hit,
    read_intervals,
    resume_points,
    where_to_resume,
)
from state.retained import Kind
from state.retention import Cut, Marks, RetentionPolicy
from state.reuse import Match, ReuseIndex
from state.spec import PAGE_TOKENS
from tests.planting import catches
from tests.state.builders import FINGERPRINT, retained

FULL = Group(GroupName.FULL, 640)
WINDOW = Group(GroupName.WINDOW, 64, window_tokens=200, is_shifted=True)
LINEAR = Group(GroupName.LINEAR, 5000, is_image=True)
DRAFTER = Group(GroupName.DRAFTER, 32, window_tokens=130, is_inert=True)
MODEL = (FULL, WINDOW, LINEAR, DRAFTER)
EVERY = frozenset(group.name for group in MODEL)


@dataclass
class FakeHybrid:
    """States of a model with all four groups, and what each group has of each."""

    index: ReuseIndex = field(
        default_factory=lambda: ReuseIndex.empty(FINGERPRINT, must_hit(MODEL))
    )
    items: dict[int, dict[GroupName, set[int]]] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)

    def read(self, prompt: list[int], policy: RetentionPolicy, marks: Marks) -> None:
        """Keep what the policy says of a prompt."""
        for cut in policy.cuts(marks, len(prompt), 0):
            self.keep(prompt, cut)

    def keep(self, prompt: list[int], cut: Cut) -> None:
        """Keep a state; of each group that keeps something there, all that it needs."""
        names = EVERY if cut.groups is None else cut.groups
        chain = chain_of(prompt)
        if self.index.find(chain, cut.position) is not None:
            return
        id = len(self.items) + 1
        self.items[id] = {
            group.name: set(group.needs(cut.position)) for group in MODEL if group.name in names
        }
        self.tokens[id] = prompt[: cut.position]
        state = retained(id, chain, cut.position, kind=cut.kind)
        object.__setattr__(state, "groups", frozenset(names))
        self.index = self.index.insert(state)

    def hit(self, prompt: list[int]) -> int:
        """Tokens that a request of the prompt resumes at."""
        found = self.index.longest_match(chain_of(prompt), len(prompt))
        return found.length if isinstance(found, Match) else 0

    def oracle(self, prompt: list[int]) -> int:
        """The same, by looking at every position of every state."""
        best = 0
        for id, tokens in self.tokens.items():
            length = len(tokens)
            if length < len(prompt) and prompt[:length] == tokens and self._goes_on(id, length):
                best = max(best, length)
        return best

    def _goes_on(self, id: int, length: int) -> bool:
        """Whether the groups that must hit have every token that they will look back at."""
        has = self.items[id]
        if LINEAR.name not in has or length // PAGE_TOKENS - 1 not in has[LINEAR.name]:
            return False
        if any(token // PAGE_TOKENS not in has.get(FULL.name, ()) for token in range(length)):
            return False
        assert WINDOW.window_tokens is not None
        last = range(max(length - (WINDOW.window_tokens - 1), 0), length)
        return all(token // PAGE_TOKENS in has.get(WINDOW.name, ()) for token in last)


@catches("the-first-group-decides", "one-group-holds-nobody-back")
def test_v38_four_groups_hit_where_the_oracle_says() -> None:
    deep = 0
    for seed in range(60):
        rng = random.Random(seed)
        fake = FakeHybrid()
        policy = RetentionPolicy(
            by_group=tuple(
                (group.name, 64 * rng.choice((0, 1, 2, 3, 4, 6))) for group in MODEL[1:]
            ),
            inert=frozenset({GroupName.DRAFTER}),
        )
        root = [rng.randrange(900) for _ in range(rng.randint(200, 1500))]
        prompts = [root]
        for _ in range(5):
            known = rng.choice(prompts)
            keep = rng.randint(0, len(known))
            prompts.append(known[:keep] + [rng.randrange(900) for _ in range(rng.randint(1, 400))])
        for prompt in prompts:
            opener = rng.choice((None, len(prompt)))
            fake.read(prompt, policy, Marks(opener=opener))
            # States of which some group has been given up, as its own interval would.
            place = rng.randrange(64, 64 + len(prompt)) // 64 * 64
            if place < len(prompt):
                lacks = rng.choice((GroupName.WINDOW, GroupName.LINEAR, GroupName.DRAFTER))
                fake.keep(prompt, Cut(place, Kind.PERIODIC, EVERY - {lacks}))
        for prompt in prompts:
            for tokens in (prompt, prompt[: rng.randint(1, len(prompt))], [*prompt, 1, 2, 3]):
                assert fake.hit(tokens) == fake.oracle(tokens)
                deep += fake.hit(tokens) > 0
    assert deep > 200


@catches("one-interval-for-all-groups")
def test_v43_the_interval_of_an_inert_group_changes_its_own_occupancy_alone() -> None:
    prompt = list(range(4000))
    seen = set()
    occupied = []
    for own in (0, 512, 1024):
        fake = FakeHybrid()
        policy = RetentionPolicy(
            by_group=((WINDOW.name, 512), (LINEAR.name, 512), (DRAFTER.name, own)),
            inert=frozenset({GroupName.DRAFTER}),
        )
        fake.read(prompt, policy, Marks(opener=4000))
        hits = tuple(fake.hit([*prompt[:keep], 9999]) for keep in range(64, 4000, 70))
        held = {
            group.name: sum(len(has.get(group.name, ())) for has in fake.items.values())
            for group in MODEL
        }
        occupied.append(held.pop(GroupName.DRAFTER) // DRAFTER.items_per_point)
        seen.add((hits, tuple(held.items())))
        assert max(hits) > 0
    # The end of the prompt, and seven periodic points or three of them.
    assert occupied == [1, 8, 4]
    assert len(seen) == 1


def test_nothing_is_kept_where_nobody_could_resume() -> None:
    policy = RetentionPolicy(
        by_group=((WINDOW.name, 256), (LINEAR.name, 128), (DRAFTER.name, 64)),
        inert=frozenset({GroupName.DRAFTER}),
    )
    assert dict(policy.promised(1000)) == {256: None, 512: None, 768: None}
    none = RetentionPolicy(by_group=((WINDOW.name, 0), (LINEAR.name, 128)))
    assert none.promised(1000) == {}
    alone = RetentionPolicy(
        by_group=((LINEAR.name, 128), (DRAFTER.name, 256)), inert=frozenset({GroupName.DRAFTER})
    )
    target = frozenset({GroupName.FULL, GroupName.LINEAR})
    assert dict(alone.promised(400)) == {128: target, 256: None, 384: target}


def test_where_to_resume_is_the_deepest_point_that_all_have() -> None:
    both, one = frozenset({GroupName.FULL, GroupName.LINEAR}), frozenset({GroupName.FULL})
    kept = {64: both, 128: one, 192: both, 256: both}
    assert where_to_resume(257, both, kept) == (256, 192, 64)
    assert where_to_resume(256, both, kept) == (192, 64)
    assert where_to_resume(256, one, kept) == (192, 128, 64)
    assert where_to_resume(64, both, kept) == ()
    assert list(resume_points(129)) == [64, 128]


@pytest.mark.parametrize(
    ("window_tokens", "is_shifted", "pages"),
    [(2048, False, 32), (2048, True, 33), (65, False, 1), (66, False, 2), (1, False, 0)],
)
def test_a_window_needs_the_pages_of_its_last_tokens(
    window_tokens: int, is_shifted: bool, pages: int
) -> None:
    group = Group(GroupName.WINDOW, 10, window_tokens=window_tokens, is_shifted=is_shifted)
    assert group.items_per_point == pages
    assert group.bytes_per_point == 10 * pages
    assert len(group.needs(64_000)) == pages
    assert len(group.needs(64)) == min(pages, 1)


@pytest.mark.parametrize(
    ("text", "intervals"),
    [
        ("0", Intervals()),
        ("4096", Intervals(4096)),
        ("dense", Intervals("dense")),
        ("linear=4096, window=8192,drafter=0", Intervals(0, (
            (GroupName.LINEAR, 4096), (GroupName.WINDOW, 8192), (GroupName.DRAFTER, 0),
        ))),
        ("4096,drafter=dense", Intervals(4096, ((GroupName.DRAFTER, "dense"),))),
    ],
)  # fmt: skip
def test_intervals_are_read_and_written(text: str, intervals: Intervals) -> None:
    assert read_intervals(text) == intervals
    assert read_intervals(str(intervals)) == intervals


@pytest.mark.parametrize(
    "text", ["", "-64", "63", "linear=-64", "conv=64", "full=64", "window=1,2", "x", "64,64"]
)
def test_other_intervals_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 the messages are those of int and of the enum
        read_intervals(text)


def test_intervals_are_resolved_for_the_groups_of_a_model() -> None:
    own = read_intervals("dense,drafter=0").resolved(MODEL, 1024)
    assert own == (
        (GroupName.WINDOW, 1024), (GroupName.LINEAR, 1024), (GroupName.DRAFTER, 0),
    )  # fmt: skip
    assert read_intervals("full=dense").resolved((FULL, LINEAR), 256) == ((GroupName.LINEAR, 0),)
    with pytest.raises(ValueError, match="drafter is named, and the model has no such group; it "):
        read_intervals("drafter=64").resolved((FULL, LINEAR), 256)
    with pytest.raises(ValueError, match="neither windows nor linear attention"):
        read_intervals("64").resolved((FULL,), 256)
    assert read_intervals("0").resolved((FULL,), 256) == ()
