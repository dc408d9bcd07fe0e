"""Traffic in the shapes of real use, for a daemon that records it: chats as bodies, with arrivals.

Three shapes. `chat` is a long conversation with tool loops, one continuation at a time. `burst` is
subagents that start together on one system block and take a few turns each. `branches` is agents
that work on one large snapshot of a repository and fork from the middle of it. Answers are written
beforehand, so the same seed sends the same bytes whatever the model says.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_WORDS = (
    "the file test value list read open value path line error result name table count field "
    "state page check write first last order small large fast slow left right"
).split()

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Args:
        at_ms: when it is made, from the start of the traffic.
        talk: which conversation it belongs to; its calls are made one after the other.
        cls: interactive or agent.
        messages: the whole chat so far.
        max_tokens: most tokens to answer.
    """

    at_ms: float
    talk: int
    cls: str
    messages: tuple[Message, ...]
    max_tokens: int

    def body(self, model: str) -> dict[str, object]:
        """As it is sent."""
        return {
            "model": model,
            "messages": list(self.messages),
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "class": self.cls,
        }


def _text(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(num_words))


def long_chat(rng: random.Random, size: int) -> Iterator[Call]:
    """A conversation of `size` user turns, of which every other one runs two rounds of tools."""
    messages = [{"role": "system", "content": _text(rng, 120)}]
    at_ms = 0.0
    for turn in range(size):
        messages.append({"role": "user", "content": _text(rng, rng.randint(8, 40))})
        for _ in range(3 if turn % 2 else 1):
            yield Call(at_ms, 0, "interactive", tuple(messages), 8)
            messages.append({"role": "assistant", "content": _text(rng, rng.randint(10, 30))})
            messages.append({"role": "user", "content": "result: " + _text(rng, 25)})
            at_ms += rng.uniform(50.0, 300.0)
        messages.pop()
        at_ms += rng.uniform(500.0, 3000.0)


def burst(rng: random.Random, size: int) -> Iterator[Call]:
    """`size` subagents that start almost at once on one system block, three turns each."""
    system = {"role": "system", "content": _text(rng, 300)}
    calls = []
    for agent in range(size):
        messages = [system, {"role": "user", "content": _text(rng, rng.randint(20, 60))}]
        at_ms = rng.uniform(0.0, 40.0)
        for _ in range(3):
            calls.append(Call(at_ms, agent, "agent", tuple(messages), 8))
            messages.append({"role": "assistant", "content": _text(rng, 20)})
            messages.append({"role": "user", "content": "result: " + _text(rng, 40)})
            at_ms += rng.uniform(300.0, 900.0)
    yield from sorted(calls, key=lambda call: call.at_ms)


def branches(rng: random.Random, size: int) -> Iterator[Call]:
    """`size` agents on one repository, each of which reads it up to a place of its own."""
    system = {"role": "system", "content": _text(rng, 40)}
    files = [_text(rng, 60) for _ in range(12)]
    for agent in range(size):
        read = "\n".join(files[: rng.randint(3, len(files))])
        first = {"role": "user", "content": f"{read}\ntask: {_text(rng, 20)}"}
        at_ms = agent * rng.uniform(200.0, 400.0)
        yield Call(at_ms, agent, "agent", (system, first), 8)


SHAPES: dict[str, Callable[[random.Random, int], Iterator[Call]]] = {
    "chat": long_chat,
    "burst": burst,
    "branches": branches,
}


def generate(shape: str, size: int, seed: int) -> tuple[Call, ...]:
    """The calls of a shape in the order of arrival."""
    calls = SHAPES[shape](random.Random(f"{shape} {seed}"), size)
    return tuple(sorted(calls, key=lambda call: call.at_ms))
