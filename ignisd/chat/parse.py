"""A request body becomes a checked `ChatRequest`, or a `RequestError` that names the field."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ignisd.chat import codec
from ignisd.chat.asked import read_asked
from ignisd.chat.calls import MOST_NAME_CHARS, callable_name, forced_opening
from ignisd.chat.foreign import refuse_foreign
from ignisd.chat.policies import ChatPolicies
from ignisd.chat.system import place_messages, without_volatile_header
from ignisd.chat.types import ChatRequest, Message, Note, NoteKind, ToolCall
from ignisd.chat.wire import WireChat, WireMessage, WirePart, WireToolCall
from ignisd.errors import RequestError, UnsupportedValue, shown

_DECODER = msgspec.json.Decoder(WireChat)
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_RESERVED = ("messages", "tools", "add_generation_prompt")


def parse_chat(body: bytes, policies: ChatPolicies | None = None) -> ChatRequest:
    """Check the body of a chat completion.

    Args:
        body: JSON text.
        policies: of the server; None stands for the defaults.

    Raises:
        RequestError: malformed, of the wrong type or out of range.
        UnsupportedValue: well formed, but nothing that this server can honour.
    """
    wire = codec.decode(body, _DECODER)
    refuse_foreign(body)
    _refuse_unsupported(wire)
    asked = read_asked(wire, _max_tokens(wire))
    messages, notes = _messages(wire.messages, policies or ChatPolicies())
    tools, skipped = _tools(wire.tools or [])
    kwargs = _template_kwargs(wire)
    calls = _calls(wire, tools)
    return ChatRequest(
        asked=asked,
        messages=messages,
        tools=tools,
        template_kwargs=kwargs,
        reads_calls=calls.read,
        single_call=calls.single,
        begun=calls.begun,
        shows_reasoning=kwargs.get("enable_thinking") is not False,
        notes=notes + skipped,
    )


def _refuse_unsupported(wire: WireChat) -> None:
    if wire.logprobs:
        raise UnsupportedValue("logprobs is true, but this server returns none.", "logprobs")
    if wire.top_logprobs:
        raise UnsupportedValue(
            f"top_logprobs is {shown(wire.top_logprobs)}, but this server returns none.",
            "top_logprobs",
        )
    if wire.response_format is not None and wire.response_format.type != "text":
        raise UnsupportedValue(
            f"response_format.type is {wire.response_format.type!r}, but only 'text' is served.",
            "response_format",
        )


def _max_tokens(wire: WireChat) -> int | None:
    old, new = wire.max_tokens, wire.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"max_tokens is {shown(old)} and max_completion_tokens is {shown(new)}; they must "
            "agree, or one must be absent.",
            "max_tokens",
        )
    for name, value in (("max_tokens", old), ("max_completion_tokens", new)):
        if value is not None and value < 1:
            raise RequestError(f"{name} is {shown(value)}, but must be at least 1.", name)
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


def _tools(
    tools: list[dict[str, object]],
) -> tuple[tuple[dict[str, object], ...], tuple[Note, ...]]:
    """The function tools; other kinds are for other servers and are passed over with a note."""
    kept, notes = [], []
    for index, tool in enumerate(tools):
        kind = tool.get("type", "function")
        if kind != "function":
            notes.append(Note(NoteKind.TOOL_SKIPPED, shown(kind)))
            continue
        name, path = _function_name(tool), f"tools[{index}].function.name"
        if name is None:
            raise RequestError(f"{path} must be a string that is not empty.", path)
        if not callable_name(name):
            raise RequestError(
                f"{path} is {name[:60]!r}, but must have at most {MOST_NAME_CHARS} characters and "
                "neither angle brackets nor line breaks: it could not be called.",
                path,
            )
        kept.append(tool)
    return tuple(kept), tuple(notes)


def _function_name(tool: dict[str, object]) -> str | None:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) and name else None


@dataclass(frozen=True, slots=True)
class _Calls:
    """Whether calls are looked for in an answer, at most one of them, and how it has to begin."""

    read: bool
    single: bool
    begun: str = ""


def _calls(wire: WireChat, tools: Sequence[dict[str, object]]) -> _Calls:
    choice, single = wire.tool_choice, wire.parallel_tool_calls is False
    if choice in (None, "auto", "none"):
        return _Calls(bool(tools) and choice != "none", single)
    names = [_function_name(tool) for tool in tools]
    if choice == "required":
        if not names:
            raise RequestError("tool_choice is 'required', but there are no tools.", "tool_choice")
        return _Calls(True, single, forced_opening(names[0] if len(names) == 1 else None))
    if not isinstance(choice, dict):
        raise RequestError(
            f"tool_choice is {choice!r}, but must be auto, none, required or a function.",
            "tool_choice",
        )
    if choice.get("type", "function") != "function":
        raise UnsupportedValue(
            f"tool_choice.type is {shown(choice['type'])}, but only a function can be chosen.",
            "tool_choice",
        )
    name = _function_name(choice)
    if name is None or name not in names:
        raise RequestError(
            f"tool_choice names the function {name!r}, but tools has {len(names)} functions and "
            "none of this name.",
            "tool_choice.function.name",
        )
    return _Calls(True, True, forced_opening(name))


def _messages(
    wires: list[WireMessage], policies: ChatPolicies
) -> tuple[tuple[Message, ...], tuple[Note, ...]]:
    if not wires:
        raise RequestError("messages must have at least one message, but has none.", "messages")
    notes = []
    if policies.strip_volatile_headers and wires[0].role in ("system", "developer"):
        kept = _without_volatile_header(wires[0])
        if kept is not wires[0]:
            wires = [kept, *wires[1:]]
            notes.append(Note(NoteKind.VOLATILE_HEADER))
    messages = [_message(wire, f"messages[{index}]") for index, wire in enumerate(wires)]
    placed, moved = place_messages(messages, policies)
    if moved:
        notes.append(Note(NoteKind.MESSAGE_MOVED, policies.developer))
    return placed, tuple(notes)


def _without_volatile_header(wire: WireMessage) -> WireMessage:
    """The same message if it has no such header; a header may be a part of its own."""
    content = wire.content
    if isinstance(content, str):
        text = without_volatile_header(content)
        return wire if text == content else msgspec.structs.replace(wire, content=text)
    if not content or content[0].text is None:
        return wire
    text = without_volatile_header(content[0].text)
    if text == content[0].text:
        return wire
    parts = [msgspec.structs.replace(content[0], text=text), *content[1:]]
    return msgspec.structs.replace(wire, content=parts)


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
        role="tool" if role == "function" else role,
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
