"""POST /v1/tokenize and /v1/detokenize: what a prompt is to the model, and back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from msgspec import Raw, Struct, json
from starlette.requests import Request
from starlette.responses import Response

from ignisd.chat import codec
from ignisd.chat.checkpoint import ModelInfo
from ignisd.chat.parse import parse_chat
from ignisd.chat.policies import ChatPolicies
from ignisd.chat.types import TokenArray
from ignisd.errors import ContextLengthExceeded, RequestError
from ignisd.http.answers import JsonResponse
from ignisd.http.entrance import Entrance
from ignisd.http.intake import Intake, check_model
from ignisd.http.options import HttpOptions
from ignisd.http.plain import parse_plain, tokens_of

_ABSENT = Raw(b"null")
_MOST_CONTEXTS = 4
"""What is longer than so many contexts is not counted to its end."""


class WireHead(Struct):
    """As much of a body as tells which protocol it is of, and what this route adds to it."""

    messages: Raw = _ABSENT
    prompt: Raw = _ABSENT
    return_token_strs: bool | None = None


class WireTokens(Struct):
    """The body of POST /v1/detokenize."""

    tokens: list[int]
    model: str | None = None


_HEAD = json.Decoder(WireHead)
_TOKENS = json.Decoder(WireTokens)


class Tokens:
    """Answers questions about tokens; nothing of it reaches the engine."""

    def __init__(self, entrance: Entrance, intake: Intake, options: HttpOptions) -> None:
        self._entrance = entrance
        self._intake = intake
        self._options = options

    async def tokenize(self, request: Request) -> Response:
        """The tokens of a chat body or of a prompt, as a completion would read them."""
        policies = self._options.chat
        return await self._told(
            request, lambda body, model: partial(_tokenize, body, model, policies)
        )

    async def detokenize(self, request: Request) -> Response:
        """The text of tokens, special ones spelled out."""
        return await self._told(request, lambda body, model: partial(_detokenize, body, model))

    async def _told(
        self,
        request: Request,
        work: Callable[[bytes, ModelInfo], Callable[[], dict[str, object]]],
    ) -> Response:
        """The answer of some work on the body, in a thread, by the model that it is for."""
        body = await self._entrance.read(request)
        async with self._entrance.admitted(
            request, body, lambda model: self._intake.run(work(body, model))
        ) as (_, answer):
            return JsonResponse(answer)


def is_chat(body: bytes) -> bool:
    """Whether a body has messages, as a chat does; else it has a prompt.

    Raises:
        RequestError: it has neither, or both.
    """
    return _is_chat(codec.decode(body, _HEAD))


def _is_chat(head: WireHead) -> bool:
    given = [name for name in ("messages", "prompt") if getattr(head, name) != _ABSENT]
    if len(given) != 1:
        had = "both" if given else "neither"
        raise RequestError(f"The body must have messages or prompt, but has {had}.", "messages")
    return given == ["messages"]


def _tokenize(body: bytes, model: ModelInfo, policies: ChatPolicies) -> dict[str, object]:
    head = codec.decode(body, _HEAD)
    with _counted(model):
        if _is_chat(head):
            tokens = _chat_tokens(body, model, policies)
        else:
            tokens = _plain_tokens(body, model)
    ids = tokens.tolist()
    answer: dict[str, object] = {
        "count": len(ids),
        "max_model_len": model.context_tokens,
        "tokens": ids,
    }
    if head.return_token_strs:
        answer["token_strs"] = [model.tokenizer.spell([token]) for token in ids]
    return answer


def _chat_tokens(body: bytes, model: ModelInfo, policies: ChatPolicies) -> TokenArray:
    chat = parse_chat(body, policies)
    check_model(chat.asked.model, model)
    return model.renderer.render(chat, _limit(model)).tokens


def _plain_tokens(body: bytes, model: ModelInfo) -> TokenArray:
    plain = parse_plain(body)
    check_model(plain.asked.model, model)
    return tokens_of(plain.prompt, model.tokenizer, _limit(model))


def _limit(model: ModelInfo) -> int:
    return _MOST_CONTEXTS * model.context_tokens


@contextmanager
def _counted(model: ModelInfo) -> Iterator[None]:
    """What has more tokens than are counted here is told the model's own limit."""
    try:
        yield
    except ContextLengthExceeded as error:
        limit, param = model.context_tokens, error.param or "prompt"
        raise ContextLengthExceeded(error.prompt_tokens, limit, param, exact=False) from error


def _detokenize(body: bytes, model: ModelInfo) -> dict[str, object]:
    wire = codec.decode(body, _TOKENS)
    check_model(wire.model, model)
    if not wire.tokens:
        return {"prompt": ""}
    with _counted(model):
        tokens = tokens_of(tuple(wire.tokens), model.tokenizer, _limit(model), "tokens")
    return {"prompt": model.tokenizer.spell(tokens.tolist())}
