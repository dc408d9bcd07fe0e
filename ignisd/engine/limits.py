"""The numbers that the scheduler keeps to."""

from dataclasses import dataclass

from state.retained import DEFAULT_TTL_MS
from state.spec import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds that scheduling keeps.

    Args:
        num_lanes: sequences that may run at once.
        max_context: most tokens of prompt and answer together.
        chunk_tokens: most prompt tokens in one round; a multiple of the page.
        max_captures_per_chunk: most images that one prefill chunk yields.
        decode_share: percent of the time that prefill leaves to decoding, 0 to 99.
        step_tokens: how far beyond its prompt a request is charged for when it enters.
        headroom_steps: steps left free at entry for running requests that rank above.
        ahead_tokens: how far ahead of itself a decoding lane keeps pages while some are free.
        ageing_ms: wait after which an agent's request counts as interactive.
        single_flight_tokens: what must be gained for a request to wait for another's prefix.
        junction_tokens: what a junction must save its followers to take a slot from others.
        ttl_ms: idle time after which a state that a person left counts as an agent's, and a prefix
            or junction as a checkpoint.
        reuse: False neither uses nor leaves retained state, whatever requests say.
    """

    num_lanes: int
    max_context: int
    chunk_tokens: int = 1024
    max_captures_per_chunk: int = 3
    decode_share: int = 25
    step_tokens: int = 2048
    headroom_steps: int = 4
    ahead_tokens: int = PAGE_TOKENS
    ageing_ms: float = 60_000.0
    single_flight_tokens: int = 512
    junction_tokens: int = 256
    ttl_ms: float = DEFAULT_TTL_MS
    reuse: bool = True

    def __post_init__(self) -> None:
        assert self.num_lanes >= 1, f"{self.num_lanes} lanes (--spec-decode-lanes)"
        assert self.chunk_tokens >= PAGE_TOKENS, f"chunk of {self.chunk_tokens} tokens"
        assert self.chunk_tokens % PAGE_TOKENS == 0, (
            f"a chunk of {self.chunk_tokens} tokens is no multiple of the page of {PAGE_TOKENS} "
            "(--model-prefill-chunk)"
        )
        assert self.max_captures_per_chunk >= 1, f"{self.max_captures_per_chunk} captures a chunk"
        assert self.ttl_ms >= 0, f"{self.ttl_ms} ms (--reuse-retained-interactive-ttl)"
        assert 0 <= self.decode_share <= 99, f"{self.decode_share} % (--model-decode-share)"
