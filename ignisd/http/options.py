"""What the HTTP layer is told: limits, keys, clocks."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ignisd.chat.policies import ChatPolicies
from ignisd.http.keys import KeyRing
from ignisd.http.origin import OriginPolicy


def _monotonic_ms() -> float:
    return time.monotonic() * 1000


def _fresh_seed() -> int:
    return secrets.randbits(32)


def _fresh_name() -> str:
    return secrets.token_hex(12)


@dataclass(slots=True, kw_only=True)
class HttpOptions:
    """Bounds and sources of the HTTP layer.

    It belongs to the event loop. What `follow` takes over may change between any two requests;
    one under way keeps what it has read.

    Args:
        keys: any of them opens every route; none means no key is asked for.
        scoped: prompts are reused only between requests with the same key.
        origins: the names and the web pages that are answered.
        max_body_bytes: larger bodies are refused unparsed.
        body_timeout_s: a body must have arrived by then.
        ping_s: a stream that has been silent for so long gets a comment.
        header_wait_s: how long a stream's headers wait for the outcome of the prompt's lookup, so
            that they can tell it, or for an error, so that it has its own status.
        write_timeout_s: a reader that takes nothing for so long loses its request.
        request_timeout_s: limit of an answer that is not streamed; None is no limit.
        load_wait_s: longest that a request waits for its model: --switch-wait-timeout.
        stall_s: an engine that is busy but made no progress for so long counts as stalled.
        compat_metrics: /metrics also has the names that tools made for vLLM read.
        chat: how messages are placed and answers are told: --server-system-message-policy,
            --server-developer-message-policy, --server-strip-volatile-headers,
            --server-reasoning-field and --server-calls-in-reasoning.
        num_workers: threads that parse, render and tokenize.
        max_preparing: requests that may be with these threads, or wait for them
            (--server-queue).
        now_ms: the engine's clock, in milliseconds.
        now_s: the wall clock, in Unix seconds.
        draw_seed: a fresh 32-bit seed.
        draw_name: a fresh identity for a request.
    """

    keys: KeyRing = field(default_factory=KeyRing)
    scoped: bool = False
    origins: OriginPolicy = field(default_factory=OriginPolicy)
    max_body_bytes: int = 16 << 20
    body_timeout_s: float = 60.0
    ping_s: float = 15.0
    header_wait_s: float = 0.5
    write_timeout_s: float = 60.0
    request_timeout_s: float | None = None
    load_wait_s: float = 300.0
    stall_s: float = 30.0
    compat_metrics: bool = False
    chat: ChatPolicies = field(default_factory=ChatPolicies)
    num_workers: int = 2
    max_preparing: int = 256
    now_ms: Callable[[], float] = _monotonic_ms
    now_s: Callable[[], float] = time.time
    draw_seed: Callable[[], int] = _fresh_seed
    draw_name: Callable[[], str] = _fresh_name

    def follow(self, other: "HttpOptions") -> None:
        """Take over what may be changed while requests are served."""
        self.max_body_bytes = other.max_body_bytes
        self.load_wait_s = other.load_wait_s
        self.request_timeout_s = other.request_timeout_s
        self.max_preparing = other.max_preparing
        self.chat = other.chat
