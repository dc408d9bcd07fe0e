"""How a server treats what clients disagree about; each of these is one of its flags."""

import enum
from dataclasses import dataclass


class SystemPolicy(enum.StrEnum):
    """What becomes of more than one system message.

    MERGE: the leading ones become one block; a later one stays where it stands and is read as a
    user's note, because templates take system text at the head only. STRICT: all but message 0
    are refused.
    """

    MERGE = "merge"
    STRICT = "strict"


class DeveloperPolicy(enum.StrEnum):
    """What becomes of developer messages, which templates do not know.

    INPLACE: like system messages under MERGE. INTO_SYSTEM: all are moved into the system block.
    AFTER_SYSTEM: all are moved behind the system block, each as a user's note. ONE_AFTER_SYSTEM:
    the same, as one note. REJECT: refused.

    Whatever moves a message changes the head of the prompt when a later turn brings a new one,
    and then nothing of the conversation can be reused.
    """

    INPLACE = "inplace"
    INTO_SYSTEM = "into-system"
    AFTER_SYSTEM = "after-system"
    ONE_AFTER_SYSTEM = "one-after-system"
    REJECT = "reject"


class ReasoningField(enum.StrEnum):
    """The field of a message that carries the reasoning; clients know one or the other."""

    REASONING_CONTENT = "reasoning_content"
    REASONING = "reasoning"
    BOTH = "both"

    @property
    def names(self) -> tuple[str, ...]:
        """The fields to fill."""
        if self is ReasoningField.BOTH:
            return (ReasoningField.REASONING_CONTENT.value, ReasoningField.REASONING.value)
        return (self.value,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPolicies:
    """The policies of one server.

    Args:
        system: of system messages beyond the first.
        developer: of developer messages.
        strip_volatile_headers: drop a first system line that differs at every request of the
            same conversation, such as a billing header, and would defeat all reuse.
        reasoning_field: where reasoning is told.
        calls_in_reasoning: a call of a known tool inside reasoning that was never closed ends
            the reasoning and is delivered; otherwise it stays a part of the reasoning.
    """

    system: SystemPolicy = SystemPolicy.MERGE
    developer: DeveloperPolicy = DeveloperPolicy.INPLACE
    strip_volatile_headers: bool = True
    reasoning_field: ReasoningField = ReasoningField.REASONING_CONTENT
    calls_in_reasoning: bool = True
