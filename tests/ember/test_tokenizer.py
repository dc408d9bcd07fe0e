"""The shipped tokenizer: round trips, single ids for added tokens, the split pattern."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignisd.ember import WEIGHTS_DIR, tokenizer

SHIPPED = tokenizer.load()


@given(st.text(max_size=200))
def test_any_text_in_normal_form_comes_back(text):
    text = SHIPPED.normalizer.normalize_str(text)
    assert SHIPPED.decode(SHIPPED.encode(text).ids, skip_special_tokens=False) == text


def test_added_tokens_are_single_ids_after_the_learnt_ones():
    added = tokenizer.SPECIAL_TOKENS + tokenizer.MARKUP_TOKENS
    ids = [SHIPPED.encode(token).ids for token in added]
    first = tokenizer.VOCAB_SIZE - len(added)
    assert ids == [[first + index] for index in range(len(added))]
    assert SHIPPED.get_vocab_size() == tokenizer.VOCAB_SIZE


def test_plain_decode_drops_special_tokens_and_keeps_markup():
    ids = SHIPPED.encode("<|im_start|><think>a</think><tool_call>b</tool_call><|im_end|>").ids
    assert SHIPPED.decode(ids) == "<think>a</think><tool_call>b</tool_call>"


def test_digits_stand_alone():
    assert SHIPPED.encode("48210").tokens == list("48210")


@pytest.mark.parametrize("space", [" ", ""])
def test_every_byte_has_an_id(space):
    text = space + "".join(chr(point) for point in range(0x20, 0x17F))
    text = SHIPPED.normalizer.normalize_str(text)
    assert SHIPPED.decode(SHIPPED.encode(text).ids) == text


def test_opener_is_what_training_and_the_daemon_share():
    pieces = SHIPPED.encode("<|im_start|>assistant\n<think>\n\n</think>\n\nHello").tokens
    assert pieces == ["<|im_start|>", "assistant", "Ċ", "<think>", "ĊĊ", "</think>", "ĊĊ", "Hello"]


def test_a_cut_after_the_opener_is_a_token_border():
    """A prompt that goes on after the opener begins with the same ids, whatever follows."""
    opener = SHIPPED.encode("<|im_start|>assistant\n").ids
    for after in ("<think>\n", "<think>\n\n</think>\n\n", "Hello", "1"):
        assert SHIPPED.encode("<|im_start|>assistant\n" + after).ids[: len(opener)] == opener


def test_config_agrees_with_the_vocabulary():
    config = json.loads((WEIGHTS_DIR / "config.json").read_text())
    generation = json.loads((WEIGHTS_DIR / "generation_config.json").read_text())
    end, pad = (SHIPPED.token_to_id(name) for name in ("<|im_end|>", "<|endoftext|>"))
    assert config["vocab_size"] == SHIPPED.get_vocab_size()
    assert generation["eos_token_id"] == [end, pad]
    assert (
        json.loads((WEIGHTS_DIR / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"
    )


def test_building_is_a_function_of_the_code():
    assert tokenizer.build(60).to_str() == tokenizer.build(60).to_str()
