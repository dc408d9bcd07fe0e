"""What a tokenizer says of a text without reading all of it."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers

from ignisd.chat.tokenizer import ChatTokenizer
from tests.chat.toy import raw_tokenizer


class Counting(ChatTokenizer):
    """Notes how many characters were tokenized."""

    read = 0

    def encode(self, text):
        self.read += len(text)
        return super().encode(text)


def tokenizer(**changes):
    description = {**json.loads(raw_tokenizer().to_str()), **changes}
    return Counting(Tokenizer.from_str(json.dumps(description)))


TEXTS = {
    "words": "hello word " * 3000,
    "one letter": "a" * 30_000,
    "merged": "hello" * 6000,
    "blank": " " * 30_000,
    "lines": "\n" * 30_000,
    "wide": "é🙂汉" * 5000,
    "special": "<|im_start|>" * 2500,
    "composed": "e\u0301" * 10_000,
}


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("limit", [1, 50, 1000, 2500, 5000, 29_999, 30_001, 10**6])
def test_a_lower_bound_is_one(name, limit, normalizer):
    reading = tokenizer(normalizer=normalizer)
    least = reading.at_least(TEXTS[name], limit)
    has = len(tokenizer(normalizer=normalizer).encode(TEXTS[name]))
    if least is not None:
        assert limit <= least <= has


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}, {"type": "Lowercase"}])
def test_a_text_that_is_far_too_long_is_refused_without_being_read(name, normalizer):
    reading = tokenizer(normalizer=normalizer)
    text = TEXTS[name] * 4
    assert reading.at_least(text, 100) is not None
    assert reading.read <= (6 + 24) * 100
    if normalizer != {"type": "Lowercase"}:
        assert reading.read == 0  # by its bytes alone


def test_a_text_that_fits_is_not_refused_however_long_its_tokens():
    """Sixteen letters in a row are one token: the bytes say little."""
    merges, vocabulary = [], json.loads(raw_tokenizer().to_str())["model"]["vocab"]
    for size in (1, 2, 4, 8):
        merges.append(["z" * size, "z" * size])
        vocabulary["z" * 2 * size] = 10_000 + size
    model = {**json.loads(raw_tokenizer().to_str())["model"], "vocab": vocabulary, "merges": merges}
    reading = tokenizer(model=model)
    text = "z" * 160_000
    assert len(reading.encode(text)) == 10_000
    assert reading.at_least(text, 10_001) is None
    assert reading.at_least(text, 9_999) == 10_000
    # What the longest entry does not tell, a prefix does.
    text = "ab" * 80_000
    reading.read = 0
    assert (reading.at_least(text, 11_000) or 0) >= 11_000
    assert reading.read <= 6 * 11_000


@pytest.mark.parametrize("kind", ["lstrip", "rstrip"])
def test_where_a_token_swallows_blanks_bytes_tell_nothing(kind):
    raw = raw_tokenizer()
    raw.add_special_tokens([AddedToken("<mask>", **{kind: True})])
    text = " " * 20_000 + "<mask>" + " " * 20_000
    assert len(ChatTokenizer(raw).encode(text)) == 20_001
    assert ChatTokenizer(raw).at_least(text, 20_002) is None


def test_a_checkpoint_that_truncates_or_pads_is_not_followed():
    raw = raw_tokenizer()
    raw.enable_truncation(max_length=4)
    raw.enable_padding(length=100)
    assert len(ChatTokenizer(raw).encode("abcdefgh")) == 8


def test_other_normalizers_are_not_reckoned_with():
    raw = raw_tokenizer()
    raw.normalizer = normalizers.Strip()
    reading = ChatTokenizer(raw)
    assert len(reading.encode(" " * 50 + "ab")) == 2
    assert reading.at_least(" " * 50 + "ab", 3) is None
