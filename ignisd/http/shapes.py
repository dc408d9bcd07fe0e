"""The objects of the chat completion protocol."""

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


@dataclass(frozen=True, slots=True)
class ChatShapes:
    """Builds the objects of one answer.

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

    def whole(self, answer: Assembled, outcome: Outcome, reuse: object | None) -> dict[str, object]:
        """The plain answer."""
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
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": outcome.finish_reason,
            **_open_reasoning(outcome),
        }
        return {
            **self._head("chat.completion", [choice]),
            "usage": usage_object(outcome.usage),
            "timings": timings_object(outcome),
            **_optional("ignis_reuse", reuse),
        }

    def opening(self) -> dict[str, object]:
        """The first chunk: whose turn it is."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def piece(self, piece: Piece) -> dict[str, object]:
        """A chunk with a piece of the answer."""
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
        return self._chunk(delta, None)

    def closing(self, outcome: Outcome, reuse: object | None) -> dict[str, object]:
        """The chunk that tells why the answer ended, and how long it took."""
        return {
            **self._chunk({}, outcome.finish_reason, _open_reasoning(outcome)),
            "timings": timings_object(outcome),
            **_optional("ignis_reuse", reuse),
        }

    def usage(self, usage: Usage, reuse: object | None) -> dict[str, object]:
        """The chunk with the usage; it has no choices."""
        return {
            **self._head("chat.completion.chunk", []),
            "usage": usage_object(usage),
            **_optional("ignis_reuse", reuse),
        }

    def _reasoning(self, text: str) -> dict[str, object]:
        return dict.fromkeys(self.reasoning.names, text)

    def _chunk(
        self,
        delta: dict[str, object],
        finish_reason: str | None,
        marks: dict[str, object] | None = None,
    ) -> dict[str, object]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._head("chat.completion.chunk", [{**choice, **(marks or {})}])

    def _head(self, kind: str, choices: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": self.id,
            "object": kind,
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
    gaps = max(0, usage.completion_tokens - 1)
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


def _optional(name: str, value: object | None) -> dict[str, object]:
    return {} if value is None else {name: value}
