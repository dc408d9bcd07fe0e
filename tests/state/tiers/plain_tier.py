"""A tier beside plain lists: who is found, who gives way, and how many cells are held."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from state.chain import Link, chain_of
from state.retained import KIND_ORDER, Kind
from state.spec import PAGE_TOKENS, Class
from state.tiers.stored import Stored
from tests.state.builders import page_of

TTL_MS = 100.0
KINDS = (Kind.CHECKPOINT, Kind.PREFIX)
SALTS = (b"", b"tenant")
IMAGE_CELLS = 2
NEARLY_ONE = 3
"""A letter whose page differs from that of letter 1 in the last token alone."""


def tokens_of(letters: list[int], tail: int = 0) -> list[int]:
    """One page a letter, and some tokens after them."""
    pages = [[*page_of(1)[:-1], 7] if one == NEARLY_ONE else page_of(one) for one in letters]
    return [token for page in pages for token in page] + list(range(tail))


@dataclass(frozen=True)
class Plain:
    """A state with nothing derived."""

    id: int
    salt: bytes
    tokens: tuple[int, ...]
    num_common: int
    kind: Kind | None
    cls: Class
    hits: int
    used_ms: float
    held: int = 0
    pinned: bool = False

    @property
    def num_pages(self) -> int:
        return -(-len(self.tokens) // PAGE_TOKENS)

    def stored(self, link: Link) -> Stored:
        """The same as the product has it, from a chain that goes on."""
        return Stored(
            id=self.id,
            chain=chain_of([*self.tokens, 5, 6], self.salt, link),
            length=len(self.tokens),
            num_common=self.num_common,
            kind=self.kind,
            cls=self.cls,
            owner=None if self.kind else 100 + self.id,
            hits=self.hits,
            used_ms=self.used_ms,
            held=self.held,
            pinned=self.pinned,
        )

    def common(self) -> list[tuple[bytes, tuple[int, ...]]]:
        """What decides the bytes of each common page."""
        pages = range(1, self.num_common + 1)
        return [(self.salt, self.tokens[: page * PAGE_TOKENS]) for page in pages]


def plain(
    id: int,
    letters: list[int],
    *,
    tail: int = 0,
    prompt_pages: int | None = None,
    salt: bytes = b"",
    kind: Kind = Kind.CHECKPOINT,
    cls: Class = Class.AGENT,
    hits: int = 0,
    used_ms: float = 0.0,
    pinned: bool = False,
) -> Plain:
    """A retained state of one page a letter; a live one where there is a tail or a prompt."""
    live = tail > 0 or prompt_pages is not None
    num_common = len(letters)
    if prompt_pages is not None:
        num_common = min(prompt_pages, num_common)
    tokens = tuple(tokens_of(letters, tail))
    one = Plain(id, salt, tokens, num_common, None if live else kind, cls, hits, used_ms)
    return replace(one, pinned=pinned)


def order_of(one: Plain, now_ms: float) -> tuple[int, float, int]:
    """Retained before live, agents' before people's, never restored before restored, the oldest.

    A retained one that has been idle too long goes with the lowest. What is pinned stands between
    retained and live.
    """
    steps = [
        one.cls is Class.INTERACTIVE,
        one.hits > 0,
    ]
    if one.kind is not None and (one.pinned or now_ms - one.used_ms > TTL_MS):
        steps = [False, False]
    held = 8 * (one.kind is None) + 4 * one.pinned
    return held + 2 * steps[0] + steps[1], one.used_ms, one.id


@dataclass
class PlainIndex:
    """All states of a tier in a dictionary."""

    states: dict[int, Plain] = field(default_factory=dict)

    def change(self, id: int, **changes: object) -> None:
        self.states[id] = replace(self.states[id], **changes)  # type: ignore[arg-type]

    def pin(self, id: int, pinned: bool) -> None:
        self.change(id, pinned=pinned)

    def touch(self, id: int, now_ms: float) -> None:
        self.change(id, hits=self.states[id].hits + 1, used_ms=now_ms)

    def renew(self, id: int, kind: Kind, cls: Class, used_ms: float) -> None:
        one = self.states[id]
        assert one.kind is not None
        if KIND_ORDER[kind] > KIND_ORDER[one.kind]:
            self.change(id, kind=kind)
        if cls is Class.INTERACTIVE:
            self.change(id, cls=cls)
        if used_ms > one.used_ms:
            self.change(id, used_ms=used_ms)

    def find(self, salt: bytes, tokens: tuple[int, ...]) -> int | None:
        """The oldest retained state of exactly these tokens."""
        same = [
            one.id
            for one in self.states.values()
            if one.kind is not None and (one.salt, one.tokens) == (salt, tokens)
        ]
        return min(same, default=None)

    def longest_match(self, salt: bytes, prompt: tuple[int, ...]) -> int | None:
        """The oldest of the longest retained states that are a strict prefix."""
        usable = [
            one
            for one in self.states.values()
            if one.kind is not None
            and one.salt == salt
            and len(one.tokens) < len(prompt)
            and prompt[: len(one.tokens)] == one.tokens
        ]
        longest = max(usable, key=lambda one: (len(one.tokens), -one.id), default=None)
        return longest.id if longest else None

    def victims(self, now_ms: float) -> list[Plain]:
        """Those that no move holds and nobody pinned, the first to go first."""
        free = [one for one in self.states.values() if not one.held and not one.pinned]
        return sorted(free, key=lambda one: order_of(one, now_ms))

    def best(self, now_ms: float) -> list[int]:
        """Ids of those that are retained, the last to go first."""
        kept = [one for one in self.states.values() if one.kind is not None]
        ordered = sorted(kept, key=lambda one: order_of(one, now_ms), reverse=True)
        return [one.id for one in ordered]


Copy = tuple[int, str, int]
"""A cell that was filled for a state: which, with its page or a piece of its image."""


@dataclass
class PlainArena:
    """Which copy of each page every state uses; cells are counted one by one."""

    num_cells: int
    landed: PlainIndex = field(default_factory=PlainIndex)
    pending: dict[int, Plain] = field(default_factory=dict)
    copies: dict[int, list[Copy]] = field(default_factory=dict)

    def used(self, *more: list[Copy], without: tuple[int, ...] = ()) -> int:
        held = [self.copies[id] for id in self.copies if id not in without]
        return len({copy for copies in (*held, *more) for copy in copies})

    def num_held(self, of: Callable[[Plain], bool], also: int | None = None) -> int:
        """Cells of some states, and of one more."""
        known = (*self.landed.states.values(), *self.pending.values())
        ids = {one.id for one in known if of(one)} | (set() if also is None else {also})
        return len({copy for id in ids for copy in self.copies[id]})

    def there(self, new: Plain) -> list[Copy]:
        """The copies of its leading common pages that those that have landed brought."""
        most: list[Copy] = []
        for other in self.landed.states.values():
            pairs = zip(new.common(), other.common(), strict=False)
            both = [mine for mine, theirs in pairs if mine == theirs]
            found = self.copies[other.id][IMAGE_CELLS : IMAGE_CELLS + len(both)]
            most = max(most, found, key=len)
        return most

    def copies_of(self, new: Plain) -> list[Copy]:
        """What it would use if it were placed now: its image, then its pages."""
        there = self.there(new)
        image = [(new.id, "image", piece) for piece in range(IMAGE_CELLS)]
        own = [(new.id, "page", page) for page in range(len(there), new.num_pages)]
        return [*image, *there, *own]

    def plan(self, new: Plain, now_ms: float, kept: set[int]) -> tuple[int, list[int]] | None:
        """How many cells are new, and who leaves; None where it cannot be placed."""
        wanted = self.copies_of(new)
        if len(wanted) > self.num_cells:
            return None
        chosen: list[int] = []
        below = [
            one.id
            for one in self.landed.victims(now_ms)
            if order_of(one, now_ms) < order_of(new, now_ms) and one.id not in kept
        ]
        while self.used(wanted, without=tuple(chosen)) > self.num_cells:
            if not below:
                return None
            chosen.append(below.pop(0))
        for id in reversed(chosen.copy()):
            others = tuple(other for other in chosen if other != id)
            if self.used(wanted, without=others) <= self.num_cells:
                chosen.remove(id)
        return len([copy for copy in wanted if copy[0] == new.id]), chosen

    def place(self, new: Plain, victims: list[int]) -> None:
        copies = self.copies_of(new)
        for id in victims:
            self.drop(id)
        self.pending[new.id] = new
        self.copies[new.id] = copies

    def land(self, id: int) -> None:
        new = self.pending.pop(id)
        there = self.there(new)
        self.copies[id][IMAGE_CELLS : IMAGE_CELLS + len(there)] = there
        self.landed.states[id] = new

    def abandon(self, id: int) -> None:
        del self.pending[id], self.copies[id]

    def drop(self, id: int) -> None:
        del self.landed.states[id], self.copies[id]
