"""Messages become a prompt: rendered by the checkpoint's template, tokenized, and marked."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ignisd.chat.marks import MarkFinder
from ignisd.chat.tokenizer import ChatTokenizer
from ignisd.chat.types import ChatRequest, Message, Prompt
from ignisd.errors import ConfigError, ContextLengthExceeded, RequestError

Now = Callable[[], datetime]

# What a template may raise when it meets messages that it was not written for.
_REFUSALS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

_NO_REASONING = "\n</think>\n\n"


class ChatTemplate:
    """A chat template in the dialect that checkpoints use, run in a sandbox.

    Args:
        source: the jinja text.
        now: the wall clock, for templates that print the date.

    Raises:
        ConfigError: the text is no valid template.
    """

    def __init__(self, source: str, now: Now) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template is not valid: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, object]],
        kwargs: Mapping[str, object],
    ) -> str:
        """The prompt as text, generation opener included.

        Raises:
            RequestError: the template does not accept these messages.
        """
        try:
            return self._template.render(
                **kwargs,
                messages=[_for_template(message) for message in messages],
                tools=list(tools) or None,
                add_generation_prompt=True,
            )
        except _REFUSALS as error:
            raise RequestError(
                f"The chat template does not accept these messages: {error}.", "messages"
            ) from error


def check_length(text: str, tokenizer: ChatTokenizer, limit_tokens: int | None, param: str) -> None:
    """Raises ContextLengthExceeded when a text clearly has `limit_tokens` tokens or more."""
    least = None if limit_tokens is None else tokenizer.at_least(text, limit_tokens)
    if limit_tokens is not None and least is not None:
        raise ContextLengthExceeded(least, limit_tokens, param, exact=False)


class PromptRenderer:
    """Renders, tokenizes and marks; free to use from any thread."""

    def __init__(self, template: ChatTemplate, tokenizer: ChatTokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._marks = MarkFinder(tokenizer)

    def render(self, request: ChatRequest, limit_tokens: int | None = None) -> Prompt:
        """The prompt of a request.

        Args:
            request: messages and tools.
            limit_tokens: a prompt that is clearly as long or longer is not tokenized whole.

        Raises:
            RequestError: the template refuses the messages, or renders nothing.
            ContextLengthExceeded: the prompt is clearly too long.
        """
        text = self._template.render(request.messages, request.tools, request.template_kwargs)
        check_length(text, self._tokenizer, limit_tokens, "messages")
        tokens = self._tokenizer.encode(text)
        if request.begun:
            # An answer that has begun has no reasoning any more.
            closing = _NO_REASONING if self._marks.ends_in_reasoning(tokens) else ""
            tokens = self._tokenizer.encode(f"{text}{closing}{request.begun}")
        if not len(tokens):
            raise RequestError("The messages render to an empty prompt.", "messages")
        tokens.flags.writeable = False
        return Prompt(tokens, self._marks.find(tokens), self._marks.ends_in_reasoning(tokens))


def _for_template(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        shown["reasoning_content"] = message.reasoning
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": dict(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        shown["name"] = message.name
    return shown


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the templates' authors had it: no HTML escapes, key order kept, non-ASCII kept."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
