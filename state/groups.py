"""The groups of a hybrid model: what each must have for a resume, and how often it is kept.

A hybrid model mixes layers that need different things to go on from a point. Full attention (and
chunked-local attention, which counts as full here) needs the keys and values of all pages before
it, sliding-window attention those of the last window, linear attention one image. A drafter may
have layers of its own. A follower can resume where every group that must hit has what it needs.
"""

import enum
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final, Literal

from state.spec import PAGE_TOKENS, StateSpec

DENSE: Final = "dense"
Interval = int | Literal["dense"]
"""Tokens between two periodic states; 0 is none, `dense` is the width of a prefill chunk."""


class GroupName(enum.StrEnum):
    """Layers that need the same of a retained state."""

    FULL = "full"
    WINDOW = "window"
    LINEAR = "linear"
    DRAFTER = "drafter"


WHOLE = frozenset({GroupName.FULL, GroupName.LINEAR})
"""What a state of a model with full and linear attention is made of."""


@dataclass(frozen=True, slots=True)
class Group:
    """One group of a model.

    Args:
        name: which one.
        item_bytes: of one page, or of one image, all layers of the group together.
        is_image: a point needs one image; otherwise it needs pages.
        window_tokens: a point needs the pages of the last window_tokens - 1 tokens; None is all
            pages before it. Nothing to a group of images.
        is_shifted: a drafter moves the group's boundary by a page, so that it needs one page more.
        is_inert: a miss of the group does no harm; it never holds a resume back.
    """

    name: GroupName
    item_bytes: int
    is_image: bool = False
    window_tokens: int | None = None
    is_shifted: bool = False
    is_inert: bool = False

    def __post_init__(self) -> None:
        assert self.item_bytes >= 0, f"{self.item_bytes} bytes an item of {self.name}"
        assert self.window_tokens is None or self.window_tokens >= 1, (
            f"a window of {self.window_tokens} tokens in {self.name}"
        )

    @property
    def is_dense(self) -> bool:
        """Whether its pages are kept for every retained state, so that it has no interval."""
        return not self.is_image and self.window_tokens is None

    @property
    def items_per_point(self) -> int:
        """Pages or images that one more point takes deep inside a prompt.

        A dense group shares all pages but the last with the points before.
        """
        if self.is_image or self.window_tokens is None:
            return 1
        return -(-(self.window_tokens - 1) // PAGE_TOKENS) + self.is_shifted

    @property
    def bytes_per_point(self) -> int:
        """What one more point takes."""
        return self.items_per_point * self.item_bytes

    def needs(self, point: int) -> range:
        """What a resume at `point`, a positive multiple of the page, reads of this group.

        Returns:
            numbers of pages; of images, the number of the page at whose end they stand.
        """
        end = point // PAGE_TOKENS
        start = 0 if self.is_dense else max(end - self.items_per_point, 0)
        return range(start, end)


def groups_of(spec: StateSpec) -> tuple[Group, ...]:
    """The groups of a model with this geometry."""
    groups = []
    if spec.num_full:
        groups.append(Group(GroupName.FULL, spec.page_bytes))
    if spec.num_linear:
        groups.append(Group(GroupName.LINEAR, spec.image_bytes, is_image=True))
    return tuple(groups)


def must_hit(groups: Iterable[Group]) -> frozenset[GroupName]:
    """The groups that hold a resume back where they lack something."""
    return frozenset(group.name for group in groups if not group.is_inert)


def resume_points(num_tokens: int) -> range:
    """Every length at which a request of `num_tokens` tokens may resume, ascending.

    They are the multiples of the page that leave at least one token to read.
    """
    return range(PAGE_TOKENS, num_tokens, PAGE_TOKENS)


def where_to_resume(
    num_tokens: int, wanted: Set[GroupName], kept: Mapping[int, Set[GroupName]]
) -> tuple[int, ...]:
    """Where a follower of `num_tokens` tokens can resume, the deepest point first.

    This one function answers for who writes and for who reads: the policy keeps periodic states
    only where it says that a follower could resume from them, and the lookups claim only what it
    names. What one group keeps where another that must hit keeps nothing is of use to nobody. The
    unit is the state: the window of one is not lent to a follower that resumes from another.

    Args:
        num_tokens: length of the follower's prompt.
        wanted: the groups that must hit.
        kept: by length, the groups that have what a resume there needs.
    """
    points = resume_points(num_tokens)
    return tuple(
        length
        for length in sorted(kept, reverse=True)
        if length in points and wanted <= kept[length]
    )


@dataclass(frozen=True, slots=True)
class Intervals:
    """What `--reuse-retention-interval` says: one interval for all groups, and some of their own.

    Raises:
        ValueError: an interval that is negative or off the grid, or `full` with another one than
            dense, which is what its pages always are.
    """

    common: Interval = 0
    by_group: tuple[tuple[GroupName, Interval], ...] = ()

    def __post_init__(self) -> None:
        for name, interval in (("every group", self.common), *self.by_group):
            if interval != DENSE and (interval < 0 or interval % PAGE_TOKENS):
                raise ValueError(
                    f"{name} has {interval}, which is neither 0, a positive multiple of the page "
                    f"of {PAGE_TOKENS} tokens, nor {DENSE}"
                )
            if name is GroupName.FULL and interval != DENSE:
                raise ValueError(f"full is always {DENSE}: its pages are kept for every state")
        names = [name for name, _ in self.by_group]
        if len(set(names)) != len(names):
            raise ValueError(f"a group is named twice in {', '.join(names)}")

    def of(self, name: GroupName) -> Interval:
        """The interval of one group."""
        return dict(self.by_group).get(name, self.common)

    @property
    def is_zero(self) -> bool:
        """Whether nothing periodic is kept of any group."""
        return not self.common and not any(interval for _, interval in self.by_group)

    def resolved(
        self, groups: tuple[Group, ...], dense_tokens: int
    ) -> tuple[tuple[GroupName, int], ...]:
        """The interval of every group of a model that has one, in tokens.

        Args:
            groups: of the model.
            dense_tokens: what dense means: the width of a prefill chunk.

        Raises:
            ValueError: an interval for a group that the model lacks, or a model without any group
                that could have one.
        """
        has = [group.name for group in groups]
        for name, _ in self.by_group:
            if name not in has:
                raise ValueError(
                    f"{name} is named, and the model has no such group; it has {', '.join(has)}"
                )
        sparse = [group for group in groups if not group.is_dense]
        if not sparse and not self.is_zero:
            raise ValueError(
                "the model has neither windows nor linear attention: every page of it is kept "
                "and there is nothing to keep periodically"
            )
        found = []
        for group in sparse:
            interval = self.of(group.name)
            found.append((group.name, dense_tokens if interval == DENSE else int(interval)))
        return tuple(found)

    def __str__(self) -> str:
        words = [f"{name}={interval}" for name, interval in self.by_group]
        if self.common or not words:
            words.insert(0, str(self.common))
        return ",".join(words)


def read_intervals(text: str) -> Intervals:
    """The intervals that a text such as `4096`, `dense` or `linear=4096,drafter=0` means.

    Raises:
        ValueError: it means none.
    """
    common: Interval = 0
    by_group: list[tuple[GroupName, Interval]] = []
    for place, word in enumerate(text.lower().split(",")):
        name, equals, value = (part.strip() for part in word.rpartition("="))
        interval: Interval = DENSE if value == DENSE else int(value)
        if equals:
            by_group.append((GroupName(name), interval))
        elif place == 0:
            common = interval
        else:
            raise ValueError(f"{word.strip()} names no group")
    return Intervals(common, tuple(by_group))
