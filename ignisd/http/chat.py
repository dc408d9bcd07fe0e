"""POST /v1/chat/completions."""

from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from ignisd.chat.arguments import read_tool
from ignisd.chat.checkpoint import ModelInfo
from ignisd.chat.output import AnswerReader, CallReading
from ignisd.engine.types import Started
from ignisd.errors import UnsupportedValue
from ignisd.http.answers import JsonResponse
from ignisd.http.body import read_json_body
from ignisd.http.counters import HttpCounters
from ignisd.http.guard import scope_key
from ignisd.http.intake import Intake, Prepared
from ignisd.http.notes import NoteLog, warning_header
from ignisd.http.options import HttpOptions
from ignisd.http.reply import Outcome, Reply, Step
from ignisd.http.respond import respond
from ignisd.http.reuse import HEADER, reuse_header, reuse_object
from ignisd.http.service import Service
from ignisd.http.shapes import Assembled, ChatShapes


class ChatCompletions:
    """Answers chat completions, plain or as a stream."""

    def __init__(
        self, service: Service, intake: Intake, options: HttpOptions, counters: HttpCounters
    ) -> None:
        self._service = service
        self._intake = intake
        self._options = options
        self._counters = counters
        self._notes = NoteLog()

    async def __call__(self, request: Request) -> Response:
        """Handle one request."""
        self._service.require()
        body = await read_json_body(request, self._options)
        _, model = self._service.require()
        prepared = await self._intake.prepare_chat(body, model, scope_key(request))
        engine, model = self._service.require()
        if prepared.chat.begun and not model.family.calls:
            raise UnsupportedValue(
                "tool_choice forces a call, but the form in which this model calls is not read.",
                "tool_choice",
            )
        name = f"chatcmpl-{self._options.draw_name()}"
        stream = engine.submit(self._intake.engine_request(prepared, model, name))
        self._notes.write(prepared.chat.notes)
        answer = _Answer(
            reply=Reply(stream, self._reader(prepared, model)),
            shapes=ChatShapes(
                name,
                model.name,
                int(self._options.now_s()),
                self._options.chat.reasoning_field,
            ),
            prepared=prepared,
            wants_reuse=prepared.chat.return_reuse or request.headers.get(HEADER) == "1",
            counters=self._counters,
        )
        stream_it = prepared.chat.stream
        return await respond(request, answer, self._options, self._counters, stream=stream_it)

    def _reader(self, prepared: Prepared, model: ModelInfo) -> AnswerReader:
        chat, calls = prepared.chat, None
        if chat.reads_calls and model.family.calls:
            calls = CallReading(
                tools=[read_tool(tool) for tool in chat.tools],
                draw_id=lambda: f"call_{self._options.draw_name()}",
                single=chat.single_call,
                in_reasoning=self._options.chat.calls_in_reasoning,
            )
        return AnswerReader(
            model.tokenizer,
            chat.stop,
            in_reasoning=prepared.prompt.in_reasoning,
            begun=chat.begun,
            calls=calls,
            hide_reasoning=not chat.shows_reasoning,
        )


class _Answer:
    """One answer on its way out."""

    def __init__(
        self,
        *,
        reply: Reply,
        shapes: ChatShapes,
        prepared: Prepared,
        wants_reuse: bool,
        counters: HttpCounters,
    ) -> None:
        self.reply = reply
        self._shapes = shapes
        self._prepared = prepared
        self._wants_reuse = wants_reuse
        self._counters = counters

    @property
    def headers(self) -> Mapping[str, str]:
        """What was remarked about the request."""
        return warning_header(self._prepared.chat.notes)

    async def collect(self) -> Response:
        """The plain answer."""
        whole = Assembled()
        async for step in self.reply:
            match step:
                case Started():
                    pass
                case Outcome():
                    self._counters.observe(step)
                    body = self._shapes.whole(whole, step, self._reuse(step))
                    headers = {**self.headers, HEADER: reuse_header(step.reuse)}
                    return JsonResponse(body, headers=headers)
                case _:
                    whole.add(step)
        raise AssertionError("a reply ended without an outcome")

    def chunks(self, step: Step) -> Iterable[object]:
        """The objects that a stream sends for a step."""
        match step:
            case Started():
                yield self._shapes.opening()
            case Outcome():
                self._counters.observe(step)
                reuse = self._reuse(step)
                if self._prepared.chat.include_usage:
                    yield self._shapes.closing(step, None)
                    yield self._shapes.usage(step.usage, reuse)
                else:
                    yield self._shapes.closing(step, reuse)
            case _:
                yield self._shapes.piece(step)

    def _reuse(self, outcome: Outcome) -> object | None:
        if not self._wants_reuse:
            return None
        return reuse_object(outcome.reuse)
