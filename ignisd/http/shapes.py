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
            **_optional("ignis_reuse", reuse),
        }

    def opening(self) -> dict[str, object]:
        """The first chunk: whose turn it is."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def piece(self, delta: Delta) -> dict[str, object]:
        """A chunk with text."""
        return self._chunk({delta.channel.value: delta.text}, None)

    def closing(self, finish_reason: str, reuse: object | None) -> dict[str, object]:
        """The chunk that tells why the answer ended."""
        return {**self._chunk({}, finish_reason), **_optional("ignis_reuse", reuse)}

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


def _optional(name: str, value: object | None) -> dict[str, object]:
    return {} if value is None else {name: value}
