"""The byte-level BPE of ember: the Qwen split pattern, merges learnt from the curriculum."""

import argparse
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from ignisd.ember import WEIGHTS_DIR, curriculum, smalltalk, words
from ignisd.ember.curriculum import INVENTED
from ignisd.ember.english import Prose, training_prose

VOCAB_SIZE = 4096
"""Entries in all, added tokens included."""

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
"""Tokens that a plain decode drops."""

MARKUP_TOKENS = (
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
"""Tokens that are single ids but stay in decoded text."""

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Words with one leading space, single digits, runs of signs, runs of blanks."""

MAX_CONTEXT = 65_536
CORPUS_SEED = 11
CORPUS_CONVERSATIONS = 20_000


def corpus(num_conversations: int, prose: Prose) -> Iterator[str]:
    """Texts between added tokens: conversations, the word lists, prose."""
    rng = random.Random(CORPUS_SEED)
    levels = (
        curriculum.Level(max_facts=4, filler_turns=2, max_questions=3),
        curriculum.Level(6, 2, 3, 0.03, 0.1, 1_000, 4_000),
    )
    everything = [
        *words.FIRST_NAMES, *words.CITIES, *words.COMMON, *words.VERBS, *words.JOBS, *words.FOODS,
        *words.HOBBIES, *words.OBJECTS, *words.ADJECTIVES, *words.ANIMALS, *words.COLOURS,
    ]  # fmt: skip
    for _ in range(num_conversations // 150):
        rng.shuffle(everything)
        yield " " + " ".join(everything)
        yield from (ask for asks, reply in smalltalk.EXCHANGES for ask in (*asks, reply))
    for index in range(num_conversations):
        talk = curriculum.conversation(rng, levels[index % len(levels)], prose)
        yield from _between_added(talk.text)
        yield prose.stretch(rng, 250)


def _between_added(text: str) -> Iterator[str]:
    for token in SPECIAL_TOKENS + MARKUP_TOKENS:
        text = text.replace(token, "\0")
    yield from (piece for piece in text.split("\0") if piece)


def build(num_conversations: int = CORPUS_CONVERSATIONS, prose: Prose = INVENTED) -> Tokenizer:
    """Learns the merges; the result depends on the code, `CORPUS_SEED` and the prose alone.

    A change of the curriculum changes the ids, so shipped weights keep the file they were trained
    with.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS) - len(MARKUP_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(num_conversations, prose), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS]
    )
    return tokenizer


def tokenizer_config() -> dict[str, object]:
    """What `tokenizer_config.json` holds beside the vocabulary."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": MAX_CONTEXT,
    }


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = json.dumps(tokenizer_config(), indent=2) + "\n"
    (directory / "tokenizer_config.json").write_text(config, encoding="utf-8")


@cache
def load(directory: Path = WEIGHTS_DIR) -> Tokenizer:
    """The tokenizer of a checkpoint directory."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def main() -> None:
    """Builds a tokenizer for a model that is still to be trained."""
    parser = argparse.ArgumentParser(prog="python -m ignisd.ember.tokenizer", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory to write to")
    parser.add_argument(
        "--texts", type=Path, help="cache of the public-domain texts, fetched if not there"
    )
    options = parser.parse_args()
    tokenizer = build(prose=training_prose(options.texts))
    save(tokenizer, options.out)
    print(f"{tokenizer.get_vocab_size()} entries written to {options.out}")


if __name__ == "__main__":
    main()
