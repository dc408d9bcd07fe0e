"""What an agent's user, its tools and its subagents say: a script, the same for the same seed.

Assistant messages of a tool loop are scripted too, because a small model calls no tools of its own
accord; the last answer of each turn is the model's own, as an agent would send it back.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ignisd.bench.contender import text_of

Message = dict[str, Any]

LOOPS = (0, 2, 0, 1, 0, 3, 0, 0, 4, 0)
"""Steps of the tool loop in each turn, over and over."""
_SYSTEM_WORDS, _TASK_WORDS = 260, 200
_LONG_WORDS, _SHORT_WORDS = 160, 40
_TOOLS = {
    "read_file": ("Reads a file of project {seed}.", ("path", "first_line", "last_line")),
    "search": ("Searches the files of the project for a pattern.", ("pattern", "folder")),
    "edit_file": ("Replaces a text in a file by another.", ("path", "old_text", "new_text")),
    "run_tests": ("Runs the tests that match a name.", ("name", "timeout_seconds")),
    "start_agent": ("Hands a task to an agent of its own and waits.", ("task", "kind")),
}


def tools(seed: str, *names: str) -> list[Message]:
    """Descriptions of the named tools, or of all; the first names the seed, so that prompts of
    other runs have hardly a word in common with these."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": _TOOLS[name][0].format(seed=seed),
                "parameters": {
                    "type": "object",
                    "properties": {
                        key: {"type": "string", "description": f"The {key.replace('_', ' ')}."}
                        for key in _TOOLS[name][1]
                    },
                    "required": [_TOOLS[name][1][0]],
                },
            },
        }
        for name in names or _TOOLS
    ]


@dataclass(slots=True)
class Conversation:
    """The messages of one agent, which grow.

    Args:
        name: in the table.
        model: that it asks for.
        messages: what it sends next.
        tools: that it offers.
        turn, step: number of the user's message, and of the request within it.
    """

    name: str
    model: str
    messages: list[Message]
    tools: list[Message]
    turn: int = 0
    step: int = 0
    calls: int = field(default=0, repr=False)

    def say(self, text: str) -> None:
        """The user begins a turn."""
        self.messages.append({"role": "user", "content": text})
        self.turn, self.step = self.turn + 1, 0

    def loop(self, seed: str, results: Sequence[str], tool: str = "read_file") -> None:
        """The assistant calls a tool for each result, and has them."""
        key = _TOOLS[tool][1][0]
        calls = []
        for number in range(len(results)):
            self.calls += 1
            arguments = {key: text_of(f"{seed} argument {number}", 4)}
            calls.append(
                {
                    "id": f"call_{self.calls}",
                    "type": "function",
                    "function": {"name": tool, "arguments": json.dumps(arguments)},
                }
            )
        thought = text_of(f"{seed} thought", 20)
        self.messages.append(
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": thought,
                "tool_calls": calls,
            }
        )
        for call, result in zip(calls, results, strict=True):
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        self.step += 1

    def close(self, seed: str, content: str) -> None:
        """The turn ends with the model's own words, and with reasoning that the template drops."""
        thought = text_of(f"{seed} last thought", 20)
        self.messages.append(
            {"role": "assistant", "content": content, "reasoning_content": thought}
        )


def opening(seed: str) -> Conversation:
    """The conversation with the user, before its first turn."""
    system = f"You are an agent that writes programs.\n\n{text_of(f'{seed} system', _SYSTEM_WORDS)}"
    return Conversation("main", "", [{"role": "system", "content": system}], tools(seed))


def user_text(seed: str, turn: int) -> str:
    """What the user says; the first message and every fifth after it are long."""
    words = _LONG_WORDS if turn % 5 == 1 else _SHORT_WORDS
    return text_of(f"{seed} user {turn}", words)


def edited(text: str, seed: str) -> str:
    """A message that goes on in another way from its middle."""
    half = text[: len(text) // 2].rpartition(" ")[0]
    return f"{half} {text_of(seed, _SHORT_WORDS)}"


def results(seed: str, turn: int, step: int) -> list[str]:
    """What tools say: every third step has two calls at once."""
    number = 2 if (turn + step) % 3 == 0 else 1
    return [text_of(f"{seed} result {turn} {step} {each}", 50) for each in range(number)]


def subagents(seed: str, number: int) -> Iterator[Conversation]:
    """Agents of one kind: the same system block and tools, each with a task of its own."""
    system = f"You are an agent for one task.\n\n{text_of(f'{seed} agents', _SYSTEM_WORDS)}"
    for each in range(1, number + 1):
        task = f"Your task:\n{text_of(f'{seed} task {each}', _TASK_WORDS)}"
        agent = Conversation(
            f"agent {each}",
            "@agent",
            [{"role": "system", "content": system}],
            tools(seed, "read_file", "search", "run_tests"),
        )
        agent.say(task)
        yield agent
