"""The geometry of a hybrid model, read from a Hugging Face `config.json`.

Only what the forward pass implements is accepted: every field that would change the mathematics
and is not supported is refused by name, so that a checkpoint never runs as something it is not.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ignisd.errors import ConfigError
from state.spec import KvFormat, StateSpec

TEXT_TYPE = "qwen3_5_text"
MULTIMODAL_TYPE = "qwen3_5"
SUPPORTED_TYPES = (TEXT_TYPE, MULTIMODAL_TYPE)

# The family's published value; older config files leave it out.
DEFAULT_PARTIAL_ROTARY = 0.25
DEFAULT_FULL_INTERVAL = 4
CONV_WIDTH = 4

Config = Mapping[str, object]


class LayerKind(StrEnum):
    """How a layer mixes tokens."""

    FULL = "full"
    LINEAR = "linear"
    WINDOW = "window"


_LAYER_TYPES = {"full_attention": LayerKind.FULL, "linear_attention": LayerKind.LINEAR}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Geometry of one model; every number that shapes its weights or its state.

    Args:
        model_type: the text part's type, `qwen3_5_text`.
        vocab_size: rows of the embedding, padding rows included.
        layer_kinds: one entry a layer, first layer first.
        num_heads, num_kv_heads, head_dim: full attention; a head's width is in numbers.
        rotary_dims: leading numbers of each head that are rotated; even.
        linear_key_heads, linear_value_heads, linear_key_dim, linear_value_dim: delta-rule layers.
        conv_width: taps of the causal convolution; its tail is one shorter.
        tied: the output head is the embedding.
        max_position: longest context in tokens that the checkpoint was made for.
        eos_ids: the token ids that the config names as ends of text, ascending.
        attn_output_gate: the query projection also yields a gate for each head.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    layer_kinds: tuple[LayerKind, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dims: int
    rope_theta: float
    rms_norm_eps: float
    intermediate_size: int
    linear_key_heads: int
    linear_value_heads: int
    linear_key_dim: int
    linear_value_dim: int
    conv_width: int
    tied: bool
    max_position: int
    eos_ids: tuple[int, ...]
    attn_output_gate: bool

    @property
    def num_full(self) -> int:
        """Layers that keep pages of keys and values."""
        return self.layer_kinds.count(LayerKind.FULL)

    @property
    def num_linear(self) -> int:
        """Layers that keep a recurrent state and a convolution tail."""
        return self.layer_kinds.count(LayerKind.LINEAR)

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution: queries, keys and values side by side."""
        return (
            2 * self.linear_key_heads * self.linear_key_dim
            + self.linear_value_heads * self.linear_value_dim
        )

    @property
    def value_width(self) -> int:
        """Numbers a token in a delta-rule layer's output before the last projection."""
        return self.linear_value_heads * self.linear_value_dim

    def state_spec(self, kv_format: KvFormat) -> StateSpec:
        """What a sequence of this model keeps, with keys and values held in `kv_format`."""
        return StateSpec(
            num_full=self.num_full,
            kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            num_linear=self.num_linear,
            value_heads=self.linear_value_heads,
            key_dim=self.linear_key_dim,
            value_dim=self.linear_value_dim,
            conv_channels=self.conv_channels,
            conv_width=self.conv_width,
            kv_format=kv_format,
        )


def read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file; `ConfigError` when it is absent, unreadable or no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; --model must name a checkpoint folder") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}, wanted an object")
    return value


def read_spec(directory: Path) -> ModelSpec:
    """The geometry of the checkpoint in `directory`; `ConfigError` if it is not supported."""
    return from_config(read_json(directory / "config.json"))


def from_config(config: Config) -> ModelSpec:
    """The geometry that a parsed `config.json` states.

    A multimodal config (`qwen3_5`) nests its text part in `text_config`.

    Raises:
        ConfigError: a field is missing, has the wrong type, contradicts another, or asks for
            something that the forward pass does not do. The message names the field.
    """
    text = _text_part(config)
    _refuse_unsupported(config, text)
    kinds = _layer_kinds(text)
    head_dim = _integer(text, "head_dim")
    spec = ModelSpec(
        model_type=TEXT_TYPE,
        vocab_size=_integer(text, "vocab_size"),
        hidden_size=_integer(text, "hidden_size"),
        num_layers=len(kinds),
        layer_kinds=kinds,
        num_heads=_integer(text, "num_attention_heads"),
        num_kv_heads=_integer(text, "num_key_value_heads"),
        head_dim=head_dim,
        rotary_dims=_rotary_dims(text, head_dim),
        rope_theta=_rope_theta(text),
        rms_norm_eps=_positive(text, "rms_norm_eps", 1e-6),
        intermediate_size=_integer(text, "intermediate_size"),
        linear_key_heads=_integer(text, "linear_num_key_heads"),
        linear_value_heads=_integer(text, "linear_num_value_heads"),
        linear_key_dim=_integer(text, "linear_key_head_dim"),
        linear_value_dim=_integer(text, "linear_value_head_dim"),
        conv_width=CONV_WIDTH,
        tied=_tied(config, text),
        max_position=_integer(text, "max_position_embeddings"),
        eos_ids=_eos_ids(config, text),
        attn_output_gate=True,
    )
    _check_ratios(spec)
    return spec


def _text_part(config: Config) -> Config:
    model_type = config.get("model_type")
    if model_type == TEXT_TYPE:
        return config
    if model_type != MULTIMODAL_TYPE:
        raise ConfigError(
            f"model_type is {model_type!r}; this build serves {', '.join(SUPPORTED_TYPES)}"
        )
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise ConfigError(f"model_type {MULTIMODAL_TYPE!r} needs text_config, an object")
    inner = text.get("model_type", TEXT_TYPE)
    if inner != TEXT_TYPE:
        raise ConfigError(f"text_config.model_type is {inner!r}, wanted {TEXT_TYPE!r}")
    return text


def _refuse_unsupported(config: Config, text: Config) -> None:
    """Raise for each field whose value would ask for other mathematics than is implemented."""
    wanted: tuple[tuple[str, object], ...] = (
        ("hidden_act", "silu"),
        ("attention_bias", False),
        ("attn_output_gate", True),
        ("mamba_ssm_dtype", "float32"),
        ("output_gate_type", "silu"),
        ("linear_conv_kernel_dim", CONV_WIDTH),
    )
    for name, value in wanted:
        found = text.get(name, value)
        if found is not None and found != value:
            raise ConfigError(f"{name} is {found!r}; this build implements only {value!r}")
    for part in (config, text):
        if part.get("quantization_config") is not None:
            raise ConfigError(
                "quantization_config is set; this build loads bf16, f16 and f32 checkpoints only"
            )
    experts = text.get("num_experts")
    if experts not in (None, 0):
        raise ConfigError(f"num_experts is {experts!r}; this build serves dense layers only")


def _layer_kinds(text: Config) -> tuple[LayerKind, ...]:
    num_layers = _integer(text, "num_hidden_layers")
    types = text.get("layer_types")
    if types is None:
        interval = _integer(text, "full_attention_interval", DEFAULT_FULL_INTERVAL)
        return tuple(
            LayerKind.LINEAR if (layer + 1) % interval else LayerKind.FULL
            for layer in range(num_layers)
        )
    if not isinstance(types, list) or len(types) != num_layers:
        had = f"{len(types)} entries" if isinstance(types, list) else type(types).__name__
        raise ConfigError(f"layer_types has {had}, wanted num_hidden_layers = {num_layers}")
    for layer, name in enumerate(types):
        if not isinstance(name, str) or name not in _LAYER_TYPES:
            raise ConfigError(
                f"layer_types[{layer}] is {name!r}; this build implements {', '.join(_LAYER_TYPES)}"
            )
    return tuple(_LAYER_TYPES[name] for name in types)


def _rope(text: Config) -> Config:
    """The rotary settings: `rope_parameters`, or the flat fields of older files."""
    if text.get("rope_scaling") is not None:
        raise ConfigError("rope_scaling is set; this build implements only unscaled rotary")
    rope = text.get("rope_parameters")
    if rope is None:
        return text
    if not isinstance(rope, dict):
        raise ConfigError(f"rope_parameters is a {type(rope).__name__}, wanted an object")
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise ConfigError(
            f"rope_parameters.rope_type is {kind!r}; this build implements only 'default'"
        )
    return rope


def _rope_theta(text: Config) -> float:
    rope = _rope(text)
    return _positive(rope if "rope_theta" in rope else text, "rope_theta")


def _rotary_dims(text: Config, head_dim: int) -> int:
    rope = _rope(text)
    part = rope if "partial_rotary_factor" in rope else text
    factor = _positive(part, "partial_rotary_factor", DEFAULT_PARTIAL_ROTARY)
    dims = int(head_dim * factor)
    if factor > 1 or dims < 2 or dims % 2:
        raise ConfigError(
            f"head_dim {head_dim} times partial_rotary_factor {factor} gives {dims} rotated "
            f"numbers, wanted an even number from 2 to {head_dim}"
        )
    return dims


def _tied(config: Config, text: Config) -> bool:
    """Whether the head is the embedding; the outermost statement counts."""
    value = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    if not isinstance(value, bool):
        raise ConfigError(f"tie_word_embeddings is {value!r}, wanted true or false")
    return value


def eos_ids_of(value: object, name: str) -> tuple[int, ...]:
    """Token ids from an `eos_token_id` field, which may be null, one id or a list of ids."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise ConfigError(f"{name} holds {token!r}, wanted token ids of at least 0")
    return tuple(sorted(set(ids)))


def _eos_ids(config: Config, text: Config) -> tuple[int, ...]:
    value = text.get("eos_token_id")
    if value is None:
        value = config.get("eos_token_id")
    return eos_ids_of(value, "eos_token_id")


def _integer(config: Config, name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None:
        value = default
    if value is None:
        raise ConfigError(f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}, wanted an integer of at least 1")
    return value


def _positive(config: Config, name: str, default: float | None = None) -> float:
    value = config.get(name)
    if value is None:
        value = default
    if value is None:
        raise ConfigError(f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{name} is {value!r}, wanted a finite number above 0")
    return float(value)


def _check_ratios(spec: ModelSpec) -> None:
    """Raise when query heads do not divide among key heads, in either kind of layer."""
    pairs = (
        ("num_attention_heads", spec.num_heads, "num_key_value_heads", spec.num_kv_heads),
        (
            "linear_num_value_heads",
            spec.linear_value_heads,
            "linear_num_key_heads",
            spec.linear_key_heads,
        ),
    )
    for outer, many, inner, few in pairs:
        if many % few:
            raise ConfigError(f"{outer} {many} is no multiple of {inner} {few}")
