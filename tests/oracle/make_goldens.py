"""Makes the goldens beside this file with torch and transformers (`pip install '.[oracle]'`).

Each case is a tiny checkpoint as transformers saves it, and the logits that transformers computes
from it in float32: selected rows of a prefill, and 64 decode steps fed with tokens sampled from
the same logits. Every weight is drawn, so that none sits at its neutral value.

Run from the repository root: `python -m tests.oracle.make_goldens`. Case names may follow.
"""

import argparse
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5TextConfig,
)

from tests.oracle.cases import GOLDENS, LENGTHS, NUM_STEPS, kept_rows

VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "patch_size": 4,
    "num_position_embeddings": 16,
    "out_hidden_size": 64,
}


@dataclass(frozen=True)
class Case:
    """One checkpoint: how it differs from the base shape, and how it is stored."""

    name: str
    seed: int
    dtype: torch.dtype
    shape: dict[str, Any] = field(default_factory=dict)
    partial_rotary: float = 0.25
    multimodal: bool = False
    max_shard: str = "1GB"

    def text_config(self) -> Qwen3_5TextConfig:
        shape: dict[str, Any] = {
            "vocab_size": 130,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "head_dim": 64,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": self.partial_rotary,
                "mrope_section": [3, 3, 2],
                "mrope_interleaved": True,
            },
            "eos_token_id": 2,
        }
        return Qwen3_5TextConfig(**(shape | self.shape))


CASES = (
    Case(
        "tied_even",
        seed=1,
        dtype=torch.bfloat16,
        shape={
            "tie_word_embeddings": True,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_value_head_dim": 64,
        },
    ),
    Case(
        "untied_double",
        seed=2,
        dtype=torch.float32,
        shape={
            "vocab_size": 150,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
    ),
    Case(
        "untied_triple",
        seed=3,
        dtype=torch.float16,
        partial_rotary=0.5,
        shape={
            "hidden_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 6,
        },
    ),
    Case(
        "nested_sharded",
        seed=4,
        dtype=torch.bfloat16,
        multimodal=True,
        max_shard="150KB",
        shape={
            "num_hidden_layers": 5,
            "layer_types": [
                "linear_attention",
                "full_attention",
                "linear_attention",
                "linear_attention",
                "full_attention",
            ],
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
        },
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="cases to make; all by default")
    names = parser.parse_args().names
    torch.set_num_threads(1)
    for case in CASES:
        if not names or case.name in names:
            directory = GOLDENS / case.name
            shutil.rmtree(directory, ignore_errors=True)
            save_checkpoint(case, directory)
            write_logits(case, directory)
            size = sum(file.stat().st_size for file in directory.iterdir())
            sys.stdout.write(f"{case.name}: {size:,} bytes\n")


def save_checkpoint(case: Case, directory: Path) -> None:
    """A random checkpoint in `directory`, in the case's type and shards."""
    text = case.text_config()
    if case.multimodal:
        config = Qwen3_5Config(
            text_config=text.to_dict(),
            vision_config=VISION,
            tie_word_embeddings=text.tie_word_embeddings,
        )
        model = Qwen3_5ForConditionalGeneration(config)
    else:
        model = Qwen3_5ForCausalLM(text)
    generator = torch.Generator().manual_seed(case.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(draw(name, parameter.shape, generator, text.tie_word_embeddings))
    model.to(case.dtype).save_pretrained(directory, max_shard_size=case.max_shard)
    for file in directory.iterdir():
        file.chmod(0o644)


def draw(name: str, shape: torch.Size, generator: torch.Generator, tied: bool) -> torch.Tensor:
    """Values that keep activations near one, with decays from a few tokens to thousands.

    Layers add less to the residual than the embedding holds, as in trained models: with equal
    shares the rounding of bf16 grows through the layers until no top token is clear.
    """
    normal = torch.randn(shape, generator=generator)
    uniform = torch.rand(shape, generator=generator)
    if name.endswith("A_log"):
        return torch.log(0.05 + 8 * uniform)
    if name.endswith("dt_bias"):
        return torch.log(torch.expm1(1e-3 * 300**uniform))
    if name.endswith("conv1d.weight"):
        return 0.5 * normal
    if name.endswith("linear_attn.norm.weight"):
        return 1 + 0.2 * normal
    if len(shape) == 1:
        return 0.2 * normal
    gain = 1.0
    if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
        gain = 0.5
    if name.endswith("embed_tokens.weight"):
        gain = 2.0 if tied else 4.0
    return gain * normal * shape[1] ** -0.5


def load_oracle(directory: Path) -> torch.nn.Module:
    """The checkpoint in `directory` as a transformers model in float32."""
    nested = "vision_config" in (directory / "config.json").read_text()
    kind = Qwen3_5ForConditionalGeneration if nested else Qwen3_5ForCausalLM
    model = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@torch.no_grad()
def write_logits(case: Case, directory: Path) -> None:
    """For each length T, in `logits.npz`: `tokens_T` [T + steps], the read prompt and the fed
    tokens; `prefill_T` [rows, V], the rows that `kept_rows` names; `decode_T` [steps, V]."""
    model = load_oracle(directory)
    arrays: dict[str, Any] = {}
    for length in LENGTHS:
        generator = torch.Generator().manual_seed(1000 * case.seed + length)
        vocab = case.text_config().vocab_size
        prompt = torch.randint(vocab, (1, length), generator=generator)
        answer = model(input_ids=prompt, use_cache=True)
        rows = answer.logits[0]
        fed, steps = [], []
        last = rows[-1]
        for _ in range(NUM_STEPS):
            token = torch.multinomial(torch.softmax(last, -1), 1, generator=generator)
            answer = model(input_ids=token[None], cache=answer.past_key_values, use_cache=True)
            last = answer.logits[0, -1]
            fed.append(token)
            steps.append(last)
        arrays[f"tokens_{length}"] = torch.cat([prompt[0], *fed]).numpy().astype(np.int32)
        arrays[f"prefill_{length}"] = rows[list(kept_rows(length))].numpy()
        arrays[f"decode_{length}"] = torch.stack(steps).numpy()
    np.savez_compressed(directory / "logits.npz", **arrays)


if __name__ == "__main__":
    main()
