"""Everything that may go wrong and has an answer; bugs are assertions and are not listed here.

    IgnisError
    ├── ConfigError             a flag, a file or a checkpoint does not fit; the start is refused
    ├── RequestError            400 invalid_value: the request is wrong, and stays so
    │   ├── MalformedRequest    400 malformed_request (or 431, 501): no HTTP that can be read
    │   ├── UnsupportedValue    400 unsupported_value
    │   ├── ContextLengthExceeded  400 context_length_exceeded
    │   ├── Unauthorized        401 invalid_api_key
    │   ├── Forbidden           403 forbidden
    │   ├── ModelNotFound       404 model_not_found
    │   ├── RouteNotFound       404 route_not_found
    │   ├── StateNotFound       404 state_not_found
    │   ├── MethodNotAllowed    405 method_not_allowed
    │   ├── BodyTimeout         408 body_timeout
    │   ├── PinsFull            409 pins_full
    │   ├── BodyTooLarge        413 body_too_large
    │   └── UnsupportedMediaType  415 unsupported_media_type
    ├── Unavailable             503: the same request may succeed after `retry_after_s`
    │   ├── Overloaded          429 queue_full
    │   ├── Loading             503 loading
    │   ├── ModelSwitching      503 model_switching
    │   ├── Unloaded            503 unloaded
    │   └── Draining            503 draining
    ├── RequestTimeout          504 request_timeout: the answer took longer than is allowed
    ├── LoadFailed              500 model_load_failed: another model was asked for and cannot serve
    └── EngineFailure           500 engine_error: the engine died or dropped this request

Each class carries what an HTTP answer needs: `status`, `code`, `type` and whether a client may try
again. Messages give numbers: wanted, had, limit, and the flag to change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

_MOST_CHARS = 1000
_MOST_DIGITS_BITS = 128


def shown(value: object) -> str:
    """A value of a client for a message, as short as it need be."""
    if isinstance(value, int) and value.bit_length() > _MOST_DIGITS_BITS:
        return "a number of very many digits"
    return str(value)


def _sentence(text: str) -> str:
    """A text that ends in one full stop, whatever was quoted at its end, and is not too long."""
    if len(text) > _MOST_CHARS:
        half = _MOST_CHARS // 2
        text = f"{text[:half]} … {text[-half:]}"
    text = text.rstrip().rstrip(".")
    return text if text.endswith(("!", "?")) else f"{text}."


class IgnisError(Exception):
    """The root: an expected failure with an answer for whoever asked."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "engine_error"
    type: ClassVar[str] = "server_error"
    retry: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        self.message = _sentence(message)
        super().__init__(self.message)
        self.param = None if param is None else param[:_MOST_CHARS]


def answer_codes() -> tuple[str, ...]:
    """The codes of all errors that a request may be answered with, in the order of the alphabet."""
    kinds, codes = [IgnisError], set()
    while kinds:
        kind = kinds.pop()
        codes.add(kind.code)
        kinds += kind.__subclasses__()
    return tuple(sorted(codes - {ConfigError.code, Unavailable.code}))


class ConfigError(IgnisError):
    """A flag, a configuration file or a checkpoint that cannot be served; refuses the start."""

    code = "config_error"


class RequestError(IgnisError):
    """The request is wrong. `param` is the path of the field at fault, e.g. `messages[0].role`."""

    status = 400
    code = "invalid_value"
    type = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param=param)


class MalformedRequest(RequestError):
    """What came over the connection is no HTTP that this server reads.

    Args:
        what: what was met.
        status: 400, 431 for a head that is too large, 501 for an unknown transfer encoding.
    """

    code = "malformed_request"

    def __init__(self, what: str, status: int = 400) -> None:
        super().__init__(f"The request is not valid HTTP: {what}.")
        # Of this error alone the status depends on what is wrong.
        self.status = status  # type: ignore[misc]


class UnsupportedValue(RequestError):
    """The value is well formed, but this server cannot honour it."""

    code = "unsupported_value"


class ContextLengthExceeded(RequestError):
    """The prompt leaves no room for one token of answer.

    Args:
        prompt_tokens: length of the rendered prompt.
        limit_tokens: context of the model, prompt and answer together.
        param: the field that the prompt came in.
        exact: False when the prompt was not counted to its end, so that it has more tokens.
    """

    code = "context_length_exceeded"

    def __init__(
        self,
        prompt_tokens: int,
        limit_tokens: int,
        param: str = "messages",
        *,
        exact: bool = True,
    ) -> None:
        count = f"{prompt_tokens}" if exact else f"at least {prompt_tokens}"
        why = "" if exact else " (a lower bound: it was not tokenized whole)"
        super().__init__(
            f"This model's maximum context length is {limit_tokens} tokens. However, your prompt "
            f"has {count} tokens{why} and at least one token of answer is needed. Shorten the "
            f"{param}, or raise --model-max-context if the model allows more.",
            param,
        )
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens


class Unauthorized(RequestError):
    """No API key, or none that is known."""

    status = 401
    code = "invalid_api_key"
    type = "authentication_error"


class Forbidden(RequestError):
    """The request comes under a name, or for a web page, that this server does not serve."""

    status = 403
    code = "forbidden"
    type = "permission_error"


class ModelNotFound(RequestError):
    """The named model is not served here.

    Args:
        wanted: its name.
        served: the name of the model that is.
        others: the names of further models that could be.
    """

    status = 404
    code = "model_not_found"

    def __init__(self, wanted: str, served: str, others: Sequence[str] = ()) -> None:
        if wanted in others:
            why = (
                f"The model {wanted!r} is not loaded, {served!r} is. POST /v1/models/switch loads "
                "it; with --switch-allow-implicit on, a request that names it does."
            )
        else:
            known = ", ".join(repr(name) for name in (served, *others))
            why = f"The model {wanted!r} does not exist here; served: {known}."
        super().__init__(why, "model")
        self.wanted = wanted


class RouteNotFound(RequestError):
    """No such path."""

    status = 404
    code = "route_not_found"


class StateNotFound(RequestError):
    """No retained state has that id, or has it any more."""

    status = 404
    code = "state_not_found"

    def __init__(self, state_id: int) -> None:
        super().__init__(
            f"There is no retained state {shown(state_id)}; GET /v1/reuse lists them.", "id"
        )


class PinsFull(RequestError):
    """Pinned states may take half of a tier, and would take more with this one.

    Args:
        state_id: what was to be pinned.
        tier: where it lies.
        unit: what there would be too many of.
        wanted: that pinned states would take with it.
        most: that they may take.
    """

    status = 409
    code = "pins_full"

    def __init__(self, state_id: int, tier: str, unit: str, wanted: int, most: int) -> None:
        super().__init__(
            f"State {state_id} is not pinned: pinned states would take {wanted} {unit} of {tier} "
            f"with it, and may take {most}, which is half. Unpin another one first.",
            "id",
        )


class MethodNotAllowed(RequestError):
    """The path exists, the method does not."""

    status = 405
    code = "method_not_allowed"


class BodyTimeout(RequestError):
    """The body did not arrive in time."""

    status = 408
    code = "body_timeout"
    retry = True

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"The request body did not arrive within {limit_s:g} s.")


class BodyTooLarge(RequestError):
    """The body is over the limit; it was not parsed.

    Args:
        limit_bytes: most bytes that a body may have.
        had_bytes: the announced length, or None when the body was cut off while being read.
    """

    status = 413
    code = "body_too_large"

    def __init__(self, limit_bytes: int, had_bytes: int | None = None) -> None:
        had = "more" if had_bytes is None else f"{had_bytes} bytes"
        super().__init__(f"The request body has {had}; the limit is {limit_bytes} bytes.")


class UnsupportedMediaType(RequestError):
    """The body is not JSON by its own declaration."""

    status = 415
    code = "unsupported_media_type"


class Unavailable(IgnisError):
    """Not now: the same request may succeed after `retry_after_s` seconds."""

    status = 503
    code = "unavailable"
    retry = True

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(Unavailable):
    """The queue is full.

    Args:
        limit: most requests that may wait.
        flag: the flag that sets the limit.
        retry_after_s: when to try again.
    """

    status = 429
    code = "queue_full"
    type = "rate_limit_error"

    def __init__(self, limit: int, flag: str = "--server-queue", *, retry_after_s: int = 1) -> None:
        super().__init__(
            f"The queue is full: {limit} requests wait, the limit is {limit} ({flag}).",
            retry_after_s=retry_after_s,
        )
        self.limit = limit


class Loading(Unavailable):
    """The model is still being loaded. `progress` runs from 0 to 1."""

    code = "loading"

    def __init__(self, progress: float = 0.0, *, retry_after_s: int = 5) -> None:
        super().__init__(
            f"The model is loading ({progress:.0%} done).", retry_after_s=retry_after_s
        )
        self.progress = progress


class ModelSwitching(Unavailable):
    """Another model is about to be served, and this request was not for it.

    Args:
        target: the name of that model.
        cut: the request was under way, and is given up in favour of it.
    """

    code = "model_switching"

    def __init__(self, target: str, *, cut: bool = False, retry_after_s: int = 5) -> None:
        why = f"The model {target!r} is being loaded in place of the one that served."
        if cut:
            why += " This answer was not complete within --switch-drain-timeout."
        super().__init__(why, retry_after_s=retry_after_s)


class Unloaded(Unavailable):
    """No model is loaded for want of requests, and this one is none that loads it."""

    code = "unloaded"
    retry = False

    def __init__(self) -> None:
        super().__init__(
            "The model is unloaded (--idle-unload-after); the next request for an answer loads it."
        )


class Draining(Unavailable):
    """The daemon is shutting down and takes no new requests."""

    code = "draining"

    def __init__(self, *, retry_after_s: int = 5) -> None:
        super().__init__(
            "The server is draining and takes no new requests.", retry_after_s=retry_after_s
        )


class RequestTimeout(IgnisError):
    """A plain answer was not complete in time; the request was cancelled."""

    status = 504
    code = "request_timeout"
    type = "timeout_error"

    def __init__(self, limit_s: float, flag: str = "--server-request-timeout") -> None:
        super().__init__(f"The answer was not complete within {limit_s:g} s ({flag}).")


class LoadFailed(IgnisError):
    """A model that was asked for cannot be loaded.

    Args:
        wanted: its name.
        why: what is wrong, without paths.
        served: the name of the model that goes on being served; None where none is.
    """

    code = "model_load_failed"

    def __init__(self, wanted: str, why: str, served: str | None) -> None:
        rest = "" if served is None else f" {served!r} is served on."
        super().__init__(f"The model {wanted!r} cannot be loaded: {_sentence(why)}{rest}")


class EngineFailure(IgnisError):
    """The engine died, or had to give up this request; nothing wrong is retained from it."""
