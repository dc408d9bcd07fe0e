"""Settings: one declaration, three spellings, one order of precedence, refusals that help."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignisd.errors import ConfigError
from ignisd.flags import Flag
from ignisd.kinds import Address, PoolSize, write_bytes
from ignisd.resolve import Source, resolve
from ignisd.settings import FLAGS, Settings
from state.retained import DEFAULT_TTL_MS
from state.spec import KvFormat

FLAG = {flag.field: flag for flag in FLAGS}

# A value that differs from the default, as text, for every flag.
OTHER = {
    "server_bind": "127.0.0.1:9000",
    "server_api_key": "sesame",
    "server_api_key_file": "/etc/ignisd/keys",
    "server_allow_unauthenticated": "on",
    "server_allowed_hosts": "llm.example.org, other",
    "server_allowed_origins": "http://localhost:3000",
    "server_max_body_bytes": "1M",
    "server_system_message_policy": "strict",
    "server_developer_message_policy": "into-system",
    "server_strip_volatile_headers": "off",
    "server_reasoning_field": "both",
    "server_calls_in_reasoning": "off",
    "server_queue": "3",
    "server_request_timeout": "2.5",
    "server_drain_timeout": "0",
    "model": "./checkpoint",
    "models_dir": "/srv/models",
    "switch_allow_implicit": "on",
    "switch_drain_timeout": "0",
    "switch_wait_timeout": "12.5",
    "idle_unload_after": "900",
    "model_max_context": "4096",
    "model_kv_format": "f32",
    "model_prefill_chunk": "128",
    "model_decode_share": "0",
    "spec_decode_lanes": "2",
    "compile_cache_dir": "/var/cache/x",
    "reuse_prompt": "off",
    "reuse_scope": "key",
    "reuse_retained_host": "0",
    "reuse_retained_device": "5",
    "reuse_retention_interval": "640,drafter=0",
    "reuse_kv_host_pool_bytes": "0",
    "reuse_kv_ram_floor": "1000",
    "reuse_window_bytes": "4M",
    "reuse_retained_interactive_ttl": "1.5",
    "kv_disk_bytes": "4G",
    "kv_disk_path": "/srv/states",
    "trace_path": "/srv/trace.jsonl",
    "kv_disk_floor": "8192",
    "kv_disk_persist": "off",
    "kv_disk_drain_ms": "0",
    "vram_budget_bytes": "3G",
    "vram_headroom_bytes": "1M",
    "vram_kv_pool_bytes": "4096tok",
    "log_level": "debug",
    "log_format": "json",
    "metrics_compat": "vllm",
    "check": "on",
}

# What a flag cannot be set without, as variables.
BESIDE = {"reuse_scope": {"IGNISD_SERVER_API_KEY": "sesame"}}


def resolved(
    options: dict[str, str] | None = None,
    environ: dict[str, str] | None = None,
    file: Path | None = None,
):
    options = dict(options or {})
    if file is not None:
        options["config"] = str(file)
    return resolve(options, environ or {})


def write_file(folder: Path, text: str) -> Path:
    path = folder / "ignisd.toml"
    path.write_text(text)
    return path


def refusal(*args, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        resolved(*args, **kwargs)
    return caught.value.message


def test_the_defaults_are_the_documented_ones():
    settings = Settings()
    assert settings == resolved().settings
    assert settings.server_bind == Address("127.0.0.1", 8000)
    assert (settings.model, settings.reuse_prompt, settings.server_queue) == ("ember", True, 256)
    assert (settings.model_decode_share, settings.server_drain_timeout) == (25, 30)
    assert settings.model_kv_format is KvFormat.BF16
    assert settings.model_prefill_chunk is settings.spec_decode_lanes is None
    assert settings.reuse_kv_host_pool_bytes is settings.reuse_window_bytes is None
    assert settings.reuse_kv_ram_floor is settings.kv_disk_floor is None
    assert settings.kv_disk_path is None
    assert settings.reuse_retained_interactive_ttl * 1000 == DEFAULT_TTL_MS == 300_000
    assert settings.kv_disk_bytes == 0
    assert (settings.kv_disk_persist, settings.kv_disk_drain_ms) == (True, 5000)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.field)
def test_every_flag_has_three_spellings_that_mean_the_same(flag: Flag, tmp_path: Path):
    text = OTHER[flag.field]
    file = write_file(tmp_path, f'{flag.key} = "{text}"')
    beside = BESIDE.get(flag.field, {})
    by = {
        Source.FLAG: resolved({flag.field: text}, environ=beside),
        Source.ENVIRONMENT: resolved(environ={flag.variable: text, **beside}),
        Source.FILE: resolved(environ=beside, file=file),
    }
    values = {source: getattr(found.settings, flag.field) for source, found in by.items()}
    assert len(set(values.values())) == 1
    assert values[Source.FLAG] != flag.default
    assert {source: found.origins[flag.field].source for source, found in by.items()} == {
        source: source for source in by
    }
    others = {
        found.origins["model" if flag.field != "model" else "check"].source for found in by.values()
    }
    assert others == {Source.DEFAULT}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.field)
def test_what_is_shown_is_read_back_as_the_same_value(flag: Flag):
    for value in (flag.default, flag.read(OTHER[flag.field], "here")):
        assert flag.kind.read(flag.kind.write(value)) == value


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path):
    file = write_file(tmp_path, "[server]\nqueue = 1\n")
    flag, environ = {"server_queue": "3"}, {"IGNISD_SERVER_QUEUE": "2"}
    expected = {
        (False, False, False): (256, Source.DEFAULT),
        (True, False, False): (1, Source.FILE),
        (True, True, False): (2, Source.ENVIRONMENT),
        (False, True, False): (2, Source.ENVIRONMENT),
    }
    for use_file, use_environ, use_flag in itertools.product((False, True), repeat=3):
        found = resolved(
            flag if use_flag else {}, environ if use_environ else {}, file if use_file else None
        )
        value, source = expected.get((use_file, use_environ, use_flag), (3, Source.FLAG))
        assert found.settings.server_queue == value
        assert found.origins["server_queue"].source is source


def test_the_environment_may_name_the_file(tmp_path: Path):
    file = write_file(tmp_path, "model.name = 'other'")
    assert resolve({}, {"IGNISD_CONFIG": str(file)}).settings.model == "other"


def test_a_file_takes_native_values(tmp_path: Path):
    file = write_file(
        tmp_path,
        "check = true\nreuse.prompt = false\nvram.budget-bytes = 1000\n"
        "server.request-timeout = 1.5\nmodel.name = 'm'\nmodel.max-context = 640\n",
    )
    settings = resolved(file=file).settings
    assert (settings.check, settings.reuse_prompt) == (True, False)
    assert (settings.vram_budget_bytes, settings.server_request_timeout) == (1000, 1.5)
    assert (settings.model, settings.model_max_context) == ("m", 640)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("reuse.promt = 'off'", "reuse.promt, which is not known; did you mean reuse.prompt?"),
        ("[server]\nqeue = 1", "did you mean server.queue?"),
        ("model = 'ember'", "did you mean model.name?"),
        ("reuse-retained-host = 1", "did you mean reuse.retained-host?"),
        ("zzz = 1", "zzz, which is not known."),
        ("reuse.prompt = 1", "--reuse-prompt must be on or off; had 1, from reuse.prompt in "),
        ("server.queue = true", "had True"),
        ("server.queue = [1]", "had [1]"),
        ("server.queue = ", "is not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_naming_the_key(text: str, named: str, tmp_path: Path):
    assert named in refusal(file=write_file(tmp_path, text))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path):
    assert "No such file" in refusal(file=tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert "is not TOML" in refusal(file=tmp_path / "binary.toml")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("server_queue", "0"),
        ("server_queue", "65537"),
        ("server_queue", "many"),
        ("server_queue", ""),
        ("server_queue", "1.5"),
        ("model_prefill_chunk", "100"),
        ("model_prefill_chunk", "0"),
        ("model_decode_share", "100"),
        ("model_decode_share", "-1"),
        ("model_kv_format", "f16"),
        ("reuse_prompt", "maybe"),
        ("reuse_retention_interval", "63"),
        ("reuse_retention_interval", "-64"),
        ("reuse_retention_interval", "linear=100"),
        ("reuse_retention_interval", "recurrent=64"),
        ("reuse_retention_interval", "full=64"),
        ("reuse_retention_interval", "linear=64,linear=128"),
        ("reuse_retention_interval", "linear=64,128"),
        ("reuse_retention_interval", "often"),
        ("reuse_retention_interval", ""),
        ("server_drain_timeout", "nan"),
        ("server_drain_timeout", "inf"),
        ("server_drain_timeout", "-1"),
        ("vram_budget_bytes", "3X"),
        ("vram_budget_bytes", "-1"),
        ("vram_kv_pool_bytes", "5 apples"),
        ("server_bind", "8000"),
        ("server_bind", "127.0.0.1"),
        ("server_bind", ":8000"),
        ("server_bind", "127.0.0.1:70000"),
        ("server_bind", "127.0.0.1:-1"),
        ("server_bind", "::1:8000"),
        ("server_bind", "[host]:8000"),
        ("server_bind", "http://127.0.0.1:8000"),
        ("model", " "),
        ("server_api_key", ""),
        ("server_allowed_hosts", ""),
        ("server_allowed_hosts", "a,,b"),
        ("server_allowed_origins", "http://a http://b"),
        ("server_max_body_bytes", "-1"),
        ("reuse_scope", "user"),
        ("reuse_kv_host_pool_bytes", "-1"),
        ("reuse_kv_ram_floor", "0"),
        ("reuse_window_bytes", "all"),
        ("reuse_retained_interactive_ttl", "-1"),
        ("kv_disk_bytes", "auto"),
        ("kv_disk_bytes", "off"),
        ("kv_disk_path", ""),
        ("kv_disk_floor", "-64"),
        ("kv_disk_persist", "4"),
        ("kv_disk_drain_ms", "1.5"),
    ],
)
def test_a_value_out_of_range_is_refused_naming_flag_value_and_limit(field: str, text: str):
    flag = FLAG[field]
    message = refusal(environ={flag.variable: text})
    assert message.startswith(f"{flag.option} must be {flag.kind.wants}; had ")
    assert message.endswith(f"from {flag.variable}.")
    assert flag.secret or repr(text) in message


def test_a_secret_is_never_shown():
    found = resolved({"server_api_key": "sesame"})
    assert "sesame" not in "".join(value for _, value, _ in found.lines())
    assert found.settings.server_api_key == "sesame"


def test_a_variable_that_sets_nothing_is_reported():
    found = resolved(environ={"IGNISD_REUSE_PROMT": "off", "IGNIS": "1", "HOME": "/"})
    assert found.warnings == (
        "The environment variable IGNISD_REUSE_PROMT sets nothing; "
        "did you mean IGNISD_REUSE_PROMPT?",
    )


@pytest.mark.parametrize("bind", ["0.0.0.0:8000", "[::]:8000", "192.168.1.2:80", "example.org:80"])
def test_a_public_bind_needs_a_key_or_consent(bind: str):
    message = refusal({"server_bind": bind})
    assert bind in message
    assert "--server-allow-unauthenticated" in message
    assert resolved({"server_bind": bind, "server_api_key": "k"}).settings.server_bind.public
    assert resolved({"server_bind": bind, "server_api_key_file": "/keys"})
    assert resolved({"server_bind": bind, "server_allow_unauthenticated": "on"})


def test_prompts_are_kept_apart_by_key_only_where_there_are_keys(tmp_path: Path):
    message = refusal({"reuse_scope": "key"})
    assert "--reuse-scope" in message
    assert "--server-api-key-file" in message
    found = resolved({"reuse_scope": "key", "server_api_key_file": "/keys"})
    assert found.settings.reuse_scope == "key"


def test_a_file_may_hold_a_list(tmp_path: Path):
    file = write_file(tmp_path, "server.allowed-hosts = ['a.example', 'b.example']")
    assert resolved(file=file).settings.server_allowed_hosts == ("a.example", "b.example")
    message = refusal(file=write_file(tmp_path, "server.allowed-hosts = [1]"))
    assert "--server-allowed-hosts must be names of hosts" in message


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("none", ()),
        ("http://Localhost:3000", ("http://localhost:3000",)),
        ("http://a.example:80,https://b.example:443", ("http://a.example", "https://b.example")),
        ("http://a:443, https://[::1]:8443", ("http://a:443", "https://[::1]:8443")),
        ("tauri://localhost,app://obsidian.md", ("tauri://localhost", "app://obsidian.md")),
    ],
)
def test_origins_are_read_as_browsers_tell_them(text: str, read: tuple[str, ...]):
    assert resolved({"server_allowed_origins": text}).settings.server_allowed_origins == read


@pytest.mark.parametrize(
    "text",
    "foo * null http:// http://a/ http://a/b http://a:x http://a:70000 localhost:3000 http://[::g] "
    "http://a@b http://a?b http://a,".split(" "),
)
def test_what_is_no_origin_is_refused_at_the_start(text: str):
    message = refusal({"server_allowed_origins": text})
    assert "--server-allowed-origins must be origins such as http://localhost:3000" in message


def test_hosts_are_names_without_ports():
    found = resolved({"server_allowed_hosts": "LLM.example, [::1],10.0.0.1"}).settings
    assert found.server_allowed_hosts == ("llm.example", "::1", "10.0.0.1")
    for text in ("a:80", "http://a", "a/b", "*", "a b", "[::1", "a,,b", ""):
        assert "--server-allowed-hosts must be names" in refusal({"server_allowed_hosts": text})


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "127.8.8.8:1", "[::1]:8000", "localhost:8000"])
def test_a_loopback_bind_needs_no_key(bind: str):
    address = resolved({"server_bind": bind}).settings.server_bind
    assert not address.public
    assert str(address) == bind


def test_settings_made_in_code_are_checked_too():
    with pytest.raises(ConfigError, match="--model-prefill-chunk must be a multiple of 64"):
        Settings(model_prefill_chunk=100)
    with pytest.raises(ConfigError, match="--check must be on or off; had 'off'"):
        Settings(check="off")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2G", PoolSize(num_bytes=2 << 30)),
        ("512m", PoolSize(num_bytes=512 << 20)),
        ("1.5 GiB", PoolSize(num_bytes=3 << 29)),
        ("4096", PoolSize(num_bytes=4096)),
        ("680Ktok", PoolSize(num_tokens=680 << 10)),
        ("64tok", PoolSize(num_tokens=64)),
        ("auto", None),
    ],
)
def test_a_pool_is_bytes_or_tokens(text: str, size: PoolSize | None):
    assert resolved({"vram_kv_pool_bytes": text}).settings.vram_kv_pool_bytes == size


@pytest.mark.parametrize("field", ["vram_budget_bytes", "model_max_context", "server_queue"])
@pytest.mark.parametrize("text", ["9223372036854775808", "9" * 400])
def test_numbers_have_a_bound_even_where_none_is_said(field: str, text: str):
    for raw in (text, int(text)):
        with pytest.raises(ConfigError):
            FLAG[field].read(raw, "here")
    with pytest.raises(ConfigError):
        FLAG["server_request_timeout"].read(int("9" * 400), "here")


@given(st.integers(min_value=0, max_value=1 << 60))
def test_bytes_are_written_without_loss(value: int):
    assert FLAG["vram_budget_bytes"].read(write_bytes(value), "here") == value


def test_no_key_hides_another():
    keys = [flag.key for flag in FLAGS]
    assert len(set(keys)) == len(keys)
    for key, other in itertools.permutations(keys, 2):
        assert not other.startswith(key + ".")
