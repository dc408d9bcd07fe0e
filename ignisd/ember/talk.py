"""A conversation being put together: its messages, what is known in it, how it is told."""

import random
from dataclasses import dataclass, field
from typing import Any

from ignisd.ember.english import Prose
from ignisd.ember.facts import Fact
from ignisd.ember.render import render
from ignisd.ember.schemas import Schema

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Level:
    """How hard the conversations of a training stage are.

    Args:
        max_facts: most facts told in one conversation, updates left out.
        filler_turns: most turns of other talk between two turns about facts.
        max_questions: most questions for facts told, where no length is given.
        unknown_rate: share of questions for a fact that was never told.
        update_rate: share of questions after which a fact is told again with another value.
        least_chars, most_chars: between these lies the length of the text, about; 0 for
            conversations that end with their questions. Four characters are about a token.
        thinking_rate: share of conversations whose replies begin with reasoning.
    """

    max_facts: int = 4
    filler_turns: int = 1
    max_questions: int = 5
    unknown_rate: float = 0.0
    update_rate: float = 0.0
    least_chars: int = 0
    most_chars: int = 0
    thinking_rate: float = 0.12


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the template takes.

    Args:
        tools: function tools as the API takes them, announced in the first block.
        preserve_thinking: whether old turns keep their think block.
        enable_thinking: whether replies begin with reasoning.
    """

    messages: tuple[Message, ...]
    preserve_thinking: bool
    tools: tuple[dict[str, Any], ...] = ()
    enable_thinking: bool = False

    @property
    def text(self) -> str:
        """The whole of it as the template renders it."""
        return render(
            self.messages,
            tools=self.tools,
            enable_thinking=self.enable_thinking,
            preserve_thinking=self.preserve_thinking,
        )


def user(text: str) -> Message:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """An assistant message."""
    return {"role": "assistant", "content": text}


def tool_result(text: str) -> Message:
    """What a tool answers."""
    return {"role": "tool", "content": text}


@dataclass(slots=True)
class Talk:
    """What the tasks write to.

    Args:
        offered: the tools that may be called.
        known: facts told so far, the latest of each key.
        results: fields that tool results told, by the words of their keys.
        num_chars: length of the texts so far.
    """

    rng: random.Random
    level: Level
    prose: Prose
    thinking: bool = False
    offered: tuple[Schema, ...] = ()
    messages: list[Message] = field(default_factory=list)
    known: dict[tuple[str, str], Fact] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    mentioned_at: dict[tuple[str, str], int] = field(default_factory=dict)
    num_chars: int = 0

    def mention(self, fact: Fact) -> None:
        """Keeps in mind where the fact was told or asked for last."""
        self.mentioned_at[fact.key] = self.num_chars

    def offer(self, schemas: tuple[Schema, ...]) -> None:
        """Tools may be called from now on."""
        self.offered = schemas
        self.num_chars += sum(200 + 70 * len(schema.parameters) for schema in schemas)

    def say(self, text: str) -> None:
        """The user says something."""
        self._add(user(text))

    def reply(self, text: str, thought: str) -> None:
        """The assistant answers; `thought` comes first where replies begin with reasoning."""
        self._add(self._with(thought, assistant(text)))

    def call(self, calls: list[tuple[str, dict[str, Any]]], thought: str) -> None:
        """The assistant calls tools by name and arguments."""
        message = assistant("") | {
            "tool_calls": [
                {"type": "function", "function": {"name": name, "arguments": arguments}}
                for name, arguments in calls
            ]
        }
        self._add(self._with(thought, message))
        self.num_chars += sum(60 + 40 * len(arguments) for _, arguments in calls)

    def result(self, text: str) -> None:
        """A tool answers."""
        self._add(tool_result(text))

    def instruct(self, text: str) -> None:
        """The system message, which comes first."""
        self._add({"role": "system", "content": text})

    def _with(self, thought: str, message: Message) -> Message:
        return message | {"reasoning_content": thought} if self.thinking else message

    def _add(self, message: Message) -> None:
        self.messages.append(message)
        self.num_chars += len(message["content"]) + 30
