"""The engine of this program as a target, in this process and without HTTP."""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from ignisd.bench.plan import OWN_NAME
from ignisd.bench.target import Answer, BenchError, Chat, as_sent
from ignisd.chat.parse import parse_chat
from ignisd.engine.loop import Engine
from ignisd.engine.types import Finish, Finished, FinishReason, Request, SamplingParams, Token
from ignisd.load import load_model
from ignisd.settings import Settings
from state.chain import chain_of


class OwnTarget:
    """Loads what the settings name. Its loop turns on a thread of its own, as in the daemon.

    Answers run to their full length: no token ends them, so that runs can be compared.

    Raises:
        ConfigError: the model cannot be served.
    """

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        loaded = load_model(settings, environ, lambda: datetime.now(UTC), lambda done: None)
        self.inexact = loaded.inexact
        self._loaded = loaded
        self._info = loaded.info
        self._ids = itertools.count(1)
        self._engine = Engine(
            loaded.world,
            loaded.runner,
            clock=_now_ms,
            queue_limit=settings.server_queue,
            files=None if loaded.disk is None else loaded.disk.threads,
            check=settings.check,
        )
        self._loop = asyncio.new_event_loop()
        self._turning = asyncio.run_coroutine_threadsafe(self._engine.run(), self._loop)
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="ignisd-bench", daemon=True
        )
        self._thread.start()

    @property
    def name(self) -> str:
        """As in the tables."""
        return OWN_NAME

    def ask(self, chat: Chat, max_tokens: int, *, reuse: bool = True) -> Answer:
        """A greedy answer; rendering the prompt counts, as it does for a server."""
        began_s = time.monotonic()
        body = {"messages": as_sent(chat), "max_tokens": max_tokens, "temperature": 0}
        prompt = self._info.renderer.render(parse_chat(json.dumps(body).encode()))
        wanted = len(prompt.tokens) + max_tokens
        if wanted > self._info.context_tokens:
            raise BenchError(
                f"a prompt of {len(prompt.tokens)} and an answer of {max_tokens} tokens do not fit "
                f"into {self._info.context_tokens}; raise --model-max-context, or lower the sizes "
                "that ignisd bench --help lists"
            )
        number = next(self._ids)
        request = Request(
            id=number,
            name=f"bench-{number}",
            chain=chain_of(prompt.tokens),
            marks=prompt.marks,
            sampling=SamplingParams(temperature=0.0),
            max_tokens=max_tokens,
            reuse=reuse,
            arrival_ms=began_s * 1000.0,
        )
        return asyncio.run_coroutine_threadsafe(self._read(request, began_s), self._loop).result()

    async def _read(self, request: Request, began_s: float) -> Answer:
        first_s: float | None = None
        tokens: list[int] = []
        finish: Finish | None = None
        async with self._engine.submit(request) as stream:
            async for event in stream:
                if isinstance(event, Token):
                    first_s = first_s or time.monotonic()
                    tokens.append(event.token)
                elif isinstance(event, Finished):
                    finish = event.finish
        ended_s = time.monotonic()
        assert finish is not None, "a stream ended without its last event"
        if finish.reason is FinishReason.ERROR:
            raise BenchError(f"{OWN_NAME}: {finish.message}")
        return Answer(
            began_s=began_s,
            ttft_s=(first_s or ended_s) - began_s,
            total_s=ended_s - began_s,
            prompt_tokens=finish.prompt_tokens,
            cached_tokens=finish.cached_tokens,
            completion_tokens=finish.generated_tokens,
            said=" ".join(map(str, tokens)),
        )

    def close(self) -> None:
        """Stop the engine and its thread."""
        asyncio.run_coroutine_threadsafe(self._engine.stop(grace_ms=0.0), self._loop).result()
        self._turning.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loaded.close()


def _now_ms() -> float:
    return time.monotonic() * 1000.0
