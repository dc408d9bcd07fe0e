"""POST /v1/chat/completions."""

from collections.abc import Mapping

from ignisd.chat.checkpoint import ModelInfo
from ignisd.chat.output import AnswerReader, CallReading
from ignisd.errors import UnsupportedValue
from ignisd.http.answer import Shapes
from ignisd.http.counters import HttpCounters
from ignisd.http.entrance import Entrance
from ignisd.http.generating import Generating
from ignisd.http.intake import Intake, Prepared
from ignisd.http.notes import NoteLog, warning_header
from ignisd.http.options import HttpOptions
from ignisd.http.shapes import ChatShapes


class ChatCompletions(Generating[Prepared]):
    """Answers chat completions."""

    prefix = "chatcmpl"

    def __init__(
        self, entrance: Entrance, intake: Intake, options: HttpOptions, counters: HttpCounters
    ) -> None:
        super().__init__(entrance, intake, options, counters)
        self._notes = NoteLog()

    async def _prepare(self, body: bytes, model: ModelInfo, key: bytes | None) -> Prepared:
        prepared = await self._intake.prepare_chat(body, model, key)
        if prepared.chat.begun and not model.family.calls:
            raise UnsupportedValue(
                "tool_choice forces a call, but the form in which this model calls is not read.",
                "tool_choice",
            )
        return prepared

    def _reader(self, prepared: Prepared, model: ModelInfo) -> AnswerReader:
        chat, calls = prepared.chat, None
        if chat.reads_calls and model.family.calls:
            calls = CallReading(
                tools=prepared.tools,
                draw_id=lambda: f"call_{self._options.draw_name()}",
                single=chat.single_call,
                in_reasoning=self._options.chat.calls_in_reasoning,
            )
        return AnswerReader(
            model.tokenizer,
            chat.asked.stop,
            in_reasoning=prepared.prompt.in_reasoning,
            begun=chat.begun,
            calls=calls,
            hide_reasoning=not chat.shows_reasoning,
        )

    def _shapes(self, name: str, model: ModelInfo) -> Shapes:
        return ChatShapes(
            id=name,
            model=model.name,
            created_s=int(self._options.now_s()),
            reasoning=self._options.chat.reasoning_field,
        )

    def _headers(self, prepared: Prepared) -> Mapping[str, str]:
        self._notes.write(prepared.chat.notes)
        return warning_header(prepared.chat.notes)
