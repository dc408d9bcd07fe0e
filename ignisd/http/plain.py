"""The completion body: a plain prompt, as text or as token ids, and how to go on from it."""

from dataclasses import dataclass

import numpy as np
from msgspec import Struct, field, json

from ignisd.chat import codec
from ignisd.chat.limits import check_sampling, check_stop
from ignisd.chat.parse import model_and_class
from ignisd.chat.tokenizer import ChatTokenizer
from ignisd.chat.types import SamplingFields, TokenArray
from ignisd.chat.wire import WireStreamOptions
from ignisd.errors import RequestError, UnsupportedValue
from state.spec import Class

DEFAULT_MAX_TOKENS = 16
"""What the protocol says; a plain text has no end that a model would find."""


class WireCompletion(Struct):
    """The body of POST /v1/completions; every field may be null, which is the same as absent."""

    prompt: str | list[str | int | list[int]]
    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    best_of: int | None = None
    logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    echo: bool | None = None
    suffix: str | None = None
    stream: bool | None = None
    stream_options: WireStreamOptions | None = None
    class_name: str | None = field(default=None, name="class")
    cache_salt: str | None = None
    return_reuse: bool | None = None
    reuse: bool | None = None


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """A checked completion request; the fields are those of `ChatRequest`.

    `prompt` is text, or token ids that have not been checked against a vocabulary.
    """

    model: str | None
    prompt: str | tuple[int, ...]
    sampling: SamplingFields
    max_tokens: int
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    cls: Class
    reuse: bool
    return_reuse: bool
    cache_salt: str | None


_DECODER = json.Decoder(WireCompletion)


def parse_plain(body: bytes) -> PlainRequest:
    """Check the body of a completion.

    Raises:
        RequestError: malformed, of the wrong type or out of range.
        UnsupportedValue: well formed, but nothing that this server can honour.
    """
    wire = codec.decode(body, _DECODER)
    _refuse_unsupported(wire)
    sampling = SamplingFields(
        temperature=wire.temperature,
        top_k=wire.top_k,
        top_p=wire.top_p,
        min_p=wire.min_p,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        repetition_penalty=wire.repetition_penalty,
        seed=wire.seed,
    )
    check_sampling(sampling)
    if wire.max_tokens is not None and wire.max_tokens < 0:
        raise RequestError(
            f"max_tokens is {wire.max_tokens}, but must be at least 0.", "max_tokens"
        )
    model, cls = model_and_class(wire.model, wire.class_name)
    options = wire.stream_options
    return PlainRequest(
        model=model,
        prompt=_one_prompt(wire.prompt),
        sampling=sampling,
        max_tokens=DEFAULT_MAX_TOKENS if wire.max_tokens is None else wire.max_tokens,
        stop=check_stop(wire.stop),
        stream=bool(wire.stream),
        include_usage=options is not None and bool(options.include_usage),
        cls=cls,
        reuse=wire.reuse is not False,
        return_reuse=bool(wire.return_reuse),
        cache_salt=wire.cache_salt,
    )


def tokens_of(
    prompt: str | tuple[int, ...], tokenizer: ChatTokenizer, param: str = "prompt"
) -> TokenArray:
    """The token ids of a plain prompt, int32 [T], read-only.

    Raises:
        RequestError: there are none, or one is not in the vocabulary.
    """
    if isinstance(prompt, str):
        tokens = tokenizer.encode(prompt)
    else:
        limit = tokenizer.num_tokens
        for index, token in enumerate(prompt):
            if not 0 <= token < limit:
                raise RequestError(
                    f"{param}[{index}] is {token}, but token ids run from 0 to {limit - 1}.",
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


def _refuse_unsupported(wire: WireCompletion) -> None:
    for name in ("n", "best_of"):
        count = getattr(wire, name)
        if count is not None and count != 1:
            if count < 1:
                raise RequestError(f"{name} is {count}, but must be at least 1.", name)
            raise UnsupportedValue(
                f"{name} is {count}, but this server answers a prompt once.", name
            )
    if wire.logprobs is not None:
        raise UnsupportedValue(
            f"logprobs is {wire.logprobs}, but this server returns none.", "logprobs"
        )
    if wire.logit_bias:
        raise UnsupportedValue(
            f"logit_bias has {len(wire.logit_bias)} entries, but none can be honoured.",
            "logit_bias",
        )
    if wire.echo:
        raise UnsupportedValue("echo is true, but the prompt is not repeated here.", "echo")
    if wire.suffix:
        raise UnsupportedValue(
            f"suffix has {len(wire.suffix)} characters, but text is continued at its end only.",
            "suffix",
        )
