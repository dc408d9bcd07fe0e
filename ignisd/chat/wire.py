"""Request bodies as they come over the wire; unknown fields are passed over.

Every field may be null, which is the same as absent: many clients send all the fields they know.
"""

from msgspec import Struct, field


class WirePart(Struct):
    """One part of a message's content."""

    type: str = "text"
    text: str | None = None


class WireFunction(Struct):
    """Name and arguments of a call; the arguments are JSON text, or already an object."""

    name: str
    arguments: str | dict[str, object] | None = None


class WireToolCall(Struct):
    """A call made by an earlier assistant turn."""

    function: WireFunction
    id: str | None = None


class WireMessage(Struct):
    """One message of the history."""

    role: str
    content: str | list[WirePart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[WireToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class WireStreamOptions(Struct):
    """What a stream carries beside its deltas."""

    include_usage: bool | None = None


class WireResponseFormat(Struct):
    """The shape that the answer must have."""

    type: str = "text"


class WireAsked(Struct, kw_only=True):
    """The fields that a chat and a completion share."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: WireStreamOptions | None = None
    class_name: str | None = field(default=None, name="class")
    cache_salt: str | None = None
    return_reuse: bool | None = None
    reuse: bool | None = None


class WireChat(WireAsked, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: list[WireMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    response_format: WireResponseFormat | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None


class WireCompletion(WireAsked, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
