"""Where system messages go: templates take one, and only as the first message.

Leading system messages are merged into one. A later one stays where it is, so that the prompt of
a conversation only ever grows at its end and the next turn can reuse it: it is read as a user
message, or joins the tool result before it, because a user message there would end the tool loop
and make the template drop its reasoning.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from ignisd.chat.types import Message


def place_system_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same conversation with at most one system message, at its head."""
    leading = list(takewhile(lambda message: message.role == "system", messages))
    placed: list[Message] = []
    if leading:
        text = "\n\n".join(message.content for message in leading if message.content)
        placed.append(replace(leading[0], content=text))
    for message in messages[len(leading) :]:
        if message.role != "system":
            placed.append(message)
        elif placed[-1].role == "tool":
            joined = f"{placed[-1].content}\n\n{message.content}"
            placed[-1] = replace(placed[-1], content=joined)
        else:
            placed.append(replace(message, role="user"))
    return tuple(placed)
