"""Every message is one sentence of some length, whatever it quotes."""

import pytest

from ignisd.errors import ConfigError, EngineFailure, RequestError, shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("It broke", "It broke."),
        ("It broke.", "It broke."),
        ("It broke: no such file..", "It broke: no such file."),
        ("It broke. \n", "It broke."),
        ("The template says: roles must alternate!.", "The template says: roles must alternate!"),
        ("Did you mean x?", "Did you mean x?"),
    ],
)
def test_it_ends_in_one_stop(text: str, message: str):
    for kind in (ConfigError, EngineFailure, RequestError):
        error = kind(text)
        assert error.message == str(error) == message


def test_what_is_quoted_is_cut():
    error = RequestError(f"role is {'x' * 10**6!r}, but must be one of a, b.", "y" * 10**6)
    assert error.message.startswith("role is 'xxx")
    assert error.message.endswith("but must be one of a, b.")
    assert len(error.message) < 1100
    assert len(error.param or "") <= 1000


def test_numbers_of_many_digits_are_not_spelled_out():
    assert shown(10**38) == str(10**38)
    assert shown(10**5000) == shown(-(10**5000)) == "a number of very many digits"
    assert (shown(1.5), shown("a")) == ("1.5", "a")
