"""Listening: refusals that say what to do, and options that follow the settings."""

import socket

import pytest

from ignisd.chat.policies import DeveloperPolicy, ReasoningField, SystemPolicy
from ignisd.errors import ConfigError
from ignisd.http.keys import KeyRing
from ignisd.kinds import Address, Choice
from ignisd.listen import bind, bound_address, configured_keys, http_options
from ignisd.settings import FLAGS, Settings

FLAG = {flag.field: flag for flag in FLAGS}


def test_a_port_in_use_is_refused_by_the_name_of_the_flag():
    with bind(Address("127.0.0.1", 0)) as first:
        address = bound_address(first)
        assert address.port > 0
        with pytest.raises(ConfigError) as refused:
            bind(address)
    assert f"--server-bind {address}" in refused.value.message
    assert "already in use" in refused.value.message
    with bind(address) as again:
        assert bound_address(again) == address


@pytest.mark.parametrize(
    ("host", "named"),
    [("192.0.2.1", "no such address"), ("no-such-host.invalid", "cannot be listened on")],
)
def test_an_address_of_another_machine_is_refused(host, named):
    with pytest.raises(ConfigError, match=named) as refused:
        bind(Address(host, 8000))
    assert f"--server-bind {host}:8000" in refused.value.message


def test_what_is_bound_takes_connections_at_once():
    with bind(Address("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with socket.create_connection((host, port), timeout=5):
            pass


def test_the_options_follow_the_settings(tmp_path):
    settings = Settings(
        server_api_key="k",
        server_allowed_hosts=("a.example",),
        server_allowed_origins=("http://b.example",),
        server_max_body_bytes=99,
        server_request_timeout=2.5,
        reuse_scope="key",
        server_developer_message_policy="reject",
        server_reasoning_field="both",
    )
    keys = KeyRing(configured_keys(settings))
    options = http_options(settings, keys)
    assert (options.keys, options.scoped, options.origins.loopback_only) == (keys, True, True)
    assert options.origins.hosts == ("a.example",)
    assert options.origins.origins == ("http://b.example",)
    assert (options.max_body_bytes, options.request_timeout_s) == (99, 2.5)
    assert options.chat.developer is DeveloperPolicy.REJECT
    assert options.chat.reasoning_field is ReasoningField.BOTH
    public = Settings(server_bind=Address("0.0.0.0", 1), server_api_key="k")
    assert http_options(public, keys).origins.loopback_only is False
    assert http_options(public, keys).max_body_bytes == 16 << 20


def test_the_key_that_is_set_and_those_of_the_file_open(tmp_path):
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    assert configured_keys(Settings()) == ()
    assert configured_keys(Settings(server_api_key="zero")) == ("zero",)
    both = Settings(server_api_key="zero", server_api_key_file=file)
    assert configured_keys(both) == ("zero", "one", "two")


@pytest.mark.parametrize(
    ("field", "policies"),
    [
        ("server_system_message_policy", SystemPolicy),
        ("server_developer_message_policy", DeveloperPolicy),
        ("server_reasoning_field", ReasoningField),
    ],
)
def test_a_flag_has_the_words_of_its_policy(field, policies):
    kind = FLAG[field].kind
    assert isinstance(kind, Choice)
    assert set(kind.words) == {policy.value for policy in policies}
