"""Writes and reads the shipped checkpoint: Hugging Face names, bf16, tied embeddings."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from ignisd.ember.network import Params, Shape, weight_shapes
from ignisd.ember.tokenizer import MAX_CONTEXT, load

WEIGHTS_NAME = "model.safetensors"


def config(shape: Shape, directory: Path) -> dict[str, Any]:
    """`config.json` of a text-only Qwen3.5 model."""
    end, pad = (load(directory).token_to_id(name) for name in ("<|im_end|>", "<|endoftext|>"))
    frequencies = shape.rotary_dims // 2
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "full_attention_interval": shape.full_interval,
        "layer_types": [
            "full_attention" if shape.is_full(layer) else "linear_attention"
            for layer in range(shape.num_layers)
        ],
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "attn_output_gate": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "linear_num_key_heads": shape.linear_key_heads,
        "linear_num_value_heads": shape.linear_value_heads,
        "linear_key_head_dim": shape.linear_head_dim,
        "linear_value_head_dim": shape.linear_head_dim,
        "linear_conv_kernel_dim": shape.conv_width,
        "mamba_ssm_dtype": "float32",
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "max_position_embeddings": MAX_CONTEXT,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": shape.rope_theta,
            "partial_rotary_factor": shape.rotary_dims / shape.head_dim,
            "mrope_interleaved": True,
            "mrope_section": [frequencies - 2 * (frequencies // 3), *2 * [frequencies // 3]],
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": pad,
    }


def generation_config(directory: Path) -> dict[str, Any]:
    """`generation_config.json`: low temperature, for a model that repeats what it was told."""
    end, pad = (load(directory).token_to_id(name) for name in ("<|im_end|>", "<|endoftext|>"))
    return {
        "do_sample": True,
        "temperature": 0.2,
        "top_p": 0.9,
        "top_k": 20,
        "eos_token_id": [end, pad],
        "pad_token_id": pad,
    }


def export(params: Params, shape: Shape, directory: Path) -> None:
    """Writes weights and both configs beside the tokenizer that `directory` already holds."""
    tensors = {name: np.asarray(value).astype(ml_dtypes.bfloat16) for name, value in params.items()}
    path = directory / WEIGHTS_NAME
    save_file(tensors, str(path), metadata={"format": "pt"})
    # The writer makes it private, and a package is read by other users than its installer.
    path.chmod(0o644)
    contents = (
        ("config.json", config(shape, directory)),
        ("generation_config.json", generation_config(directory)),
    )
    for name, content in contents:
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read(directory: Path) -> tuple[Params, Shape]:
    """The weights in f32 and the shape of an exported checkpoint.

    Raises:
        ValueError: a tensor is missing, unknown or of another shape than the config says.
    """
    stored = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    rope = stored["rope_parameters"]
    shape = Shape(
        vocab_size=stored["vocab_size"],
        hidden_size=stored["hidden_size"],
        num_layers=stored["num_hidden_layers"],
        full_interval=stored["full_attention_interval"],
        num_heads=stored["num_attention_heads"],
        num_kv_heads=stored["num_key_value_heads"],
        head_dim=stored["head_dim"],
        rotary_dims=round(rope["partial_rotary_factor"] * stored["head_dim"]),
        rope_theta=rope["rope_theta"],
        rms_norm_eps=stored["rms_norm_eps"],
        intermediate_size=stored["intermediate_size"],
        linear_key_heads=stored["linear_num_key_heads"],
        linear_value_heads=stored["linear_num_value_heads"],
        linear_head_dim=stored["linear_key_head_dim"],
        conv_width=stored["linear_conv_kernel_dim"],
    )
    tensors = load_file(str(directory / WEIGHTS_NAME))
    found = {name: value.shape for name, value in tensors.items()}
    if found != weight_shapes(shape):
        wrong = set(found.items()) ^ set(weight_shapes(shape).items())
        raise ValueError(f"{directory}: tensors do not fit config.json: {sorted(wrong)}")
    return {name: jnp.asarray(value, jnp.float32) for name, value in tensors.items()}, shape
