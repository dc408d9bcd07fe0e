"""What is measured: something that answers chats, wherever it runs."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ignisd.errors import IgnisError


class Message(NamedTuple):
    """One message of a chat."""

    role: str
    content: str


Chat = tuple[Message, ...]


def as_sent(chat: Chat) -> list[dict[str, str]]:
    """The chat as a request's body holds it."""
    return [message._asdict() for message in chat]


def system(text: str) -> Message:
    """The message that opens a chat."""
    return Message("system", text)


def user(text: str) -> Message:
    """What the user says."""
    return Message("user", text)


def assistant(text: str) -> Message:
    """What the model is taken to have said."""
    return Message("assistant", text)


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer and when its parts came.

    Args:
        began_s: when the request was made, on the monotonic clock.
        ttft_s: from then to the first token; to the end where none was seen.
        total_s: from then to the end.
        prompt_tokens: as the target counts them.
        cached_tokens: of these, not computed; None where the target does not say.
        completion_tokens: generated, as the target counts them.
        said: the answer, for comparison: its text, or its token ids where these are known.
    """

    began_s: float
    ttft_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    said: str


class BenchError(IgnisError):
    """A measurement that cannot be made, or whose numbers must not be shown."""

    code = "bench_error"


class Target(Protocol):
    """Something that answers chats. `ask` is called from several threads at once."""

    @property
    def name(self) -> str:
        """As in the tables."""
        ...

    def ask(self, chat: Chat, max_tokens: int, *, reuse: bool = True) -> Answer:
        """A greedy answer of at most `max_tokens`.

        Args:
            reuse: False asks for an answer that neither uses nor leaves retained state; a target
                that does not know the word may do as always.

        Raises:
            BenchError: the target gave no answer, and why.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


def ask_together(target: Target, chats: Sequence[Chat], max_tokens: int) -> list[Answer]:
    """The answers to chats that are sent at once, in their order."""
    with ThreadPoolExecutor(len(chats)) as threads:
        return list(threads.map(lambda chat: target.ask(chat, max_tokens), chats))
