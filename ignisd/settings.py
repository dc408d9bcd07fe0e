"""Every setting of the daemon, declared once: flags, variables, file keys and help follow."""

from dataclasses import dataclass
from pathlib import Path

from ignisd.errors import ConfigError
from ignisd.flags import Flag, declare, flags_of
from ignisd.interval_kind import IntervalText
from ignisd.kinds import (
    Address,
    Choice,
    Count,
    Folder,
    HostPort,
    Hosts,
    Origins,
    Pool,
    PoolSize,
    Seconds,
    Size,
    Switch,
    Text,
)
from ignisd.tier_settings import CHAPTER as _TIERS
from ignisd.tier_settings import TierSettings
from state.groups import Intervals
from state.spec import PAGE_TOKENS, KvFormat

_SERVER = "Server"
_MODEL = "Model"
_ENGINE = "Engine"
_REUSE = "Prompt reuse"
_MEMORY = "Memory"
_WATCH = "Logs and checks"
_CHAPTERS = (_SERVER, _MODEL, _ENGINE, _REUSE, _MEMORY, _TIERS, _WATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(TierSettings):
    """What the daemon was told to do. `None` in a field that may be `auto` is decided at load.

    Raises ConfigError when a value is out of its range or two of them do not go together.
    """

    server_bind: Address = declare(
        HostPort(),
        "127.0.0.1:8000",
        "where to listen; port 0 takes a free one",
        chapter=_SERVER,
        meta="HOST:PORT",
    )
    server_api_key: str | None = declare(
        Text("none"),
        None,
        "key that every route but /health asks for; better set in the environment than in a "
        "command line that others can read",
        chapter=_SERVER,
        meta="KEY",
        secret=True,
    )
    server_api_key_file: Path | None = declare(
        Folder(),
        None,
        "file with one key a line, any of which opens; read anew on SIGHUP",
        chapter=_SERVER,
        meta="FILE",
    )
    server_allow_unauthenticated: bool = declare(
        Switch(),
        "off",
        "serve other machines without a key",
        chapter=_SERVER,
        meta="on|off",
    )
    server_allowed_hosts: tuple[str, ...] = declare(
        Hosts(),
        "none",
        "names in the Host header that a loopback bind answers to, beside those of the loopback; "
        "for a proxy on this machine",
        chapter=_SERVER,
        meta="NAME,...",
    )
    server_allowed_origins: tuple[str, ...] = declare(
        Origins(),
        "none",
        "origins whose pages a browser may let talk to this server, such as http://localhost:3000",
        chapter=_SERVER,
        meta="ORIGIN,...",
    )
    server_max_body_bytes: int | None = declare(
        Size("auto"),
        "auto",
        "largest request body; auto is 16M",
        chapter=_SERVER,
        meta="SIZE",
        unit="bytes",
    )
    server_system_message_policy: str = declare(
        Choice(("merge", "strict")),
        "merge",
        "what becomes of system messages beyond the first: leading ones are merged and later ones "
        "stay in place, or a request with them is refused",
        chapter=_SERVER,
        meta="POLICY",
    )
    server_developer_message_policy: str = declare(
        Choice(("inplace", "into-system", "after-system", "one-after-system", "reject")),
        "inplace",
        "where developer messages go; all but inplace and reject move them to the head of the "
        "prompt and cost reuse",
        chapter=_SERVER,
        meta="POLICY",
    )
    server_strip_volatile_headers: bool = declare(
        Switch(),
        "on",
        "drop a first system line that changes at every request, such as a billing header",
        chapter=_SERVER,
        meta="on|off",
    )
    server_reasoning_field: str = declare(
        Choice(("reasoning_content", "reasoning", "both")),
        "reasoning_content",
        "the field of an answer that carries the reasoning",
        chapter=_SERVER,
        meta="FIELD",
    )
    server_calls_in_reasoning: bool = declare(
        Switch(),
        "on",
        "deliver a tool call that the model makes inside reasoning that it never closes",
        chapter=_SERVER,
        meta="on|off",
    )
    server_queue: int = declare(
        Count(1, 65_536),
        256,
        "requests that may wait; one more is answered 429",
        chapter=_SERVER,
        meta="N",
        unit="requests",
    )
    server_request_timeout: float | None = declare(
        Seconds(0.001, none="off"),
        "off",
        "answer 504 to a request that is not streamed after so long",
        chapter=_SERVER,
        meta="SECONDS",
        unit="s",
    )
    server_drain_timeout: float = declare(
        Seconds(0),
        30,
        "time that running requests have to finish after SIGTERM",
        chapter=_SERVER,
        meta="SECONDS",
        unit="s",
    )
    model: str = declare(
        Text(),
        "ember",
        "what to serve: the built-in ember, the name of a folder in --models-dir, or a folder "
        "with config.json, safetensors and tokenizer.json",
        chapter=_MODEL,
        meta="NAME|DIR",
        key="model.name",
    )
    models_dir: Path | None = declare(
        Folder(),
        None,
        "folder that holds one folder per model; each can be switched to while serving",
        chapter=_MODEL,
        meta="DIR",
    )
    switch_allow_implicit: bool = declare(
        Switch(),
        "off",
        "let a request that names another model of --models-dir switch to it, and wait for it",
        chapter=_MODEL,
        meta="on|off",
    )
    switch_drain_timeout: float = declare(
        Seconds(0),
        30,
        "time that running requests have to finish before a switch; what is left is cut off",
        chapter=_MODEL,
        meta="SECONDS",
        unit="s",
    )
    switch_wait_timeout: float = declare(
        Seconds(0),
        300,
        "longest that a request waits for the model to be loaded that it needs",
        chapter=_MODEL,
        meta="SECONDS",
        unit="s",
    )
    idle_unload_after: float | None = declare(
        Seconds(0.001, none="off"),
        "off",
        "give all memory back after so long without a request; the next one loads the model again",
        chapter=_MODEL,
        meta="SECONDS",
        unit="s",
    )
    model_max_context: int | None = declare(
        Count(PAGE_TOKENS, none="auto"),
        "auto",
        "longest prompt and answer together; auto is what the checkpoint allows",
        chapter=_MODEL,
        meta="N",
        unit="tokens",
    )
    model_kv_format: KvFormat = declare(
        Choice(tuple(KvFormat)),
        KvFormat.BF16,
        "how keys and values are stored; f32 is for checking against a reference",
        chapter=_MODEL,
        meta="|".join(KvFormat),
    )
    model_prefill_chunk: int | None = declare(
        Count(PAGE_TOKENS, 16_384, grid=PAGE_TOKENS, none="auto"),
        "auto",
        "most prompt tokens in one round, a multiple of 64; auto is 256 on a CPU and 1024 on a GPU",
        chapter=_ENGINE,
        meta="N",
        unit="tokens",
    )
    model_decode_share: int = declare(
        Count(0, 99),
        25,
        "least share of the time that running answers keep while a prompt is read",
        chapter=_ENGINE,
        meta="PERCENT",
        unit="%",
    )
    spec_decode_lanes: int | None = declare(
        Count(1, 256, none="auto"),
        "auto",
        "answers generated side by side; auto is 4 on a CPU and 8 on a GPU",
        chapter=_ENGINE,
        meta="N",
        unit="lanes",
    )
    compile_cache_dir: Path | None = declare(
        Folder("auto"),
        "auto",
        "where compiled programs are kept between starts; auto is ignisd in the user's cache",
        chapter=_ENGINE,
        meta="DIR",
    )
    reuse_prompt: bool = declare(
        Switch(),
        "on",
        "resume a prompt from the longest one read before that begins it",
        chapter=_REUSE,
        meta="on|off",
    )
    reuse_scope: str = declare(
        Choice(("global", "key")),
        "global",
        "who shares prompts: everybody, so that timing tells whether a beginning was read before, "
        "or only requests with the same API key",
        chapter=_REUSE,
        meta="global|key",
    )
    reuse_retained_host: int | None = declare(
        Count(0, 65_536, none="auto"),
        "auto",
        "images of past prompts kept in host memory; auto is two per lane, and more "
        "where they are small",
        chapter=_REUSE,
        meta="N",
        unit="slots",
    )
    reuse_retained_device: int = declare(
        Count(0, 65_536),
        0,
        "images of past prompts kept in device memory",
        chapter=_REUSE,
        meta="N",
        unit="slots",
    )
    reuse_retention_interval: Intervals = declare(
        IntervalText(),
        "0",
        "also keep a state every so many tokens, a multiple of 64; 0 keeps those at turns and at "
        "the end of system prompts only, dense one per prefill chunk; or by group of layers, as in "
        "linear=4096,drafter=0",
        chapter=_REUSE,
        meta="N|dense|GROUP=N,...",
        unit="tokens",
    )
    vram_budget_bytes: int | None = declare(
        Size("auto"),
        "auto",
        "device memory that may be used; auto is a quarter of the RAM on a CPU, all of it on a GPU",
        chapter=_MEMORY,
        meta="SIZE",
        unit="bytes",
    )
    vram_headroom_bytes: int | None = declare(
        Size("auto"),
        "auto",
        "part of the budget left alone; auto is none on a CPU and a twentieth on a GPU",
        chapter=_MEMORY,
        meta="SIZE",
        unit="bytes",
    )
    vram_kv_pool_bytes: PoolSize | None = declare(
        Pool("auto"),
        "auto",
        "room for keys and values; auto is what is left, up to a full context in every lane",
        chapter=_MEMORY,
        meta="SIZE|Ntok",
        unit="bytes or tokens",
    )
    log_level: str = declare(
        Choice(("debug", "info", "warning", "error")),
        "info",
        "least important line to write",
        chapter=_WATCH,
        meta="LEVEL",
    )
    log_format: str = declare(
        Choice(("text", "json")),
        "text",
        "key=value lines, or a JSON object a line",
        chapter=_WATCH,
        meta="text|json",
    )
    metrics_compat: str = declare(
        Choice(("none", "vllm")),
        "none",
        "further names in /metrics: vllm adds four that routers and dashboards made for it read",
        chapter=_WATCH,
        meta="none|vllm",
    )
    trace_path: Path | None = declare(
        Folder(),
        None,
        "file to record requests in for ignisd advise: sizes and salted page hashes, no text and "
        "no tokens",
        chapter=_WATCH,
        meta="FILE",
    )
    check: bool = declare(
        Switch(),
        "off",
        "verify every ledger between rounds, and stop at the first that disagrees",
        chapter=_WATCH,
        meta="on|off",
    )

    def __post_init__(self) -> None:
        for flag in FLAGS:
            value = getattr(self, flag.field)
            if flag.read(value, "the code") != value:
                raise ConfigError(flag.refusal(value, "the code"))
        has_keys = bool(self.server_api_key or self.server_api_key_file)
        if self.reuse_scope == "key" and not has_keys:
            raise ConfigError(
                "--reuse-scope key keeps the prompts of different API keys apart, and no key is "
                "set. Set IGNISD_SERVER_API_KEY or --server-api-key-file, or drop --reuse-scope."
            )
        if self.server_bind.public and not (has_keys or self.server_allow_unauthenticated):
            raise ConfigError(
                f"--server-bind {self.server_bind} can be reached from other machines and no key "
                "is set. Set IGNISD_SERVER_API_KEY, bind to 127.0.0.1, or pass "
                "--server-allow-unauthenticated on."
            )


FLAGS: tuple[Flag, ...] = tuple(
    sorted(flags_of(Settings), key=lambda flag: _CHAPTERS.index(flag.chapter))
)
