"""From a request for text to its answers, for every protocol."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ignisd.chat.checkpoint import ModelInfo
from ignisd.chat.output import AnswerReader
from ignisd.http.answer import Answer, Shapes
from ignisd.http.choices import take
from ignisd.http.counters import HttpCounters
from ignisd.http.entrance import Entrance
from ignisd.http.guard import scope_key
from ignisd.http.intake import Intake, Prepared, PreparedPlain
from ignisd.http.options import HttpOptions
from ignisd.http.respond import respond
from ignisd.http.reuse import HEADER

P = TypeVar("P", Prepared, PreparedPlain)


class Generating(ABC, Generic[P]):
    """Handles the requests of one protocol, plain or as a stream.

    Args:
        entrance: lets requests in to the model that they are for.
        intake: prepares requests.
        options: bounds, clocks and names.
        counters: told of answers and errors.
    """

    prefix: ClassVar[str]
    """How the names of its answers begin."""

    def __init__(
        self, entrance: Entrance, intake: Intake, options: HttpOptions, counters: HttpCounters
    ) -> None:
        self._entrance = entrance
        self._intake = intake
        self._options = options
        self._counters = counters

    async def __call__(self, request: Request) -> Response:
        """Handle one request."""
        body = await self._entrance.read(request)
        key = scope_key(request)
        name = f"{self.prefix}-{self._options.draw_name()}"
        async with self._entrance.admitted(
            request, body, lambda model: self._prepare(body, model, key)
        ) as (serving, prepared):
            model = serving.model
            wanted = self._intake.engine_requests(prepared, model, name)
            readers = [self._reader(prepared, model) for _ in wanted]
            choices = await take(request, serving, wanted, readers)
        asked = prepared.asked
        answer = Answer(
            choices,
            self._shapes(name, model),
            include_usage=asked.include_usage,
            wants_reuse=asked.return_reuse or request.headers.get(HEADER) == "1",
            counters=self._counters,
            headers=self._headers(prepared),
        )
        return await respond(request, answer, self._options, self._counters, stream=asked.stream)

    @abstractmethod
    async def _prepare(self, body: bytes, model: ModelInfo, key: bytes | None) -> P:
        """Check a body, and make it ready for the engine."""

    @abstractmethod
    def _reader(self, prepared: P, model: ModelInfo) -> AnswerReader:
        """What reads one answer."""

    @abstractmethod
    def _shapes(self, name: str, model: ModelInfo) -> Shapes:
        """The objects of the answers."""

    def _headers(self, prepared: P) -> Mapping[str, str]:
        """What is told of the request in the answer's headers; it has been taken."""
        return {}
