"""A request body becomes a checked `ChatRequest`, or a `RequestError` that names the field."""

import msgspec

from ignisd.chat import codec
from ignisd.chat.limits import check_sampling, check_stop
from ignisd.chat.system import place_system_messages
from ignisd.chat.types import ChatRequest, Message, SamplingFields, ToolCall
from ignisd.chat.wire import WireChat, WireMessage, WirePart, WireToolCall
from ignisd.errors import RequestError, UnsupportedValue
from state.spec import Class

AGENT_SUFFIX = "@agent"
"""A model name that ends so asks for the class `agent`."""

_DECODER = msgspec.json.Decoder(WireChat)
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_RESERVED = ("messages", "tools", "add_generation_prompt")


def parse_chat(body: bytes) -> ChatRequest:
    """Check the body of a chat completion.

    Raises:
        RequestError: malformed, of the wrong type or out of range.
        UnsupportedValue: well formed, but nothing that this server can honour.
    """
    wire = codec.decode(body, _DECODER)
    _refuse_unsupported(wire)
    sampling = SamplingFields(
        temperature=wire.temperature,
        top_k=wire.top_k,
        top_p=wire.top_p,
        min_p=wire.min_p,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        repetition_penalty=wire.repetition_penalty,
        seed=wire.seed,
    )
    check_sampling(sampling)
    model, cls = _model_and_class(wire)
    options = wire.stream_options
    return ChatRequest(
        model=model,
        messages=_messages(wire.messages),
        tools=_tools(wire.tools or []),
        template_kwargs=_template_kwargs(wire),
        sampling=sampling,
        max_tokens=_max_tokens(wire),
        stop=check_stop(wire.stop),
        stream=bool(wire.stream),
        include_usage=options is not None and bool(options.include_usage),
        cls=cls,
        reuse=wire.reuse is not False,
        return_reuse=bool(wire.return_reuse),
        cache_salt=wire.cache_salt,
    )


def _refuse_unsupported(wire: WireChat) -> None:
    if wire.n is not None and wire.n != 1:
        if wire.n < 1:
            raise RequestError(f"n is {wire.n}, but must be at least 1.", "n")
        raise UnsupportedValue(f"n is {wire.n}, but this server answers with n = 1 only.", "n")
    if wire.logprobs:
        raise UnsupportedValue("logprobs is true, but this server returns none.", "logprobs")
    if wire.top_logprobs:
        raise UnsupportedValue(
            f"top_logprobs is {wire.top_logprobs}, but this server returns none.", "top_logprobs"
        )
    if wire.logit_bias:
        raise UnsupportedValue(
            f"logit_bias has {len(wire.logit_bias)} entries, but none can be honoured.",
            "logit_bias",
        )
    if wire.response_format is not None and wire.response_format.type != "text":
        raise UnsupportedValue(
            f"response_format.type is {wire.response_format.type!r}, but only 'text' is served.",
            "response_format",
        )
    if wire.tool_choice not in (None, "auto", "none"):
        raise UnsupportedValue(
            "tool_choice must be 'auto' or 'none'; a call cannot be forced.", "tool_choice"
        )


def _model_and_class(wire: WireChat) -> tuple[str | None, Class]:
    model, named = wire.model, wire.class_name
    if named is not None and named not in tuple(Class):
        raise RequestError(f"class is {named!r}, but must be one of {_listed(Class)}.", "class")
    if model is not None and model.endswith(AGENT_SUFFIX):
        return model.removesuffix(AGENT_SUFFIX) or None, Class(named or Class.AGENT)
    return model, Class(named or Class.INTERACTIVE)


def _max_tokens(wire: WireChat) -> int | None:
    old, new = wire.max_tokens, wire.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"max_tokens is {old} and max_completion_tokens is {new}; they must agree, or one "
            "must be absent.",
            "max_tokens",
        )
    for name, value in (("max_tokens", old), ("max_completion_tokens", new)):
        if value is not None and value < 1:
            raise RequestError(f"{name} is {value}, but must be at least 1.", name)
    return new if new is not None else old


def _template_kwargs(wire: WireChat) -> dict[str, object]:
    kwargs = dict(wire.chat_template_kwargs or {})
    for name in _RESERVED:
        if name in kwargs:
            raise RequestError(
                f"chat_template_kwargs must not set {name}.", f"chat_template_kwargs.{name}"
            )
    effort = wire.reasoning_effort
    if effort is not None and effort not in _EFFORTS:
        raise RequestError(
            f"reasoning_effort is {effort!r}, but must be one of {_listed(_EFFORTS)}.",
            "reasoning_effort",
        )
    if effort == "none":
        kwargs.setdefault("enable_thinking", False)
    elif effort is not None:
        kwargs.setdefault("reasoning_effort", effort)
    if wire.enable_thinking is not None:
        kwargs["enable_thinking"] = wire.enable_thinking
    if wire.preserve_thinking is not None:
        kwargs["preserve_thinking"] = wire.preserve_thinking
    # One family of templates keeps all reasoning when this is undefined, so it is always defined.
    kwargs.setdefault("preserve_thinking", False)
    return kwargs


def _tools(tools: list[dict[str, object]]) -> tuple[dict[str, object], ...]:
    """The function tools; other kinds are for other servers and are passed over."""
    kept = []
    for index, tool in enumerate(tools):
        if tool.get("type", "function") != "function":
            continue
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            path = f"tools[{index}].function.name"
            raise RequestError(f"{path} must be a string that is not empty.", path)
        kept.append(tool)
    return tuple(kept)


def _messages(wires: list[WireMessage]) -> tuple[Message, ...]:
    if not wires:
        raise RequestError("messages must have at least one message, but has none.", "messages")
    return place_system_messages(
        [_message(wire, f"messages[{index}]") for index, wire in enumerate(wires)]
    )


def _message(wire: WireMessage, path: str) -> Message:
    role = wire.role
    if role not in _ROLES:
        raise RequestError(
            f"{path}.role is {role!r}, but must be one of {_listed(_ROLES)}.", f"{path}.role"
        )
    assistant = role == "assistant"
    reasoning = wire.reasoning_content if wire.reasoning_content is not None else wire.reasoning
    calls = tuple(
        _tool_call(call, f"{path}.tool_calls[{index}]")
        for index, call in enumerate(wire.tool_calls or [])
    )
    return Message(
        role={"developer": "system", "function": "tool"}.get(role, role),
        content=_content(wire.content, path),
        reasoning=reasoning if assistant else None,
        tool_calls=calls if assistant else (),
        tool_call_id=wire.tool_call_id,
        name=wire.name,
    )


def _content(content: str | list[WirePart] | None, path: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        where = f"{path}.content[{index}]"
        if part.type not in ("text", "input_text", "output_text", "refusal"):
            raise UnsupportedValue(
                f"{where}.type is {part.type!r}, but the served model reads text only.",
                f"{where}.type",
            )
        if part.text is None and part.type != "refusal":
            raise RequestError(f"{where}.text is missing.", f"{where}.text")
        texts.append(part.text or "")
    return "".join(texts)


def _tool_call(wire: WireToolCall, path: str) -> ToolCall:
    where = f"{path}.function.arguments"
    arguments = wire.function.arguments
    if isinstance(arguments, str):
        try:
            parsed: object = msgspec.json.decode(arguments.encode()) if arguments.strip() else {}
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"{where} is not valid JSON: {error}.", where) from error
        if not isinstance(parsed, dict):
            raise RequestError(f"{where} must be a JSON object.", where)
        arguments = parsed
    return ToolCall(wire.id, wire.function.name, arguments or {})


def _listed(names: object) -> str:
    return ", ".join(str(name) for name in names)  # type: ignore[attr-defined]
