"""A model with all four groups, which keeps of each state what each group has of it.

It keeps, per state and group, the positions whose keys, values or images it has, so an oracle that
knows nothing of pages, digests or policies can say from where a prompt could go on.
"""

from dataclasses import dataclass, field

from state.chain import chain_of
from state.groups import Group, GroupName, must_hit
from state.retention import Cut, Marks, RetentionPolicy
from state.reuse import Match, ReuseIndex
from state.spec import PAGE_TOKENS
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
