"""Writes a random checkpoint with tokenizer and chat template; needs no torch.

Run from the repository root: `python -m tests.model.make_random_checkpoint DIR --size 100m`.
It speaks gibberish, but in the right shape: for benchmarks, and for properties on other head
ratios than the embedded model has.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from ignisd.model.qwen3_5 import abstract
from ignisd.model.spec import LayerKind, ModelSpec
from ignisd.model.weight_spec import total_size
from ignisd.model.weights import random_params
from tests.model.checkpoints import save_checkpoint, write_json

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
"""


def _shape(num_layers: int, interval: int, vocab_size: int, **sizes: int) -> ModelSpec:
    kinds = tuple(
        LayerKind.LINEAR if (layer + 1) % interval else LayerKind.FULL
        for layer in range(num_layers)
    )
    return ModelSpec(
        model_type="qwen3_5_text",
        vocab_size=vocab_size,
        num_layers=num_layers,
        layer_kinds=kinds,
        rotary_dims=sizes["head_dim"] // 4,
        rope_theta=1e7,
        rms_norm_eps=1e-6,
        conv_width=4,
        tied=True,
        max_position=65_536,
        eos_ids=(vocab_size - len(SPECIAL_TOKENS) - len(PLAIN_TOKENS),),
        attn_output_gate=True,
        **sizes,
    )


SIZES = {
    # Three value heads a key head and three query heads a KV head, both unlike the embedded model.
    "tiny": _shape(
        num_layers=4,
        interval=2,
        vocab_size=512,
        hidden_size=96,
        intermediate_size=160,
        num_heads=3,
        num_kv_heads=1,
        head_dim=32,
        linear_key_heads=2,
        linear_value_heads=6,
        linear_key_dim=32,
        linear_value_dim=16,
    ),
    "100m": _shape(
        num_layers=12,
        interval=4,
        vocab_size=8192,
        hidden_size=768,
        intermediate_size=2048,
        num_heads=4,
        num_kv_heads=2,
        head_dim=256,
        linear_key_heads=8,
        linear_value_heads=16,
        linear_key_dim=128,
        linear_value_dim=128,
    ),
}


def write_random_checkpoint(directory: Path, spec: ModelSpec, seed: int) -> None:
    """A whole checkpoint folder: weights in bf16, configs, tokenizer, chat template."""
    save_checkpoint(directory, spec, random_params(spec, seed, jnp.bfloat16))
    make_tokenizer(spec.vocab_size, seed).save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    im_end = spec.eos_ids[0] + SPECIAL_TOKENS.index("<|im_end|>")
    write_json(
        directory / "generation_config.json",
        {
            "do_sample": True,
            "temperature": 1.0,
            "top_k": 20,
            "top_p": 0.95,
            "eos_token_id": [im_end, *spec.eos_ids],
        },
    )


def make_tokenizer(vocab_size: int, seed: int) -> Tokenizer:
    """A byte-level BPE of exactly `vocab_size` entries, the added tokens last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(PLAIN_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sentences(vocab_size, seed), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in PLAIN_TOKENS]
    )
    assert tokenizer.get_vocab_size() == vocab_size
    return tokenizer


def _sentences(num_words: int, seed: int) -> Iterator[str]:
    """The roles, then made-up words, the early ones often: enough of them for as many merges."""
    yield from ["system\nuser\nassistant\n"] * (8 * num_words)
    drawn = random.Random(seed)
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    words = ["".join(drawn.choices(syllables, k=drawn.randint(1, 4))) for _ in range(num_words)]
    for count in range(8):
        for start in range(0, len(words) >> count, 12):
            yield " ".join(words[start : start + 12]).capitalize() + ".\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--size", choices=SIZES, default="100m")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    spec = SIZES[options.size]
    write_random_checkpoint(options.directory, spec, options.seed)
    sys.stdout.write(f"{options.directory}: {total_size(abstract(spec)):,} parameters\n")


if __name__ == "__main__":
    main()
