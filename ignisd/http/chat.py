"""POST /v1/chat/completions."""

import asyncio
from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response

from ignisd.chat.arguments import read_tool
from ignisd.chat.checkpoint import ModelInfo
from ignisd.chat.output import AnswerReader, CallReading
from ignisd.chat.types import Note
from ignisd.engine.types import Started
from ignisd.errors import RequestTimeout
from ignisd.http.answers import JsonResponse
from ignisd.http.body import read_json_body, while_connected
from ignisd.http.counters import HttpCounters
from ignisd.http.intake import Intake, Prepared
from ignisd.http.notes import NoteLog, warning_header
from ignisd.http.options import HttpOptions
from ignisd.http.reply import Outcome, Reply, Step
from ignisd.http.reuse import HEADER, reuse_header, reuse_object
from ignisd.http.service import Service
from ignisd.http.shapes import Assembled, ChatShapes
from ignisd.http.sse import EventStream


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
        prepared = await self._intake.prepare_chat(body, model)
        engine, model = self._service.require()
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
        if prepared.chat.stream:
            try:
                return await while_connected(request, self._stream(answer))
            except BaseException:
                await answer.reply.aclose()
                raise
        async with answer.reply:
            return await while_connected(request, self._plain(answer))

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
            calls=calls,
            hide_reasoning=not chat.shows_reasoning,
        )

    async def _plain(self, answer: "_Answer") -> Response:
        limit_s = self._options.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await answer.collect()
        except TimeoutError as error:
            raise RequestTimeout(limit_s or 0.0) from error

    async def _stream(self, answer: "_Answer") -> Response:
        """The response, once it is known what was reused, or after a short wait for it."""
        first: list[Step] = []
        try:
            async with asyncio.timeout(self._options.header_wait_s):
                first.append(await anext(answer.reply))
        except TimeoutError:
            pass
        headers = warning_header(answer.notes)
        if first and isinstance(first[0], Started):
            headers[HEADER] = reuse_header(first[0].reuse)
        return EventStream(
            answer.reply, first, answer.chunks, self._options, headers, self._counters.count_error
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
    def notes(self) -> tuple[Note, ...]:
        """What was remarked about the request."""
        return self._prepared.chat.notes

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
                    headers = warning_header(self.notes)
                    headers[HEADER] = reuse_header(step.reuse)
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
        return reuse_object(outcome.reuse, self._prepared.prompt.marks)
