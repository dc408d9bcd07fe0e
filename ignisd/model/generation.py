"""What a checkpoint's `generation_config.json` says about sampling and the end of an answer."""

from collections.abc import Mapping
from pathlib import Path

from ignisd.chat.types import GenerationDefaults, SamplingFields
from ignisd.errors import ConfigError
from ignisd.model.spec import ModelSpec, eos_ids_of, read_json

GENERATION_NAME = "generation_config.json"


def read_generation(directory: Path) -> GenerationDefaults:
    """The defaults that the checkpoint in `directory` asks for; none where it has no such file.

    `do_sample: false` is read as temperature 0, which is what it means to its author.

    Raises:
        ConfigError: a field is of the wrong type or out of its range.
    """
    path = directory / GENERATION_NAME
    if not path.exists():
        return GenerationDefaults()
    return from_generation_config(read_json(path))


def from_generation_config(config: Mapping[str, object]) -> GenerationDefaults:
    """The defaults in a parsed `generation_config.json`; fields that it lacks stay None."""
    greedy = config.get("do_sample") is False
    top_k = _number(config, "top_k", 0, None)
    if top_k is not None and not top_k.is_integer():
        raise ConfigError(f"{GENERATION_NAME}: top_k is {top_k}, wanted an integer")
    return GenerationDefaults(
        sampling=SamplingFields(
            temperature=0.0 if greedy else _number(config, "temperature", 0, None),
            top_k=None if top_k is None else int(top_k),
            top_p=_number(config, "top_p", 0, 1),
            min_p=_number(config, "min_p", 0, 1),
            presence_penalty=_number(config, "presence_penalty", -2, 2),
            frequency_penalty=_number(config, "frequency_penalty", -2, 2),
            repetition_penalty=_number(config, "repetition_penalty", 0, None),
        ),
        eos_ids=eos_ids_of(config.get("eos_token_id"), f"{GENERATION_NAME}: eos_token_id"),
    )


def stop_ids(spec: ModelSpec, defaults: GenerationDefaults) -> frozenset[int]:
    """The tokens that end an answer: those of `config.json` and of `generation_config.json`.

    Raises:
        ConfigError: one of them lies outside the vocabulary.
    """
    ids = frozenset(spec.eos_ids) | frozenset(defaults.eos_ids)
    outside = sorted(token for token in ids if token >= spec.vocab_size)
    if outside:
        raise ConfigError(
            f"eos_token_id holds {outside}, beyond the vocabulary of {spec.vocab_size} tokens"
        )
    return ids


def _number(
    config: Mapping[str, object], name: str, least: float, most: float | None
) -> float | None:
    value = config.get(name)
    if value is None:
        return None
    wanted = f"at least {least}" if most is None else f"from {least} to {most}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{GENERATION_NAME}: {name} is {value!r}, wanted a number {wanted}")
    if not (least <= value and (most is None or value <= most)):
        raise ConfigError(f"{GENERATION_NAME}: {name} is {value}, wanted a number {wanted}")
    return float(value)
