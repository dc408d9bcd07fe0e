"""The text half of a checkpoint directory: tokenizer, chat template, generation defaults."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ignisd.chat.family import Family, family_of
from ignisd.chat.limits import RANGES
from ignisd.chat.template import ChatTemplate, Now, PromptRenderer
from ignisd.chat.tokenizer import ChatTokenizer
from ignisd.chat.types import GenerationDefaults, SamplingFields
from ignisd.errors import ConfigError

_log = logging.getLogger("ignisd.chat")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the HTTP layer must know of the served model.

    Args:
        name: as clients call it.
        context_tokens: prompt and answer together.
        tokenizer: of the checkpoint.
        renderer: messages to prompt.
        defaults: the checkpoint's sampling, and the tokens that end an answer.
        created_s: when it was loaded, in Unix seconds.
        family: what can be read out of its answers.
    """

    name: str
    context_tokens: int
    tokenizer: ChatTokenizer
    renderer: PromptRenderer
    defaults: GenerationDefaults
    created_s: int
    family: Family = field(default_factory=Family)


def read_model_info(directory: Path, name: str, context_tokens: int, now: Now) -> ModelInfo:
    """Read everything but the weights from a Hugging Face directory.

    Raises:
        ConfigError: a file is missing or not valid.
    """
    tokenizer = ChatTokenizer.from_file(directory / "tokenizer.json")
    source = read_template(directory)
    template = ChatTemplate(source, now)
    family = family_of(source, tokenizer)
    _log.info("%s", family)
    for doubt in family.doubts:
        _log.warning("%s", doubt)
    return ModelInfo(
        name=name,
        context_tokens=context_tokens,
        tokenizer=tokenizer,
        renderer=PromptRenderer(template, tokenizer),
        defaults=read_generation_defaults(directory, tokenizer),
        created_s=int(now().timestamp()),
        family=family,
    )


def read_template(directory: Path) -> str:
    """The chat template: its own file, or the entry in the tokenizer's configuration.

    Raises:
        ConfigError: there is none.
    """
    own = directory / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        source = _read_json(directory / name).get("chat_template")
        if isinstance(source, list):
            named = {entry.get("name"): entry.get("template") for entry in source}
            source = named.get("default")
        if isinstance(source, str):
            return source
    raise ConfigError(
        f"{directory} has no chat template: chat_template.jinja is missing and "
        "tokenizer_config.json names none"
    )


def read_generation_defaults(directory: Path, tokenizer: ChatTokenizer) -> GenerationDefaults:
    """What generation_config.json says; neutral where it is silent or absent.

    Raises:
        ConfigError: a value is of the wrong type or out of range.
    """
    path = directory / "generation_config.json"
    config = _read_json(path)
    # An author who writes that nothing is to be drawn means greedy answers.
    greedy = config.get("do_sample") is False
    sampling = SamplingFields(
        temperature=0.0 if greedy else _number(config, "temperature", path, float),
        top_k=_number(config, "top_k", path, int),
        top_p=_number(config, "top_p", path, float),
        min_p=_number(config, "min_p", path, float),
        repetition_penalty=_number(config, "repetition_penalty", path, float),
    )
    eos = config.get("eos_token_id")
    eos_ids = set(eos if isinstance(eos, list) else [] if eos is None else [eos])
    if not all(isinstance(each, int) for each in eos_ids):
        raise ConfigError(f"{path}: eos_token_id is {eos!r}, but must be token ids")
    # The token that ends a message ends an answer, whatever the configuration forgot.
    for text in ("<|im_end|>", "<|endoftext|>"):
        known = tokenizer.token_id(text)
        if known is not None:
            eos_ids.add(known)
    return GenerationDefaults(sampling, tuple(sorted(eos_ids)))


def _number(config: dict[str, Any], name: str, path: Path, kind: Callable[[Any], Any]) -> Any:
    value = config.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value not in RANGES[name]:
        raise ConfigError(f"{path}: {name} is {value!r}, but must be {RANGES[name]}")
    return kind(value)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return content
