"""Fields of other servers that would change the answer, and that this one does not know.

Unknown fields are passed over, as the protocol wants. But who sends one of these with a value that
means something would get another answer than was asked for, and nobody would say so.
"""

from dataclasses import dataclass

import msgspec

from ignisd.chat import codec
from ignisd.errors import UnsupportedValue

_ABSENT = b"null"
_SHOWN_BYTES = 60


@dataclass(frozen=True, slots=True)
class Foreign:
    """A field that is not honoured.

    Args:
        neutral: values that ask for nothing; null is one too.
        why: what is not done, or what to say instead.
    """

    neutral: tuple[object, ...]
    why: str


_CONSTRAINED = Foreign(({}, "", [], False), "answers are not held to a grammar or a schema here")
_SAMPLING = "this way of sampling is not built; temperature, top_k, top_p and min_p are"
_TOOLS = "functions are offered in tools, and chosen in tool_choice"

FOREIGN: dict[str, Foreign] = {
    "best_of": Foreign((1,), "every answer that is made is returned; n says how many"),
    "use_beam_search": Foreign((False,), _SAMPLING),
    "echo": Foreign((False,), "the prompt is not repeated"),
    "suffix": Foreign(("",), "text is continued at its end only"),
    "min_tokens": Foreign((0,), "an answer ends where the model ends it, or goes on by ignore_eos"),
    "stop_token_ids": Foreign(([],), "an answer ends at the strings of stop"),
    "include_stop_str_in_output": Foreign((False,), "a stop string is never part of the answer"),
    "skip_special_tokens": Foreign((True,), "special tokens are never part of the answer"),
    "truncate_prompt_tokens": Foreign((-1,), "a prompt is read whole or refused"),
    "prompt_logprobs": Foreign((False,), "no log-probabilities are returned"),
    "n_probs": Foreign((0,), "no log-probabilities are returned"),
    "return_token_ids": Foreign((False,), "answers are text; /v1/tokenize tells the tokens"),
    "allowed_token_ids": Foreign(([],), "the vocabulary is not restricted"),
    "bad_words": Foreign(([],), "the vocabulary is not restricted"),
    "logits_processors": Foreign(([],), _SAMPLING),
    "guided_json": _CONSTRAINED,
    "guided_regex": _CONSTRAINED,
    "guided_choice": _CONSTRAINED,
    "guided_grammar": _CONSTRAINED,
    "structured_outputs": _CONSTRAINED,
    "grammar": _CONSTRAINED,
    "json_schema": _CONSTRAINED,
    "n_predict": Foreign((-1,), "the longest answer is max_tokens"),
    "cache_prompt": Foreign((True,), "reuse: false is what switches reuse off"),
    "repeat_penalty": Foreign((1,), "it is called repetition_penalty here"),
    "typical_p": Foreign((1,), _SAMPLING),
    "mirostat": Foreign((0,), _SAMPLING),
    "dry_multiplier": Foreign((0,), _SAMPLING),
    "xtc_probability": Foreign((0,), _SAMPLING),
    "dynatemp_range": Foreign((0,), _SAMPLING),
    "functions": Foreign(([],), _TOOLS),
    "function_call": Foreign(("none", "auto"), _TOOLS),
    "modalities": Foreign((["text"], []), "answers are text"),
    "audio": Foreign(({},), "answers are text"),
    "web_search_options": Foreign((), "nothing is searched for"),
    "chat_template": Foreign(("",), "prompts are rendered by the checkpoint's own template"),
    "documents": Foreign(([],), "documents belong into a message"),
    "continue_final_message": Foreign((False,), "an answer is a message of its own"),
    "add_generation_prompt": Foreign((True,), "an answer is a message of its own"),
}
"""By field name; of every route that generates."""

_DECODER: msgspec.json.Decoder[msgspec.Struct] = msgspec.json.Decoder(
    msgspec.defstruct(
        "WireForeign", [(name, msgspec.Raw, msgspec.Raw(_ABSENT)) for name in FOREIGN]
    )
)


def refuse_foreign(body: bytes) -> None:
    """Refuse the first of these fields that asks for something.

    Raises:
        RequestError: the body is no JSON object.
        UnsupportedValue: a field has a value that is not neutral.
    """
    wire = codec.decode(body, _DECODER)
    for name, foreign in FOREIGN.items():
        raw = bytes(getattr(wire, name))
        if raw != _ABSENT and not _is_neutral(raw, foreign):
            had = raw[:_SHOWN_BYTES].decode("utf-8", "replace")
            raise UnsupportedValue(f"{name} is {had}, but {foreign.why}.", name)


def _is_neutral(raw: bytes, foreign: Foreign) -> bool:
    if len(raw) > _SHOWN_BYTES:  # no neutral value is so long
        return False
    value = msgspec.json.decode(raw)
    return any(_same(value, each) for each in foreign.neutral)


def _same(value: object, other: object) -> bool:
    """Equal, and both of them or neither a truth value."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
