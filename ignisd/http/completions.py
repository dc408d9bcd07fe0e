"""POST /v1/completions: a plain prompt goes on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from ignisd.chat.output import AnswerReader, Delta
from ignisd.chat.tokenizer import ChatTokenizer
from ignisd.engine.types import Started
from ignisd.http.answers import JsonResponse
from ignisd.http.body import read_json_body
from ignisd.http.counters import HttpCounters
from ignisd.http.guard import scope_key
from ignisd.http.intake import Intake
from ignisd.http.options import HttpOptions
from ignisd.http.reply import Outcome, Reply, Step
from ignisd.http.respond import respond
from ignisd.http.reuse import HEADER, reuse_header, reuse_object
from ignisd.http.service import Service
from ignisd.http.shapes import timings_object, usage_object


class Completions:
    """Answers completions, plain or as a stream."""

    def __init__(
        self, service: Service, intake: Intake, options: HttpOptions, counters: HttpCounters
    ) -> None:
        self._service = service
        self._intake = intake
        self._options = options
        self._counters = counters

    async def __call__(self, request: Request) -> Response:
        """Handle one request."""
        self._service.require()
        body = await read_json_body(request, self._options)
        _, model = self._service.require()
        prepared = await self._intake.prepare_plain(body, model, scope_key(request))
        engine, model = self._service.require()
        asked = prepared.asked
        name = f"cmpl-{self._options.draw_name()}"
        stream = engine.submit(self._intake.engine_request(prepared, model, name))
        answer = _Answer(
            reply=Reply(stream, AnswerReader(_Verbatim(model.tokenizer), asked.stop)),
            head={
                "id": name,
                "object": "text_completion",
                "created": int(self._options.now_s()),
                "model": model.name,
            },
            include_usage=asked.include_usage,
            wants_reuse=asked.return_reuse or request.headers.get(HEADER) == "1",
            counters=self._counters,
        )
        return await respond(request, answer, self._options, self._counters, stream=asked.stream)


@dataclass(frozen=True, slots=True)
class _Verbatim:
    """A vocabulary in which no token has a meaning: the answer is text and nothing else."""

    tokenizer: ChatTokenizer

    def token_bytes(self, token: int) -> bytes:
        return self.tokenizer.token_bytes(token)

    def token_id(self, text: str) -> int | None:
        return None


@dataclass(slots=True)
class _Answer:
    """One completion on its way out."""

    reply: Reply
    head: Mapping[str, object]
    include_usage: bool
    wants_reuse: bool
    counters: HttpCounters
    headers: Mapping[str, str] = field(default_factory=dict)

    async def collect(self) -> Response:
        texts: list[str] = []
        async for step in self.reply:
            match step:
                case Delta(text=text):
                    texts.append(text)
                case Outcome():
                    self.counters.observe(step)
                    body = {
                        **self._chunk("".join(texts), step.finish_reason),
                        "usage": usage_object(step.usage),
                        "timings": timings_object(step),
                        **self._reuse(step),
                    }
                    return JsonResponse(body, headers={HEADER: reuse_header(step.reuse)})
        raise AssertionError("a reply ended without an outcome")

    def chunks(self, step: Step) -> Iterable[object]:
        match step:
            case Started():
                return  # the first piece of text opens the stream
            case Delta(text=text):
                yield self._chunk(text, None)
            case Outcome():
                self.counters.observe(step)
                closing = {**self._chunk("", step.finish_reason), "timings": timings_object(step)}
                if not self.include_usage:
                    yield {**closing, **self._reuse(step)}
                    return
                yield closing
                usage = usage_object(step.usage)
                yield {**self.head, "choices": [], "usage": usage, **self._reuse(step)}

    def _chunk(self, text: str, finish_reason: str | None) -> dict[str, object]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return {**self.head, "choices": [choice]}

    def _reuse(self, outcome: Outcome) -> dict[str, object]:
        return {"ignis_reuse": reuse_object(outcome.reuse)} if self.wants_reuse else {}
