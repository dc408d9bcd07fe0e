"""What is read from `config.json`, and what is refused."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ignisd.errors import ConfigError
from ignisd.model.spec import LayerKind, from_config, read_spec
from state.spec import KvFormat
from tests.model.checkpoints import config_of
from tests.model.make_random_checkpoint import SIZES

# The published shape of the 27B model, as its config.json nests it.
BIG_TEXT: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "eos_token_id": 248044,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "model_type": "qwen3_5_text",
    "mtp_num_hidden_layers": 1,
    "num_attention_heads": 24,
    "num_hidden_layers": 64,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "vocab_size": 248320,
}
BIG: dict[str, Any] = {
    "model_type": "qwen3_5",
    "text_config": BIG_TEXT,
    "tie_word_embeddings": False,
    "vision_config": {"model_type": "qwen3_5", "depth": 27},
}


def _text(**changes: Any) -> dict[str, Any]:
    """The 27B text part alone, changed; a value of `...` removes the field."""
    config = copy.deepcopy(BIG_TEXT) | changes
    return {name: value for name, value in config.items() if value is not ...}


def test_the_27b_shape_and_its_state_have_the_published_sizes() -> None:
    spec = from_config(BIG)
    assert (spec.num_layers, spec.num_full, spec.num_linear) == (64, 16, 48)
    assert [spec.layer_kinds[i] for i in (0, 2, 3, 63)] == [
        LayerKind.LINEAR,
        LayerKind.LINEAR,
        LayerKind.FULL,
        LayerKind.FULL,
    ]
    assert (spec.rotary_dims, spec.rope_theta, spec.eos_ids) == (64, 1e7, (248044,))
    assert not spec.tied
    state_spec = spec.state_spec(KvFormat.BF16)
    assert state_spec.conv_channels == 10_240
    assert state_spec.token_bytes == 16 * 2 * 4 * 256 * 2
    assert state_spec.image_bytes == 144 * 2**20 + 48 * 10_240 * 3 * 2 + 4


@pytest.mark.parametrize("name", SIZES)
def test_a_written_config_reads_back(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of(SIZES[name])))
    assert read_spec(tmp_path) == SIZES[name]


def test_layer_types_win_over_the_interval() -> None:
    types = ["full_attention"] + ["linear_attention"] * 63
    spec = from_config(_text(layer_types=types))
    assert (spec.layer_kinds[0], spec.num_full) == (LayerKind.FULL, 1)


def test_older_flat_rotary_fields_are_read() -> None:
    spec = from_config(_text(rope_parameters=..., rope_theta=5e5, partial_rotary_factor=0.5))
    assert (spec.rope_theta, spec.rotary_dims) == (5e5, 128)
    spec = from_config(_text(rope_parameters={"rope_theta": 5e5}))
    assert (spec.rope_theta, spec.rotary_dims) == (5e5, 64)


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [(True, False, True), (False, True, False), (..., True, True), (..., ..., False)],
)
def test_the_outermost_statement_on_tying_counts(outer: Any, inner: Any, tied: bool) -> None:
    config = {"model_type": "qwen3_5", "text_config": _text(tie_word_embeddings=inner)}
    if outer is not ...:
        config["tie_word_embeddings"] = outer
    assert from_config(config).tied is tied


@pytest.mark.parametrize(
    ("inner", "outer", "ids"),
    [(None, None, ()), (7, 8, (7,)), ([9, 7, 9], None, (7, 9)), (None, [8], (8,))],
)
def test_eos_ids_come_from_the_text_part_first(
    inner: Any, outer: Any, ids: tuple[int, ...]
) -> None:
    config = {**BIG, "eos_token_id": outer, "text_config": _text(eos_token_id=inner)}
    assert from_config(config).eos_ids == ids


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "llama"}, "model_type is 'llama'; this build serves qwen3_5_text, qwen3_5"),
    ({"model_type": ...}, "model_type is None"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ({"attention_bias": True}, "attention_bias is True"),
    ({"attn_output_gate": False}, "attn_output_gate is False"),
    ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype is 'bfloat16'"),
    ({"output_gate_type": "sigmoid"}, "output_gate_type is 'sigmoid'"),
    ({"linear_conv_kernel_dim": 3}, "linear_conv_kernel_dim is 3"),
    ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is set"),
    ({"num_experts": 256}, "num_experts is 256"),
    ({"layer_types": ["full_attention"]}, "layer_types has 1 entries, wanted .* = 64"),
    ({"layer_types": "full_attention"}, "layer_types has str"),
    ({"layer_types": ["sliding_attention"] * 64}, r"layer_types\[0\] is 'sliding_attention'"),
    ({"full_attention_interval": 0}, "full_attention_interval is 0"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7}}, "rope_type is 'yarn'"),
    ({"rope_parameters": "default"}, "rope_parameters is a str"),
    ({"rope_parameters": {"rope_type": "default"}}, "rope_theta is missing"),
    ({"rope_parameters": {"rope_theta": float("inf")}}, "rope_theta is inf"),
    ({"rope_parameters": ..., "rope_theta": 1e7, "rope_scaling": {}}, "rope_scaling is set"),
    ({"head_dim": 100}, "head_dim 100 .* 0.25 gives 25 rotated"),
    (
        {"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 1.5}},
        "partial_rotary_factor 1.5 gives 384",
    ),
    ({"num_key_value_heads": 5}, "num_attention_heads 24 is no multiple of .* 5"),
    ({"linear_num_key_heads": 32}, "linear_num_value_heads 48 is no multiple of .* 32"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
    ({"eos_token_id": -1}, "eos_token_id holds -1"),
    ({"eos_token_id": ["a"]}, "eos_token_id holds 'a'"),
    ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
    ({"hidden_size": True}, "hidden_size is True"),
    ({"vocab_size": "many"}, "vocab_size is 'many'"),
    *(
        ({name: ...}, f"{name} is missing")
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "linear_num_key_heads",
            "linear_num_value_heads",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "max_position_embeddings",
        )
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_config(_text(**changes))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "qwen3_5"}, "needs text_config"),
        (
            {"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_moe_text"}},
            "text_config.model_type is 'qwen3_5_moe_text'",
        ),
        (BIG | {"quantization_config": {}}, "quantization_config is set"),
        (BIG | {"tie_word_embeddings": None}, "tie_word_embeddings is None"),
    ],
)
def test_a_multimodal_config_that_does_not_fit_is_refused(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_config(config)


def _remove(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_text(path.read_text()[:-20])


def _list(path: Path) -> None:
    path.write_text("[1]")


def _latin(path: Path) -> None:
    path.write_bytes(b'{"name": "\xe9"}')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove, "config.json does not exist; --model must name"),
        (_cut, "config.json cannot be read as JSON"),
        (_list, "config.json holds a list, wanted an object"),
        (_latin, "config.json cannot be read as JSON"),
    ],
)
def test_a_damaged_file_is_named(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BIG))
    read_spec(tmp_path)
    damage(path)
    with pytest.raises(ConfigError, match=message):
        read_spec(tmp_path)
