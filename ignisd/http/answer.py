"""What is told of the answers to a request, in one piece or as a stream, in any protocol."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from starlette.responses import Response

from ignisd.chat.output import Piece
from ignisd.engine.types import Started
from ignisd.http.answers import JsonResponse
from ignisd.http.choices import Choices, Said, together
from ignisd.http.counters import HttpCounters
from ignisd.http.reply import Outcome
from ignisd.http.reuse import HEADER, reuse_header, reuse_object
from ignisd.http.shapes import timings_object, usage_object


class Shapes(Protocol):
    """The objects of a protocol."""

    def add(self, index: int, piece: Piece) -> None:
        """Take a piece of an answer that is told in one piece."""
        ...

    def whole(self, outcomes: Sequence[Outcome]) -> dict[str, object]:
        """All answers in one object, of the pieces that were added."""
        ...

    def opening(self, index: int) -> Iterable[dict[str, object]]:
        """The chunks that open an answer."""
        ...

    def piece(self, index: int, piece: Piece) -> Iterable[dict[str, object]]:
        """The chunks for a piece of an answer."""
        ...

    def closing(self, index: int, outcome: Outcome) -> dict[str, object]:
        """The chunk that tells why an answer ended."""
        ...

    def usage(self) -> dict[str, object]:
        """A chunk without answers, for the token counts."""
        ...


class Answer:
    """The answers to one request on their way out.

    Token counts, times and what was reused are told once, when the last answer has ended.

    Args:
        choices: where they come from.
        shapes: their protocol.
        include_usage: a stream has a chunk for the token counts.
        wants_reuse: `ignis_reuse` is told.
        counters: told of each answer that is completed.
        headers: beside what was reused.
    """

    def __init__(
        self,
        choices: Choices,
        shapes: Shapes,
        *,
        include_usage: bool,
        wants_reuse: bool,
        counters: HttpCounters,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.choices = choices
        self.headers = dict(headers or {})
        self._shapes = shapes
        self._include_usage = include_usage
        self._wants_reuse = wants_reuse
        self._counters = counters
        self._ends: dict[int, Outcome] = {}

    async def collect(self) -> Response:
        """The plain answer."""
        async for said in self.choices:
            match said.step:
                case Started():
                    pass
                case Outcome():
                    self._end(said.index, said.step)
                case _:
                    self._shapes.add(said.index, said.step)
        body = {
            **self._shapes.whole(self._outcomes()),
            "usage": usage_object(self._sum().usage),
            "timings": timings_object(self._sum()),
            **self._reuse(),
        }
        return JsonResponse(body, headers={**self.headers, HEADER: reuse_header(self._sum().reuse)})

    def chunks(self, said: Said) -> Iterable[object]:
        """The objects that a stream sends for a step."""
        match said.step:
            case Started():
                yield from self._shapes.opening(said.index)
            case Outcome():
                self._end(said.index, said.step)
                yield from self._closing(said.index, said.step)
            case _:
                yield from self._shapes.piece(said.index, said.step)

    def _closing(self, index: int, outcome: Outcome) -> Iterable[object]:
        closing = self._shapes.closing(index, outcome)
        if len(self._ends) < self.choices.num_choices:
            yield closing
            return
        closing["timings"] = timings_object(self._sum())
        if self._include_usage:
            yield closing
            closing = {**self._shapes.usage(), "usage": usage_object(self._sum().usage)}
        yield {**closing, **self._reuse()}

    def _end(self, index: int, outcome: Outcome) -> None:
        self._ends[index] = outcome
        self._counters.observe(outcome)

    def _outcomes(self) -> Sequence[Outcome]:
        return [self._ends[index] for index in range(self.choices.num_choices)]

    def _sum(self) -> Outcome:
        return together(self._outcomes())

    def _reuse(self) -> dict[str, object]:
        return {"ignis_reuse": reuse_object(self._sum().reuse)} if self._wants_reuse else {}
