"""The objects of the protocols of chats and completions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ignisd.chat.output import CallArguments, CallStart, Channel, Delta, Piece
from ignisd.chat.policies import ReasoningField
from ignisd.http.reply import Outcome, Usage


@dataclass(slots=True)
class Assembled:
    """The pieces of an answer, put together as its reader would."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[CallStart] = field(default_factory=list)
    arguments: list[list[str]] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """Take the next piece."""
        match piece:
            case Delta(channel=Channel.CONTENT):
                self.content.append(piece.text)
            case Delta():
                self.reasoning.append(piece.text)
            case CallStart():
                self.calls.append(piece)
                self.arguments.append([])
            case CallArguments():
                self.arguments[piece.index].append(piece.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShapes:
    """Builds the objects of a chat's answers.

    Args:
        id: of the answer.
        model: its name as served.
        created_s: in Unix seconds.
        reasoning: the field that reasoning is told in.
    """

    id: str
    model: str
    created_s: int
    reasoning: ReasoningField = ReasoningField.REASONING_CONTENT
    _answers: dict[int, Assembled] = field(default_factory=dict)

    def add(self, index: int, piece: Piece) -> None:
        """Take a piece of an answer that is told in one piece."""
        self._answers.setdefault(index, Assembled()).add(piece)

    def whole(self, outcomes: Sequence[Outcome]) -> dict[str, object]:
        """All answers in one object, of the pieces that were added."""
        choices = [
            self._choice(index, self._answers.get(index, Assembled()), outcome)
            for index, outcome in enumerate(outcomes)
        ]
        return self._head("chat.completion", choices)

    def opening(self, index: int) -> Iterable[dict[str, object]]:
        """The first chunk of an answer: whose turn it is."""
        yield self._chunk(index, {"role": "assistant", "content": ""}, None)

    def piece(self, index: int, piece: Piece) -> Iterable[dict[str, object]]:
        """A chunk with a piece of an answer."""
        match piece:
            case Delta(channel=Channel.CONTENT):
                delta: dict[str, object] = {"content": piece.text}
            case Delta():
                delta = self._reasoning(piece.text)
            case CallStart():
                delta = {"tool_calls": [{"index": piece.index, **call_object(piece, "")}]}
            case CallArguments():
                function = {"arguments": piece.text}
                delta = {"tool_calls": [{"index": piece.index, "function": function}]}
        yield self._chunk(index, delta, None)

    def closing(self, index: int, outcome: Outcome) -> dict[str, object]:
        """The chunk that tells why an answer ended."""
        return self._chunk(index, {}, outcome.finish_reason, _open_reasoning(outcome))

    def usage(self) -> dict[str, object]:
        """A chunk without answers."""
        return self._head("chat.completion.chunk", [])

    def _choice(self, index: int, answer: Assembled, outcome: Outcome) -> dict[str, object]:
        content = "".join(answer.content)
        message: dict[str, object] = {
            "role": "assistant",
            "content": content if content or not answer.calls else None,
            "refusal": None,
        }
        if answer.reasoning:
            message |= self._reasoning("".join(answer.reasoning))
        if answer.calls:
            message["tool_calls"] = [
                call_object(start, "".join(arguments))
                for start, arguments in zip(answer.calls, answer.arguments, strict=True)
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": outcome.finish_reason,
            **_open_reasoning(outcome),
        }

    def _reasoning(self, text: str) -> dict[str, object]:
        return dict.fromkeys(self.reasoning.names, text)

    def _chunk(
        self,
        index: int,
        delta: dict[str, object],
        finish_reason: str | None,
        marks: dict[str, object] | None = None,
    ) -> dict[str, object]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._head("chat.completion.chunk", [{**choice, **(marks or {})}])

    def _head(self, kind: str, choices: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainShapes:
    """Builds the objects of a completion's answers, which are alike in one piece and as a stream.

    Args: those of `ChatShapes`.
    """

    id: str
    model: str
    created_s: int
    _texts: dict[int, list[str]] = field(default_factory=dict)

    def add(self, index: int, piece: Piece) -> None:
        """Take a piece of an answer that is told in one piece."""
        if isinstance(piece, Delta):
            self._texts.setdefault(index, []).append(piece.text)

    def whole(self, outcomes: Sequence[Outcome]) -> dict[str, object]:
        """All answers in one object, of the pieces that were added."""
        choices = [
            _text_choice(index, "".join(self._texts.get(index, ())), outcome.finish_reason)
            for index, outcome in enumerate(outcomes)
        ]
        return self._head(choices)

    def opening(self, index: int) -> Iterable[dict[str, object]]:
        """Nothing: the first piece of text opens an answer."""
        return ()

    def piece(self, index: int, piece: Piece) -> Iterable[dict[str, object]]:
        """A chunk with a piece of an answer."""
        if isinstance(piece, Delta):
            yield self._head([_text_choice(index, piece.text, None)])

    def closing(self, index: int, outcome: Outcome) -> dict[str, object]:
        """The chunk that tells why an answer ended."""
        return self._head([_text_choice(index, "", outcome.finish_reason)])

    def usage(self) -> dict[str, object]:
        """A chunk without answers."""
        return self._head([])

    def _head(self, choices: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        }


def call_object(start: CallStart, arguments: str) -> dict[str, object]:
    """A tool call of an answer; `arguments` is JSON text."""
    function = {"name": start.name, "arguments": arguments}
    return {"id": start.id, "type": "function", "function": function}


def usage_object(usage: Usage) -> dict[str, object]:
    """Token counts; cached tokens are always told, 0 on a miss."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings_object(outcome: Outcome) -> dict[str, object]:
    """Reading and writing times under the names that dashboards know.

    Reading lasts from the admission to the first token; rates are null where nothing was timed.
    """
    timings, usage = outcome.timings, outcome.usage
    read_ms = 0.0
    if timings.first_token_ms is not None and timings.admitted_ms is not None:
        read_ms = timings.first_token_ms - timings.admitted_ms
    read = usage.prompt_tokens - usage.cached_tokens
    gaps = max(0, usage.completion_tokens - outcome.num_choices)
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": read,
        "prompt_ms": round(read_ms, 3),
        "prompt_per_second": _rate(read, read_ms),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": round(timings.decode_ms, 3),
        "predicted_per_second": _rate(gaps, timings.decode_ms),
    }


def _rate(count: int, took_ms: float) -> float | None:
    return round(1000 * count / took_ms, 3) if took_ms > 0 else None


def _open_reasoning(outcome: Outcome) -> dict[str, object]:
    """Tells, where it is so, that the answer ended before its reasoning did."""
    return {"reasoning_open": True} if outcome.reasoning_open else {}


def _text_choice(index: int, text: str, finish_reason: str | None) -> dict[str, object]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
