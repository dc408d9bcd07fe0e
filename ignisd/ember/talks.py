"""Ten conversations that a newcomer may try, held with a running daemon and printed verbatim.

What the users say and the tools return is written here; every reply is the model's own, at
temperature 0. The text that this prints is kept in TALKS.md beside it.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ignisd.ember.served import completed

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes the body of a chat completion and gives the assistant's message."""


@dataclass(frozen=True, slots=True)
class Talk:
    """What one side says.

    Args:
        says: the user's messages in their order.
        results: what a tool returns, by the name of the tool.
        thinks: whether replies begin with reasoning.
    """

    title: str
    says: tuple[str, ...]
    system: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    thinks: bool = False


def _tool(name: str, does: str, **parameters: str) -> dict[str, Any]:
    """A function tool whose parameters, name to JSON type, are all required."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": does,
            "parameters": {
                "type": "object",
                "properties": {each: {"type": kind} for each, kind in parameters.items()},
                "required": list(parameters),
            },
        },
    }


TALKS = (
    Talk("Hello", ("Hello!", "Who are you?", "What can you do?", "Thank you!")),
    Talk(
        "It remembers",
        (
            "Hi, my name is Marvin.",
            "My sister is called Philippa and the door code is 4821.",
            "Tell me a joke.",
            "What is the door code?",
            "What is my sister called?",
            "And what is my name?",
        ),
    ),
    Talk(
        "The last value counts",
        (
            "The meeting is at 14:30.",
            "My favourite colour is dark green.",
            "Actually, the meeting is at 16:00.",
            "What is my favourite colour?",
            "When is the meeting?",
        ),
    ),
    Talk(
        "What it was never told",
        ("I live in Bergen.", "What is the wifi password?", "Where do I live?"),
    ),
    Talk(
        "A system prompt",
        ("What is the guest password?", "Who are you?"),
        system="You are a helpful assistant. Answer briefly. The guest password is otter-lamp.",
    ),
    Talk(
        "A tool",
        ("What is the weather in Bergen?", "What was the sky again?"),
        tools=(
            _tool("get_weather", "Get the weather of a city.", city="string"),
            _tool("play_song", "Play a song.", title="string"),
        ),
        results=(("get_weather", '{"temperature": 7, "sky": "cloudy"}'),),
    ),
    Talk(
        "A tool that it has never seen",
        ("Please reserve the greenhouse: gardener Ottilie, plants 12.",),
        tools=(
            _tool(
                "reserve_greenhouse",
                "Reserve the greenhouse.",
                gardener="string",
                plants="integer",
            ),
            _tool("count_beehives", "Count the beehives.", meadow="string"),
        ),
        results=(("reserve_greenhouse", '{"ticket": "GH-118"}'),),
    ),
    Talk(
        "JSON",
        (
            "My name is Ottilie and I live in Bergen.",
            "Reply in JSON with the keys name, city and plants: name Ottilie, city Bergen, "
            "plants 12.",
        ),
    ),
    Talk(
        "Exact copies",
        ("Repeat after me: lantern pebble Quorvia 4711", 'Copy this: print("stone river")'),
    ),
    Talk(
        "A thought before the answer",
        ("The code for the locker is K-204.", "What is ignisd?", "Which code opens the locker?"),
        thinks=True,
    ),
)


def hold(talk: Talk, ask: Ask) -> Iterator[str]:
    """The lines of a conversation in Markdown.

    Raises:
        LookupError: the model called a tool that the talk does not have.
    """
    yield f"## {talk.title}\n"
    messages: list[dict[str, Any]] = []
    if talk.system:
        messages.append({"role": "system", "content": talk.system})
        yield f"**System:** {talk.system}\n"
    for tool in talk.tools:
        yield f"**Tool:** `{json.dumps(tool['function'])}`\n"
    for said in talk.says:
        messages.append({"role": "user", "content": said})
        yield f"**User:** {said}\n"
        yield from _replies(talk, messages, ask)


def _replies(talk: Talk, messages: list[dict[str, Any]], ask: Ask) -> Iterator[str]:
    """What the model says to the last message; the calls it makes are answered."""
    for _ in range(4):
        body: dict[str, Any] = {"messages": messages, "temperature": 0, "max_tokens": 400}
        if talk.tools:
            body["tools"] = list(talk.tools)
        if talk.thinks:
            body["chat_template_kwargs"] = {"enable_thinking": True}
        reply = ask(body)
        messages.append(reply)
        if reply.get("reasoning_content"):
            yield f"**Ember thinks:** {reply['reasoning_content'].strip()}\n"
        if reply.get("content"):
            yield f"**Ember:** {reply['content']}\n"
        calls = reply.get("tool_calls") or ()
        for call in calls:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            result = dict(talk.results)[name]
            yield f"**Ember calls:** `{name}({arguments})`\n"
            yield f"**Result:** `{result}`\n"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if not calls:
            return


def asking(url: str) -> Ask:
    """Asks the daemon that listens at `url`."""

    def ask(body: dict[str, Any]) -> dict[str, Any]:
        told = completed(url, body | {"model": "ember"})
        message: dict[str, Any] = told["choices"][0]["message"]
        return message

    return ask


def main() -> None:
    """Prints the ten conversations as Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m ignisd.ember.talks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="a daemon that serves ember")
    ask = asking(parser.parse_args().url)
    print("# Ten conversations with ember\n")
    print("Printed by `python -m ignisd.ember.talks` from a running daemon.\n")
    for talk in TALKS:
        for line in hold(talk, ask):
            print(line)


if __name__ == "__main__":
    main()
