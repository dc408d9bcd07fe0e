"""The completion body: a plain prompt, as text or as token ids, and how to go on from it."""

from dataclasses import dataclass

import numpy as np
from msgspec import json

from ignisd.chat import codec
from ignisd.chat.asked import read_asked
from ignisd.chat.foreign import refuse_foreign
from ignisd.chat.template import check_length
from ignisd.chat.tokenizer import ChatTokenizer
from ignisd.chat.types import Asked, TokenArray
from ignisd.chat.wire import WireCompletion
from ignisd.errors import ContextLengthExceeded, RequestError, UnsupportedValue, shown

DEFAULT_MAX_TOKENS = 16
"""What the protocol says; a plain text has no end that a model would find."""


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """A checked completion request.

    `prompt` is text, or token ids that have not been checked against a vocabulary.
    """

    asked: Asked
    prompt: str | tuple[int, ...]


_DECODER = json.Decoder(WireCompletion)


def parse_plain(body: bytes) -> PlainRequest:
    """Check the body of a completion.

    Raises:
        RequestError: malformed, of the wrong type or out of range.
        UnsupportedValue: well formed, but nothing that this server can honour.
    """
    wire = codec.decode(body, _DECODER)
    refuse_foreign(body)
    if wire.logprobs is not None:
        raise UnsupportedValue(
            f"logprobs is {shown(wire.logprobs)}, but this server returns none.", "logprobs"
        )
    limit = DEFAULT_MAX_TOKENS if wire.max_tokens is None else wire.max_tokens
    if limit < 0:
        raise RequestError(f"max_tokens is {shown(limit)}, but must be at least 0.", "max_tokens")
    return PlainRequest(read_asked(wire, limit), _one_prompt(wire.prompt))


def tokens_of(
    prompt: str | tuple[int, ...],
    tokenizer: ChatTokenizer,
    limit_tokens: int,
    param: str = "prompt",
) -> TokenArray:
    """The token ids of a plain prompt, int32 [T], read-only.

    Args:
        prompt: text, or ids that have not been checked.
        tokenizer: of the model.
        limit_tokens: a prompt that is clearly as long or longer is not looked at whole.
        param: the field that it came in.

    Raises:
        RequestError: there are none, or one is not in the vocabulary.
        ContextLengthExceeded: the prompt is clearly too long.
    """
    if isinstance(prompt, str):
        check_length(prompt, tokenizer, limit_tokens, param)
        tokens = tokenizer.encode(prompt)
    elif len(prompt) >= limit_tokens:
        raise ContextLengthExceeded(len(prompt), limit_tokens, param)
    else:
        limit = tokenizer.num_tokens
        for index, token in enumerate(prompt):
            if not 0 <= token < limit:
                raise RequestError(
                    f"{param}[{index}] is {shown(token)}, but token ids run from 0 to {limit - 1}.",
                    f"{param}[{index}]",
                )
        tokens = np.asarray(prompt, np.int32)
    if not len(tokens):
        raise RequestError(f"{param} is empty; at least one token is needed.", param)
    tokens.flags.writeable = False
    return tokens


def _one_prompt(prompt: str | list[str | int | list[int]]) -> str | tuple[int, ...]:
    """The only prompt of a body that may hold a batch of them."""
    if isinstance(prompt, str):
        return prompt
    ids = [each for each in prompt if isinstance(each, int)]
    if len(ids) == len(prompt):
        return tuple(ids)
    if len(prompt) > 1:
        if ids:
            raise RequestError("prompt mixes token ids with texts or lists.", "prompt")
        raise UnsupportedValue(
            f"prompt has {len(prompt)} prompts, but this server takes one a request.", "prompt"
        )
    only = prompt[0]
    assert not isinstance(only, int), "a list of one id is a list of ids"
    return only if isinstance(only, str) else tuple(only)
