"""Writes checkpoint folders as Hugging Face lays them out, for tests and benchmarks."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from ignisd.model.qwen3_5 import abstract
from ignisd.model.spec import TEXT_TYPE, LayerKind, ModelSpec
from ignisd.model.weight_spec import Params, leaves

_LAYER_TYPE_NAMES = {LayerKind.FULL: "full_attention", LayerKind.LINEAR: "linear_attention"}


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """The `config.json` that reads back as `spec`."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": TEXT_TYPE,
        "attention_bias": False,
        "attn_output_gate": True,
        "eos_token_id": list(spec.eos_ids) or None,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "layer_types": [_LAYER_TYPE_NAMES[kind] for kind in spec.layer_kinds],
        "linear_conv_kernel_dim": spec.conv_width,
        "linear_key_head_dim": spec.linear_key_dim,
        "linear_num_key_heads": spec.linear_key_heads,
        "linear_num_value_heads": spec.linear_value_heads,
        "linear_value_head_dim": spec.linear_value_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": spec.max_position,
        "num_attention_heads": spec.num_heads,
        "num_hidden_layers": spec.num_layers,
        "num_key_value_heads": spec.num_kv_heads,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": spec.rope_theta,
            "partial_rotary_factor": spec.rotary_dims / spec.head_dim,
        },
        "tie_word_embeddings": spec.tied,
        "vocab_size": spec.vocab_size,
    }


def stored_tensors(spec: ModelSpec, params: Params) -> dict[str, np.ndarray]:
    """The tensors of `params` by their checkpoint names, in their checkpoint shapes."""
    weights = leaves(abstract(spec))
    arrays = jax.tree.leaves(params)
    return {
        weight.source: np.asarray(array).reshape(weight.source_shape)
        for weight, array in zip(weights, arrays, strict=True)
    }


def save_checkpoint(directory: Path, spec: ModelSpec, params: Params) -> None:
    """`config.json` and `model.safetensors`; the loader gives back equal arrays."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", config_of(spec))
    save_file(stored_tensors(spec, params), directory / "model.safetensors", {"format": "np"})


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
