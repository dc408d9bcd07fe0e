"""Renders conversations with the shipped chat template, as the daemon does."""

import json
from functools import cache
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ignisd.ember import WEIGHTS_DIR

TEMPLATE_NAME = "chat_template.jinja"


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


@cache
def chat_template() -> Template:
    """The compiled template that ships with the weights."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment.from_string((WEIGHTS_DIR / TEMPLATE_NAME).read_text(encoding="utf-8"))


def render(
    messages: tuple[dict[str, Any], ...],
    tools: tuple[dict[str, Any], ...] = (),
    opener: bool = False,
    enable_thinking: bool = False,
    preserve_thinking: bool = False,
) -> str:
    """The text of a conversation.

    Args:
        messages: role, content and what else the chat completions API allows.
        tools: function descriptions, announced in the first block.
        opener: whether an assistant turn is opened at the end.
        enable_thinking: whether that turn may begin with reasoning.
        preserve_thinking: whether finished turns keep their think block.

    Raises:
        TemplateError: the conversation cannot be expressed in the template.
    """
    return chat_template().render(
        messages=list(messages),
        tools=list(tools),
        add_generation_prompt=opener,
        enable_thinking=enable_thinking,
        preserve_thinking=preserve_thinking,
    )
