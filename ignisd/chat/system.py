"""Where system and developer messages go: templates take one system block, at the head.

Leading ones are merged into it. A later one stays where it is, so that the prompt of a
conversation only ever grows at its end and the next turn can reuse it: it is read as a user
message, or joins the tool result before it, because a user message there would end the tool loop
and make the template drop its reasoning. What a policy moves to the head costs this reuse.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from ignisd.chat.policies import ChatPolicies, DeveloperPolicy, SystemPolicy
from ignisd.chat.types import Message
from ignisd.errors import RequestError

_HEAD_ROLES = ("system", "developer")
VOLATILE_HEADER = "x-anthropic-billing-header:"


def place_messages(
    messages: Sequence[Message], policies: ChatPolicies
) -> tuple[tuple[Message, ...], bool]:
    """The same conversation with at most one system message, at its head, and no developer's.

    The second value tells that a message was moved out of the middle.

    Raises:
        RequestError: a policy refuses one of the messages.
    """
    _refuse(messages, policies)
    if policies.developer is DeveloperPolicy.INPLACE:
        return _merged([_as(message, "system", "developer") for message in messages]), False
    headed = len(list(takewhile(lambda message: message.role in _HEAD_ROLES, messages)))
    moved = [message for message in messages if message.role == "developer"]
    rest = [message for message in messages if message.role != "developer"]
    head = list(takewhile(lambda message: message.role == "system", rest))
    if policies.developer is DeveloperPolicy.ONE_AFTER_SYSTEM and moved:
        moved = [replace(moved[0], content=_joined(moved))]
    into = policies.developer is DeveloperPolicy.INTO_SYSTEM
    placed = [_as(message, "system" if into else "user", "developer") for message in moved]
    from_middle = any(message.role == "developer" for message in messages[headed:])
    return _merged([*head, *placed, *rest[len(head) :]]), from_middle


def without_volatile_header(text: str) -> str:
    """A system text without the first lines that differ at every request."""
    while text.lower().startswith(VOLATILE_HEADER):
        text = text.partition("\n")[2]
    return text


def _refuse(messages: Sequence[Message], policies: ChatPolicies) -> None:
    for index, message in enumerate(messages):
        path = f"messages[{index}].role"
        if message.role == "system" and index and policies.system is SystemPolicy.STRICT:
            raise RequestError(
                f"{path} is 'system', but only messages[0] may be; "
                "--server-system-message-policy merge accepts it.",
                path,
            )
        if message.role == "developer" and policies.developer is DeveloperPolicy.REJECT:
            raise RequestError(
                f"{path} is 'developer', which this server refuses; "
                "--server-developer-message-policy inplace accepts it.",
                path,
            )


def _merged(messages: Sequence[Message]) -> tuple[Message, ...]:
    leading = list(takewhile(lambda message: message.role == "system", messages))
    placed: list[Message] = []
    if leading:
        placed.append(replace(leading[0], content=_joined(leading)))
    for message in messages[len(leading) :]:
        if message.role != "system":
            placed.append(message)
        elif placed[-1].role == "tool":
            joined = f"{placed[-1].content}\n\n{message.content}"
            placed[-1] = replace(placed[-1], content=joined)
        else:
            placed.append(replace(message, role="user"))
    return tuple(placed)


def _joined(messages: Sequence[Message]) -> str:
    return "\n\n".join(message.content for message in messages if message.content)


def _as(message: Message, role: str, old: str) -> Message:
    return replace(message, role=role) if message.role == old else message
