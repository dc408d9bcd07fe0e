"""What a chat request asks for, once it has been checked, and what its rendering yields."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from state.retention import Marks
from state.spec import Class

TokenArray: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an earlier assistant turn made; `arguments` keep the client's key order."""

    id: str | None
    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the history. `role` is system, developer, user, assistant or tool."""

    role: str
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """Sampling as one source states it; None leaves the field to the next source.

    Temperature 0 is greedy; `top_k` 0 is off; `seed` is any integer, None draws a fresh one.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What a checkpoint's generation_config says: sampling, and the tokens that end an answer."""

    sampling: SamplingFields = field(default_factory=SamplingFields)
    eos_ids: tuple[int, ...] = ()


class NoteKind(enum.StrEnum):
    """Something that was done to a request and that its sender should know of.

    TOOL_SKIPPED: a tool that is no function was passed over; `detail` is its type.
    VOLATILE_HEADER: a first system line that changes with every request was dropped.
    MESSAGE_MOVED: a message was moved to the head, which costs the conversation its reuse.
    """

    TOOL_SKIPPED = "tool-skipped"
    VOLATILE_HEADER = "volatile-header"
    MESSAGE_MOVED = "message-moved"


@dataclass(frozen=True, slots=True)
class Note:
    """One remark about a request; `detail` has no text of messages."""

    kind: NoteKind
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asks for beside its prompt, once it has been checked.

    Args:
        model: the name without a class suffix, None when the client gave none.
        sampling: as far as the client decided it.
        max_tokens: None stands for up to the end of the context.
        stop: strings that end the answer.
        ignore_eos: the tokens that end an answer do not.
        n: how many answers.
        stream, include_usage: how they are told.
        cls: who waits for them.
        reuse: False neither uses nor leaves retained state.
        return_reuse: the answer tells what was reused.
        cache_salt: only what came with the same salt is reused.
    """

    model: str | None
    sampling: SamplingFields
    max_tokens: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    n: int
    stream: bool
    include_usage: bool
    cls: Class
    reuse: bool
    return_reuse: bool
    cache_salt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A checked chat completion request, before rendering.

    Args:
        asked: what it shares with other protocols.
        messages: in the places that the policies give them.
        tools: the objects as sent.
        template_kwargs: go to the template as they are.
        reads_calls: tool calls are looked for in the answer.
        single_call: at most one.
        begun: the text that the answer has to begin with; it becomes the end of the prompt.
        shows_reasoning: off when the client has switched thinking off.
        notes: what was done to the request.
    """

    asked: Asked
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, object], ...]
    template_kwargs: Mapping[str, object]
    reads_calls: bool = False
    single_call: bool = False
    begun: str = ""
    shows_reasoning: bool = True
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt: `tokens` int32 [T], where its parts begin, and how the answer starts.

    `in_reasoning` tells that the prompt ends inside an open reasoning block.
    """

    tokens: TokenArray
    marks: Marks
    in_reasoning: bool
