"""How a checkpoint writes reasoning and tool calls, told from its template and its own tokens.

A name says nothing: the same words name models of different forms. What counts is what the
template writes and what the tokenizer can spell as one token.
"""

from dataclasses import dataclass

from ignisd.chat.calls import CALL_OPEN, FUNCTION, PARAMETER
from ignisd.chat.output import THINK_CLOSE, THINK_OPEN
from ignisd.chat.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True)
class Family:
    """What can be read out of the answers of a model.

    Args:
        calls: tool calls, in the form `<tool_call><function=…><parameter=…>`.
        reasoning: blocks between the tokens `<think>` and `</think>`.
        doubts: where template and tokenizer contradict each other, or ask for what is not read.
    """

    calls: bool = True
    reasoning: bool = True
    doubts: tuple[str, ...] = ()

    def __str__(self) -> str:
        calls = "function-tags" if self.calls else "none"
        return f"chat-form calls={calls} reasoning={'think-tags' if self.reasoning else 'none'}"


def family_of(template: str, tokenizer: ChatTokenizer) -> Family:
    """The family of a checkpoint with this template and tokenizer."""
    calls = all(tag in template for tag in (CALL_OPEN, FUNCTION, PARAMETER))
    missing = [tag for tag in (THINK_OPEN, THINK_CLOSE) if tokenizer.token_id(tag) is None]
    doubts = []
    if missing and THINK_OPEN in template:
        doubts.append(
            f"the chat template writes {THINK_OPEN}, but the tokenizer has no token "
            f"{' and no token '.join(missing)}; reasoning is not split off"
        )
    if not calls and "tool_calls" in template:
        doubts.append(
            "the chat template writes tool calls in a form that is not read; "
            "they are delivered as text"
        )
    return Family(calls=calls, reasoning=not missing, doubts=tuple(doubts))
