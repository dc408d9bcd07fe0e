"""What the documented policy promises each request, worked out from the prompts before it.

Nothing here comes from the daemon's own lookup. A prompt is its token ids and the offsets that its
text shows; a state is a row of tokens in a plain list; the promise is a search through all of
them. Requests are told of in the order in which they were sent and answered, so it is known which
states must have been there when a request was sent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

PAGE = 64
SINGLE_FLIGHT_TOKENS = 512
"""What must be gained for a request to wait for another's planned cut."""
JUNCTION_TOKENS = 256
"""What a junction must save to take a slot from another state."""
CAPTURES_UNDER_WAY = 3
"""States that a request may be about to leave."""

START, RESULT = "<|im_start|>", "<tool_response>"
PREFIX, TURN_OPEN, CHECKPOINT, JUNCTION = "prefix", "turn_open", "checkpoint", "junction"
_ORDER = (CHECKPOINT, TURN_OPEN, JUNCTION, PREFIX)
_SINKING = (CHECKPOINT, TURN_OPEN)

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A rendered prompt.

    Args:
        tokens: int32 [T].
        system_end, turn_open, opener: offsets in tokens; None where there is no such place.
    """

    tokens: Tokens
    system_end: int | None
    turn_open: int | None
    opener: int | None

    @property
    def length(self) -> int:
        """Its tokens."""
        return len(self.tokens)

    def floor(self, offset: int) -> int:
        """The page floor of an offset that leaves a token to read."""
        return min(offset, self.length - 1) // PAGE * PAGE

    def cuts(self) -> list[tuple[int, str]]:
        """Where the policy keeps a state of it, and as what: the highest kind of each place."""
        marks = ((self.opener, CHECKPOINT), (self.turn_open, TURN_OPEN), (self.system_end, PREFIX))
        places = {self.floor(at): kind for at, kind in marks if at is not None}
        return sorted((at, kind) for at, kind in places.items() if at)


def read_prompt(tokens: Sequence[int], spelled: Sequence[str]) -> Prompt:
    """The marks of a prompt in ChatML, found in its text.

    Args:
        spelled: the text of each token, special ones included.

    Raises:
        ValueError: the text shows no such form.
    """
    text = "".join(spelled)
    ends = np.cumsum([len(piece) for piece in spelled])
    starts = [at for at in range(len(text)) if text.startswith(START, at)]
    if not starts or not text.startswith("assistant\n", starts[-1] + len(START)):
        raise ValueError("the prompt is not of the form <|im_start|>ROLE ... assistant")
    after = [text[at + len(START) : at + len(START) + 40] for at in starts]
    users = [
        place
        for place, head in enumerate(after)
        if head.startswith("user\n") and not head.startswith(f"user\n{RESULT}")
    ]
    openers = [place for place, head in enumerate(after) if head.startswith("assistant\n")]
    opened = next((place for place in openers if users and place > users[-1]), None)

    def token_at(char: int) -> int:
        return int(np.searchsorted(ends, char, side="right"))

    def after_opener(place: int) -> int:
        return token_at(starts[place] + len(START) + len("assistant\n"))

    has_system = after[0].startswith("system\n") and len(starts) > 1
    return Prompt(
        tokens=np.asarray(tokens, np.int32),
        system_end=token_at(starts[1]) if has_system else None,
        turn_open=None if opened is None else after_opener(opened),
        opener=after_opener(len(starts) - 1),
    )


@dataclass(slots=True, eq=False)
class Kept:
    """A state: the tokens before it, what for, and whether it is the first to give way, because a
    later one took its place or because it saves little."""

    tokens: Tokens
    kind: str
    conversation: int
    sunk: bool = False


@dataclass(frozen=True, slots=True)
class Promise:
    """What a request can count on.

    Args:
        firm: tokens that it resumes at least while there are `needed` slots.
        ample: tokens that it resumes at least while no slot was ever taken from a state.
        needed: slots that hold all states that are not the first to give way, so far.
    """

    firm: int
    ample: int
    needed: int

    def raised_to(self, length: int) -> "Promise":
        """The promise of a request that can also wait for a state of `length` tokens."""
        return replace(self, firm=max(self.firm, length), ample=max(self.ample, length))


@dataclass(slots=True, eq=False)
class Asked:
    """A request under way.

    Args:
        shared: leading tokens in common with some state when it was sent.
        parts: whether it departs from that state, and not only goes on where that ends.
        alone: whether no other request was under way at any time of it.
    """

    prompt: Prompt
    promise: Promise
    shared: int
    parts: bool
    alone: bool


@dataclass(slots=True)
class History:
    """The requests of one server, with everything that the policy keeps of them."""

    states: list[Kept] = field(default_factory=list)
    sent: list[Prompt] = field(default_factory=list)
    under_way: list[Asked] = field(default_factory=list)
    conversations: int = 0
    needed: int = 0

    def ask(self, prompt: Prompt) -> Asked:
        """A request is sent: what the requests answered so far promise it."""
        fits = [one for one in self.states if _begins(prompt, one.tokens)]
        lengths = [len(one.tokens) for one in fits]
        firm = max((len(one.tokens) for one in fits if not one.sunk), default=0)
        shared = _most_shared(prompt, (one.tokens for one in self.states))
        parts = any(
            _shared(prompt.tokens, one.tokens) == shared < min(len(one.tokens), prompt.length)
            for one in self.states
        )
        for other in self.under_way:
            other.alone = False
        promise = Promise(firm, max(lengths, default=0), self.needed)
        asked = Asked(prompt, promise, shared, parts, not self.under_way)
        self.sent.append(prompt)
        self.under_way.append(asked)
        self._count()
        return asked

    def answered(self, asked: Asked, cached: int) -> int:
        """A request has resumed at `cached` tokens and been read; note what it leaves.

        Returns:
            the tokens that it can have resumed at most: whole pages that some other prompt sent so
            far began with.
        """
        self.under_way.remove(asked)
        prompt = asked.prompt
        others = [one.tokens for one in self.sent if one is not prompt]
        most = prompt.floor(_most_shared(prompt, others))
        cuts = dict(prompt.cuts())
        junction = self._junction(asked, most)
        if junction > cached and cuts.get(junction) in (None, *_SINKING):
            cuts[junction] = JUNCTION
        parent = self._state(prompt, cached)
        for position, kind in sorted(cuts.items()):
            held = self._state(prompt, position)
            small = kind == JUNCTION and position - cached < JUNCTION_TOKENS
            if held is not None and position >= cached:
                held.kind = max(held.kind, kind, key=_ORDER.index)
                held.sunk = held.sunk and (small or held.kind in _SINKING)
                self._sink(held.conversation)
            elif position > cached:
                parent = self._publish(prompt.tokens[:position], kind, parent)
                parent.sunk = small
        self._count()
        return most

    def _count(self) -> None:
        protected = sum(not one.sunk for one in self.states)
        self.needed = max(self.needed, protected + CAPTURES_UNDER_WAY * len(self.under_way))

    def _junction(self, asked: Asked, most: int) -> int:
        """Where a request was surely seen to part from what came before; 0 where it was not.

        Requests that ran beside it may have shown it a longer state, and so another parting.
        """
        at = asked.prompt.floor(asked.shared)
        certain = asked.alone or most == at
        return at if asked.parts and certain else 0

    def _publish(self, tokens: Tokens, kind: str, parent: Kept | None) -> Kept:
        """A state of the conversation that it goes on with, or of a new one."""
        if parent is not None and self._goes_on(parent, kind):
            conversation = parent.conversation
        else:
            self.conversations += 1
            conversation = self.conversations
        self.states.append(Kept(tokens, kind, conversation))
        self._sink(conversation)
        return self.states[-1]

    def _goes_on(self, parent: Kept, kind: str) -> bool:
        """From its newest state, or from the opening of its last turn to that of the next."""
        mine = [one for one in self.states if one.conversation == parent.conversation]
        opened = [one for one in mine if one.kind == TURN_OPEN]
        return mine[-1] is parent or (kind == TURN_OPEN and parent in opened[-1:])

    def _sink(self, conversation: int) -> None:
        """A conversation keeps its latest checkpoint and the latest that opened a turn."""
        mine = [
            one for one in self.states if one.conversation == conversation and one.kind in _SINKING
        ]
        opened = [one for one in mine if one.kind == TURN_OPEN]
        for one in mine:
            if one not in (mine[-1], *opened[-1:]):
                one.sunk = True

    def _state(self, prompt: Prompt, length: int) -> Kept | None:
        return next(
            (
                one
                for one in self.states
                if len(one.tokens) == length and _begins(prompt, one.tokens)
            ),
            None,
        )


def single_flight(leader: Prompt, follower: Prompt, promised: int) -> int:
    """Tokens that a follower gets of a leader that is read beside it; 0 where it need not wait."""
    lengths = [
        at
        for at, _ in leader.cuts()
        if _begins(follower, leader.tokens[:at]) and at >= promised + SINGLE_FLIGHT_TOKENS
    ]
    return max(lengths, default=0)


def _begins(prompt: Prompt, tokens: Tokens) -> bool:
    """Whether a prompt begins with these tokens and goes on."""
    return prompt.length > len(tokens) and np.array_equal(prompt.tokens[: len(tokens)], tokens)


def _most_shared(prompt: Prompt, others: Iterable[Tokens]) -> int:
    return max((_shared(prompt.tokens, tokens) for tokens in others), default=0)


def _shared(one: Tokens, other: Tokens) -> int:
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length
