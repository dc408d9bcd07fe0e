import string
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignisd.chat.output import AnswerReader, Channel, Delta, StopMatcher, TextDecoder
from tests.chat.toy import raw_tokenizer, toy_tokenizer

CORPUS = [
    b"plain ascii",
    "é ü ñ ß".encode(),
    "汉字 かな 한국어".encode(),
    "🎉🚀".encode(),
    "👩‍👩‍👧‍👦 family".encode(),
    b"lone \x80 continuation \xbf\xbf",
    b"cut at the end \xf0\x9f\x8e",
    b"\xe2\x82",
    b"over-long \xc0\xaf \xe0\x80\xaf \xf0\x80\x80\xaf",
    b"surrogate \xed\xa0\x80 half",
    b"beyond \xf4\x90\x80\x80 the last",
    b"never \xff\xfe\xf8 bytes",
    b"cut inside \xf0\x9f then more",
    b"",
]


class Pieces:
    """A vocabulary in which token i has the i-th piece of bytes; `marks` are named tokens."""

    def __init__(self, pieces, marks=None):
        self._pieces = pieces
        self._marks = marks or {}

    def token_bytes(self, token):
        return self._pieces[token] if token >= 0 else b""

    def token_id(self, text):
        return self._marks.get(text)


def cut(data, points):
    edges = [0, *sorted(point % (len(data) + 1) for point in points), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def read(reader, tokens):
    deltas = []
    for token in tokens:
        deltas += reader.feed(token)
        if reader.stopped:
            break
    return [*deltas, *reader.finish()]


def text_of(deltas, channel=Channel.CONTENT):
    return "".join(delta.text for delta in deltas if delta.channel is channel)


@pytest.mark.parametrize("data", CORPUS)
def test_text_cut_at_every_byte_decodes_like_the_whole(data):
    want = data.decode("utf-8", "replace")
    for at in range(len(data) + 1):
        decoder = TextDecoder()
        first = decoder.feed(data[:at])
        first.encode()
        assert first + decoder.feed(data[at:]) + decoder.flush() == want
    decoder = TextDecoder()
    assert "".join(decoder.feed(bytes([b])) for b in data) + decoder.flush() == want


@pytest.mark.parametrize("data", CORPUS)
def test_no_more_than_three_bytes_are_withheld(data):
    decoder = TextDecoder()
    shown = ""
    for at in range(len(data)):
        shown += decoder.feed(data[at : at + 1])
        certain = data[: max(0, at + 1 - 3)].decode("utf-8", "ignore")
        assert len(shown) >= len(certain)


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=8))
def test_any_bytes_in_any_cut_decode_like_the_whole(data, points):
    pieces = cut(data, points)
    deltas = read(AnswerReader(Pieces(pieces)), range(len(pieces)))
    assert text_of(deltas) == data.decode("utf-8", "replace")
    assert all(delta.text for delta in deltas)


@given(
    st.text(alphabet="ab \n漢🎉", max_size=30),
    st.lists(st.text(alphabet="ab \n漢🎉", min_size=1, max_size=4), max_size=4),
    st.lists(st.integers(0, 120), max_size=12),
)
def test_stop_strings_end_the_text_where_the_earliest_begins(text, stops, points):
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    want = text[: min(found)] if found else text
    pieces = cut(text.encode(), points)
    reader = AnswerReader(Pieces(pieces), stops)
    assert text_of(read(reader, range(len(pieces)))) == want
    assert reader.stopped == bool(found)


@given(
    st.text(alphabet="abc", max_size=30),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_only_the_beginning_of_a_stop_string_is_withheld(text, stops):
    matcher = StopMatcher(stops)
    shown = ""
    for at, char in enumerate(text, 1):
        shown += matcher.feed(char)
        if matcher.hit:
            return
        held = text[len(shown) : at]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_that_only_began_is_text():
    matcher = StopMatcher(["</end>"])
    assert matcher.feed("so </en") == "so "
    assert matcher.flush() == "</en"
    assert not matcher.hit


def test_a_later_stop_inside_an_earlier_beginning_counts_once_that_dies():
    for tail in ("X", None):
        matcher = StopMatcher(["abcd", "bc"])
        shown = matcher.feed("zabc")
        shown += matcher.feed(tail) if tail else matcher.flush()
        assert shown == "za"
        assert matcher.hit


THINK = {"<think>": -1, "</think>": -2}


@given(
    st.text(alphabet="xy\né", max_size=12),
    st.text(alphabet="xy\né", max_size=12),
    st.booleans(),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_reasoning_is_split_off_whatever_the_cut(reasoning, answer, opened, points):
    head = cut(f"\n{reasoning}\n".encode(), points)
    tail = cut(f"\n\n{answer}".encode(), points)
    pieces = head + tail
    tokens = [*range(len(head)), -2, *range(len(head), len(pieces))]
    reader = AnswerReader(Pieces(pieces, THINK), in_reasoning=opened)
    deltas = read(reader, tokens if opened else [-1, *tokens])
    assert text_of(deltas, Channel.REASONING) == reasoning.strip("\n")
    assert text_of(deltas) == answer.lstrip("\n")
    channels = [delta.channel for delta in deltas]
    assert channels == sorted(channels, key=lambda each: each is Channel.CONTENT)


def test_reasoning_that_is_cut_off_is_no_answer():
    reader = AnswerReader(Pieces([b"half a thou"], THINK), in_reasoning=True)
    assert read(reader, [0]) == [Delta(Channel.REASONING, "half a thou")]
    assert reader.num_reasoning_tokens == reader.num_tokens == 1


def test_stop_strings_are_not_looked_for_in_reasoning():
    reader = AnswerReader(Pieces([b"a STOP b", b"c STOP d"], THINK), ["STOP"], in_reasoning=True)
    deltas = read(reader, [0, -2, 1])
    assert text_of(deltas, Channel.REASONING) == "a STOP b"
    assert text_of(deltas) == "c "


def test_a_think_token_inside_the_answer_is_text():
    tokenizer = toy_tokenizer()
    tokens = tokenizer.encode("see <think>this</think>").tolist()
    assert text_of(read(AnswerReader(tokenizer), tokens)) == "see <think>this</think>"


def test_special_tokens_are_not_shown():
    tokenizer = toy_tokenizer()
    tokens = tokenizer.encode("hello<|im_end|> w<|endoftext|>").tolist()
    assert text_of(read(AnswerReader(tokenizer), tokens)) == "hello w"


@given(st.lists(st.integers(0, 255 + 5 + 9), max_size=30))
def test_bytes_of_tokens_agree_with_the_tokenizer_library(tokens):
    assert toy_tokenizer().decode(tokens) == raw_tokenizer().decode(tokens)


@given(st.text(alphabet=string.printable.replace("|", "é漢🎉"), max_size=40))
def test_encoding_and_decoding_give_the_text_back(text):
    tokenizer = toy_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).tolist()) == text
