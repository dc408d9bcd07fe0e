"""The objects of the chat completion protocol."""

from collections.abc import Mapping
from dataclasses import dataclass

from ignisd.chat.output import Channel, Delta
from ignisd.http.reply import Outcome, Usage


@dataclass(frozen=True, slots=True)
class ChatShapes:
    """Builds the objects of one answer; `created_s` in Unix seconds, `model` as served."""

    id: str
    model: str
    created_s: int

    def whole(
        self, text: Mapping[Channel, str], outcome: Outcome, reuse: object | None
    ) -> dict[str, object]:
        """The plain answer."""
        message: dict[str, object] = {
            "role": "assistant",
            "content": text.get(Channel.CONTENT, ""),
            "refusal": None,
        }
        if Channel.REASONING in text:
            message["reasoning_content"] = text[Channel.REASONING]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": outcome.finish_reason,
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

    def piece(self, delta: Delta) -> dict[str, object]:
        """A chunk with text."""
        return self._chunk({delta.channel.value: delta.text}, None)

    def closing(self, outcome: Outcome, reuse: object | None) -> dict[str, object]:
        """The chunk that tells why the answer ended, and how long it took."""
        return {
            **self._chunk({}, outcome.finish_reason),
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

    def _chunk(self, delta: dict[str, object], finish_reason: str | None) -> dict[str, object]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._head("chat.completion.chunk", [choice])

    def _head(self, kind: str, choices: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        }


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


def _optional(name: str, value: object | None) -> dict[str, object]:
    return {} if value is None else {name: value}
