"""A body becomes a request to the engine: parsed, rendered, tokenized, hashed, within bounds."""

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ignisd.chat.checkpoint import ModelInfo
from ignisd.chat.parse import parse_chat
from ignisd.chat.policies import ChatPolicies
from ignisd.chat.types import ChatRequest, Prompt, SamplingFields
from ignisd.engine.types import Request, SamplingParams
from ignisd.errors import ContextLengthExceeded, ModelNotFound, Overloaded
from ignisd.http.options import HttpOptions
from state.chain import Chain, chain_of


@dataclass(frozen=True, slots=True)
class Prepared:
    """A chat request that is ready for the engine."""

    chat: ChatRequest
    prompt: Prompt
    chain: Chain


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

    async def prepare_chat(self, body: bytes, model: ModelInfo) -> Prepared:
        """Parse and render a chat body.

        Raises:
            RequestError: the body, the model's name or the length of the prompt is wrong.
            Overloaded: too many requests wait for a thread.
        """
        if self._num_preparing >= self._options.max_preparing:
            raise Overloaded(self._options.max_preparing)
        self._num_preparing += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._workers, _prepare, body, model, self._options.chat
            )
        finally:
            self._num_preparing -= 1

    def engine_request(self, prepared: Prepared, model: ModelInfo, name: str) -> Request:
        """What to submit. Ids ascend in the order of the calls."""
        chat = prepared.chat
        room = model.context_tokens - prepared.chain.num_tokens
        return Request(
            id=next(self._ids),
            name=name,
            chain=prepared.chain,
            marks=prepared.prompt.marks,
            sampling=self._sampling(chat.sampling, model.defaults.sampling),
            max_tokens=room if chat.max_tokens is None else min(chat.max_tokens, room),
            stop_ids=frozenset(model.defaults.eos_ids),
            cls=chat.cls,
            reuse=chat.reuse,
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


def _prepare(body: bytes, model: ModelInfo, policies: ChatPolicies) -> Prepared:
    chat = parse_chat(body, policies)
    if chat.model is not None and chat.model != model.name:
        raise ModelNotFound(chat.model, model.name)
    prompt = model.renderer.render(chat)
    if len(prompt.tokens) >= model.context_tokens:
        raise ContextLengthExceeded(len(prompt.tokens), model.context_tokens)
    salt = b"" if chat.cache_salt is None else chat.cache_salt.encode()
    return Prepared(chat, prompt, chain_of(prompt.tokens, salt))
