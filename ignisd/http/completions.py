"""POST /v1/completions: a plain prompt goes on."""

from dataclasses import dataclass

from ignisd.chat.checkpoint import ModelInfo
from ignisd.chat.output import AnswerReader
from ignisd.chat.tokenizer import ChatTokenizer
from ignisd.http.answer import Shapes
from ignisd.http.generating import Generating
from ignisd.http.intake import PreparedPlain
from ignisd.http.shapes import PlainShapes


class Completions(Generating[PreparedPlain]):
    """Answers completions."""

    prefix = "cmpl"

    async def _prepare(self, body: bytes, model: ModelInfo, key: bytes | None) -> PreparedPlain:
        return await self._intake.prepare_plain(body, model, key)

    def _reader(self, prepared: PreparedPlain, model: ModelInfo) -> AnswerReader:
        return AnswerReader(_Verbatim(model.tokenizer), prepared.asked.stop)

    def _shapes(self, name: str, model: ModelInfo) -> Shapes:
        return PlainShapes(id=name, model=model.name, created_s=int(self._options.now_s()))


@dataclass(frozen=True, slots=True)
class _Verbatim:
    """A vocabulary in which no token has a meaning: the answer is text and nothing else."""

    tokenizer: ChatTokenizer

    def token_bytes(self, token: int) -> bytes:
        return self.tokenizer.token_bytes(token)

    def token_id(self, text: str) -> int | None:
        return None
