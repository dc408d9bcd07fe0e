"""A device whose model is its history, to test scheduling without arithmetic.

Pages hold the tokens that were written to them. The recurrent state is a hash of all tokens read
so far and their positions. The next token is a function of that hash, and the device refuses to
compute it when the tokens that the page table leads to do not hash to the state, when a position is
off, or when an image is claimed that was never written. So whatever goes wrong in scheduling shows
as a `Disagreement` or as another answer than that of `cold_answer`, which uses no device at all.

What goes down leaves its page at once and reaches its cell when the round is fetched, as on a
device with a memory of its own: who reads a cell too early finds what it held before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ignisd.engine.moves import Lower
from ignisd.engine.types import LaneStart, PrefillWork, Round, RoundResult, SamplingParams
from state.spec import PAGE_TOKENS

VOCABULARY = 509
CELL_BYTES = PAGE_TOKENS * 8
POISON = -1
"""What never written rows of a page hold; no token."""

Rows = npt.NDArray[np.int64]


class Disagreement(Exception):
    """Pages, state and positions do not belong together."""


@dataclass(frozen=True)
class Image:
    """A state: the hash of `position` tokens."""

    history: int
    position: int


EMPTY = Image(0, 0)


def history_of(tokens: Rows, start: int = 0) -> int:
    """What tokens at positions from `start` on add to the hash of a history."""
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    places = np.arange(start + 1, start + 1 + len(tokens), dtype=np.uint64)
    mixed ^= places * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return int(mixed.sum(dtype=np.uint64))


def read_on(image: Image, tokens: Rows) -> Image:
    """The state after more tokens."""
    history = (image.history + history_of(tokens, image.position)) % 2**64
    return Image(history, image.position + len(tokens))


@dataclass(frozen=True)
class Said:
    """What penalties look at: hashes of which tokens the prompt has, and of those generated."""

    prompt: int = 0
    generated: int = 0

    def add(self, token: int) -> "Said":
        """After one token more was sampled."""
        return Said(self.prompt, self.generated + history_of(np.asarray([token], np.int64)))


def said_of(prompt: Rows, answer: Rows) -> Said:
    """What was said by a prompt and an answer so far."""
    generated = sum(history_of(answer[place : place + 1]) for place in range(len(answer)))
    return Said(history_of(np.unique(prompt)), generated)


def next_token(image: Image, sampling: SamplingParams, said: Said) -> int:
    """The token that follows a history."""
    drawn = image.history ^ (sampling.seed * 0x9E3779B1)
    if sampling.presence_penalty or sampling.frequency_penalty:
        drawn ^= said.generated
    if sampling.repetition_penalty != 1.0:
        drawn ^= said.prompt + said.generated
    return drawn % VOCABULARY


def cold_answer(
    prompt: Sequence[int], sampling: SamplingParams, max_tokens: int, stop_ids: frozenset[int]
) -> list[int]:
    """The tokens that a request must deliver, whatever else happens on the server."""
    image = read_on(EMPTY, np.asarray(prompt, np.int64))
    said = said_of(np.asarray(prompt, np.int64), np.empty(0, np.int64))
    answer: list[int] = []
    while len(answer) < max_tokens:
        token = next_token(image, sampling, said)
        if token in stop_ids:
            break
        answer.append(token)
        said = said.add(token)
        image = read_on(image, np.asarray([token], np.int64))
    return answer


def image_rows(image: Image, num_cells: int) -> Rows:
    """An image spread over cells, so that the loss of any of them is noticed."""
    signed = image.history - 2**64 if image.history >= 2**63 else image.history
    rows = np.full((num_cells, PAGE_TOKENS), POISON, np.int64)
    for number in range(num_cells):
        rows[number, :3] = (signed, image.position, number)
    return rows


@dataclass
class Lane:
    """A row of the decode batch."""

    image: Image = EMPTY
    sampling: SamplingParams = field(default_factory=SamplingParams)
    said: Said = field(default_factory=Said)
    last_token: int | None = None

    def sample(self) -> int:
        """Draw the next token, which is fed next."""
        self.last_token = next_token(self.image, self.sampling, self.said)
        self.said = self.said.add(self.last_token)
        return self.last_token


RAISE_MS = 0.25
"""What each thing that comes up takes."""


@dataclass(frozen=True)
class Crossing:
    """Bytes on their way to cells, which lie there once their round was fetched."""

    number: int
    cells: tuple[int, ...]
    rows: Rows


@dataclass
class FakeDevice:
    """Executes rounds as a `Runner` does: at dispatch, in order; results wait for `fetch`.

    `loses` says of a capture at a position that it is not written, and so not reported either.
    """

    num_pages: int
    num_lanes: int
    num_slots: int
    chunk_tokens: int
    num_cells: int = 0
    loses: Callable[[int], bool] = lambda position: False
    rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pages = np.full((self.num_pages, PAGE_TOKENS), POISON, np.int64)
        self.lanes = [Lane() for _ in range(self.num_lanes)]
        self.slots: list[Image | None] = [None] * self.num_slots
        self.cells = np.full((self.num_cells, PAGE_TOKENS), POISON, np.int64)
        self.crossing: list[Crossing] = []

    @property
    def cell_rows(self) -> npt.NDArray[np.uint8]:
        """[num_cells, CELL_BYTES]: the same memory as bytes."""
        return self.cells.view(np.uint8)

    def run(self, work: Round) -> object:
        """Execute a round; the returned handle is its result."""
        self.rounds.append(work)
        tokens: dict[int, int] = {}
        for lower in work.lowers:
            self.lower(lower, work.number)
        captured = [
            self.write_slot(save.slot, self.lanes[save.lane].image, save.position)
            for save in work.saves
            if not self.loses(save.position)
        ]
        for up in work.raises:
            self.pages[list(up.pages)] = self.cells[list(up.cells)]
        for start in work.starts:
            self.start(start, captured)
        if work.prefill is not None:
            self.prefill(work.prefill, captured, tokens)
        for step in work.decode:
            lane = self.lanes[step.lane]
            if lane.last_token is None:
                raise Disagreement(f"lane {step.lane} decodes before its prompt was read")
            fed = np.asarray([lane.last_token], np.int64)
            self.write_pages(step.table, step.position, fed)
            lane.image = self.agreed(step.table, read_on(lane.image, fed), step.position + 1)
            if step.sequence_id in tokens:
                raise Disagreement(f"request {step.sequence_id} samples twice in a round")
            tokens[step.sequence_id] = lane.sample()
        rows = 0 if work.prefill is None else len(work.prefill.tokens)
        raised = len(work.raises) + sum(bool(start.image_cells) for start in work.starts)
        return RoundResult(work.number, tokens, tuple(captured), rows, raised * RAISE_MS)

    def lower(self, work: Lower, number: int) -> None:
        """Send pages and perhaps an image down."""
        self.crossing.append(Crossing(number, work.cells, self.pages[list(work.pages)]))
        if not work.image_cells:
            return
        if work.lane is not None:
            image = self.lanes[work.lane].image
        else:
            assert work.slot is not None, f"an image for cells {work.image_cells} from nowhere"
            image = self.read_slot(work.slot)
        rows = image_rows(image, len(work.image_cells))
        self.crossing.append(Crossing(number, work.image_cells, rows))

    def read_cells(self, cells: tuple[int, ...]) -> Image:
        """The image that these cells hold together."""
        parts = {tuple(self.cells[cell, :2].tolist()) for cell in cells}
        numbers = self.cells[list(cells), 2].tolist()
        if len(parts) != 1 or numbers != list(range(len(cells))):
            raise Disagreement(f"cells {cells} hold no image, or parts of several")
        history, position = parts.pop()
        return Image(history % 2**64, position)

    def start(self, work: LaneStart, captured: list[int]) -> None:
        """Begin in a lane, or go on there."""
        image = EMPTY
        if work.image_cells:
            image = self.read_cells(work.image_cells)
        elif work.slot is not None:
            image = self.read_slot(work.slot)
        if image.position != work.position:
            raise Disagreement(f"start at {work.position} from an image at {image.position}")
        if work.keep_slot is not None:
            captured.append(self.write_slot(work.keep_slot, image, work.position))
        answer = np.empty(0, np.int64) if work.answer is None else work.answer.astype(np.int64)
        lane = Lane(image, work.sampling, said_of(work.prompt.astype(np.int64), answer))
        if work.answer is not None:
            lane.last_token = int(work.answer[-1])
        self.lanes[work.lane] = lane

    def fetch(self, handle: object) -> RoundResult:
        """The result of a dispatched round, of which all that went down has arrived."""
        assert isinstance(handle, RoundResult)
        for one in self.crossing:
            if one.number <= handle.number:
                self.cells[list(one.cells)] = one.rows
        self.crossing = [one for one in self.crossing if one.number > handle.number]
        return handle

    def prefill(self, work: PrefillWork, captured: list[int], tokens: dict[int, int]) -> None:
        """Read a chunk, yielding the images inside it."""
        if not 0 < len(work.tokens) <= self.chunk_tokens:
            raise Disagreement(f"a chunk of {len(work.tokens)} tokens")
        if work.start % PAGE_TOKENS or (len(work.tokens) % PAGE_TOKENS and not work.last):
            raise Disagreement(f"a chunk of {len(work.tokens)} tokens at {work.start}")
        lane = self.lanes[work.lane]
        self.agreed(work.table, lane.image, work.start)
        read = work.tokens.astype(np.int64)
        self.write_pages(work.table, work.start, read)
        first = lane.image
        for capture in work.captures:
            if self.loses(capture.position):
                continue
            image = read_on(first, read[: capture.position - work.start])
            captured.append(self.write_slot(capture.slot, image, capture.position))
        lane.image = self.agreed(work.table, read_on(first, read), work.start + len(read))
        if work.last:
            tokens[work.sequence_id] = lane.sample()

    def read_slot(self, slot: int) -> Image:
        """The image in a slot, which stays there."""
        image = self.slots[slot]
        if image is None:
            raise Disagreement(f"slot {slot} was never written")
        return image

    def write_slot(self, slot: int, image: Image, position: int) -> int:
        """Put an image into a slot."""
        if image.position != position:
            raise Disagreement(f"capture at {position} of a state at {image.position}")
        self.slots[slot] = image
        return slot

    def write_pages(self, table: tuple[int, ...], position: int, tokens: Rows) -> None:
        """Write tokens where a table leads to."""
        places = np.arange(position, position + len(tokens))
        if places[-1] // PAGE_TOKENS >= len(table):
            raise Disagreement(f"position {places[-1]} is beyond {len(table)} pages")
        pages = np.asarray(table)[places // PAGE_TOKENS]
        if (pages == 0).any():
            raise Disagreement("a write to the null page")
        self.pages[pages, places % PAGE_TOKENS] = tokens

    def agreed(self, table: tuple[int, ...], image: Image, position: int) -> Image:
        """The image, if it stands for exactly the first `position` tokens in the pages."""
        if image.position != position:
            raise Disagreement(f"the state stands at {image.position}, the work at {position}")
        seen = self.pages[np.asarray(table, np.intp)].ravel()[:position]
        if (seen == POISON).any():
            raise Disagreement(f"a row below {position} was never written")
        if history_of(seen) != image.history:
            raise Disagreement(f"pages and state differ at {position}")
        return image
