"""A body becomes a request to the engine: parsed, rendered, tokenized, hashed, within bounds."""

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from ignisd.chat.arguments import Tool, read_tool
from ignisd.chat.checkpoint import ModelInfo
from ignisd.chat.parse import parse_chat
from ignisd.chat.policies import ChatPolicies
from ignisd.chat.types import Asked, ChatRequest, Prompt, SamplingFields, TokenArray
from ignisd.engine.types import Request, SamplingParams
from ignisd.errors import ContextLengthExceeded, ModelNotFound, Overloaded
from ignisd.http.options import HttpOptions
from ignisd.http.plain import parse_plain, tokens_of
from ignisd.http.salts import chain_salt
from state.chain import Chain, chain_of
from state.retention import Marks

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A chat request that is ready for the engine; `tools` are those whose calls are read."""

    chat: ChatRequest
    prompt: Prompt
    chain: Chain
    tools: tuple[Tool, ...] = ()

    @property
    def asked(self) -> Asked:
        """What the client asked for."""
        return self.chat.asked

    @property
    def marks(self) -> Marks:
        """The places that rendering knows."""
        return self.prompt.marks


@dataclass(frozen=True, slots=True)
class PreparedPlain:
    """A completion request that is ready for the engine; a plain prompt has no marks."""

    asked: Asked
    chain: Chain

    @property
    def marks(self) -> Marks:
        """No place of a plain prompt is known."""
        return Marks()


class Intake:
    """Prepares requests in worker threads, so that a long prompt holds nobody else up."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._workers = ThreadPoolExecutor(options.num_workers, thread_name_prefix="ignisd-chat")
        self._ids = itertools.count(1)
        self._num_preparing = 0

    def close(self) -> None:
        """Let the threads go; nothing may be prepared afterwards."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    async def prepare_chat(
        self, body: bytes, model: ModelInfo, key: bytes | None = None
    ) -> Prepared:
        """Parse and render a chat body; `key` is the API key that prompts are kept apart by.

        Raises:
            RequestError: the body, the model's name or the length of the prompt is wrong.
            Overloaded: too many requests wait for a thread.
        """
        return await self.run(partial(_prepare_chat, body, model, self._options.chat, key))

    async def prepare_plain(
        self, body: bytes, model: ModelInfo, key: bytes | None = None
    ) -> PreparedPlain:
        """The same for the body of a completion."""
        return await self.run(partial(_prepare_plain, body, model, key))

    async def run(self, work: Callable[[], T]) -> T:
        """Do some work on text in a thread.

        Raises:
            Overloaded: too much waits for a thread.
        """
        if self._num_preparing >= self._options.max_preparing:
            raise Overloaded(self._options.max_preparing)
        self._num_preparing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._workers, work)
        finally:
            self._num_preparing -= 1

    def engine_requests(
        self, prepared: Prepared | PreparedPlain, model: ModelInfo, name: str
    ) -> tuple[Request, ...]:
        """What to submit: one request for each answer. Ids ascend in the order of the calls."""
        whole = self.unsubmitted(prepared, model)
        seed = whole.sampling.seed
        return tuple(
            replace(
                whole,
                id=next(self._ids),
                name=f"{name}-{index}" if index else name,
                sampling=replace(whole.sampling, seed=(seed + index) % 2**32),
            )
            for index in range(prepared.asked.n)
        )

    def unsubmitted(self, prepared: Prepared | PreparedPlain, model: ModelInfo) -> Request:
        """What would be submitted for the first answer, for a question about it."""
        asked = prepared.asked
        room = model.context_tokens - prepared.chain.num_tokens
        return Request(
            id=0,
            name="",
            chain=prepared.chain,
            marks=prepared.marks,
            sampling=self._sampling(asked.sampling, model.defaults.sampling),
            max_tokens=room if asked.max_tokens is None else min(asked.max_tokens, room),
            stop_ids=frozenset() if asked.ignore_eos else frozenset(model.defaults.eos_ids),
            cls=asked.cls,
            reuse=asked.reuse,
            arrival_ms=self._options.now_ms(),
        )

    def _sampling(self, asked: SamplingFields, defaults: SamplingFields) -> SamplingParams:
        """The request's own fields, else the checkpoint's, else neutral ones."""

        def pick(name: str, neutral: float) -> float:
            mine, theirs = getattr(asked, name), getattr(defaults, name)
            return float(mine if mine is not None else theirs if theirs is not None else neutral)

        seed = self._options.draw_seed() if asked.seed is None else asked.seed
        return SamplingParams(
            temperature=pick("temperature", 1.0),
            top_k=max(0, int(pick("top_k", 0))),
            top_p=pick("top_p", 1.0),
            min_p=pick("min_p", 0.0),
            presence_penalty=pick("presence_penalty", 0.0),
            frequency_penalty=pick("frequency_penalty", 0.0),
            repetition_penalty=pick("repetition_penalty", 1.0),
            seed=seed % 2**32,
        )


def check_model(asked: str | None, model: ModelInfo) -> None:
    """Raises ModelNotFound when a request names another model than the served one."""
    if asked is not None and asked != model.name:
        raise ModelNotFound(asked, model.name)


def _prepare_chat(
    body: bytes, model: ModelInfo, policies: ChatPolicies, key: bytes | None
) -> Prepared:
    chat = parse_chat(body, policies)
    check_model(chat.asked.model, model)
    prompt = model.renderer.render(chat, model.context_tokens)
    chain = _chain(prompt.tokens, model, chain_salt(chat.asked.cache_salt, key), "messages")
    tools = chat.tools if chat.reads_calls and model.family.calls else ()
    return Prepared(chat, prompt, chain, tuple(read_tool(tool) for tool in tools))


def _prepare_plain(body: bytes, model: ModelInfo, key: bytes | None) -> PreparedPlain:
    plain = parse_plain(body)
    asked = plain.asked
    check_model(asked.model, model)
    tokens = tokens_of(plain.prompt, model.tokenizer, model.context_tokens)
    return PreparedPlain(asked, _chain(tokens, model, chain_salt(asked.cache_salt, key), "prompt"))


def _chain(tokens: TokenArray, model: ModelInfo, salt: bytes, param: str) -> Chain:
    """The chain of a prompt that leaves room for a token of answer."""
    if len(tokens) >= model.context_tokens:
        raise ContextLengthExceeded(len(tokens), model.context_tokens, param)
    return chain_of(tokens, salt)
