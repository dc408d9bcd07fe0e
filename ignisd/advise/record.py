"""Writes a trace while the daemon serves (`--trace-path`)."""

import dataclasses
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec
from blake3 import blake3

from ignisd import __version__
from ignisd.advise.trace import FORMAT, Asked, Head, Line, Turn, Turns
from ignisd.engine.types import Finish, Request
from ignisd.engine.world import World
from ignisd.errors import ConfigError
from ignisd.http.serving import Facts
from state.spec import PAGE_TOKENS

_TURNS_A_LINE = 64
_NAME_BYTES = 12


def open_trace(path: Path) -> BinaryIO:
    """The file, to be appended to; only its owner may read it.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"--trace-path {path} cannot be written: {error.strerror}.") from None
    return os.fdopen(descriptor, "ab")


def recorder_of(path: Path | None, model: str, facts: Facts) -> "Recorder | None":
    """Who records a model that begins to serve; None where nothing is to be recorded.

    Raises:
        ConfigError: the file cannot be written.
    """
    if path is None:
        return None
    return Recorder(open_trace(path), model, facts.page_bytes, facts.image_bytes, facts.rates)


class Recorder:
    """Hears of every turn and every end, and writes lines.

    A file that cannot be written any more, as on a full disk, ends the recording and nothing else.

    Args:
        file: appended to; closed with the recorder.
        model: its name.
        page_bytes, image_bytes: sizes of the two halves of a state.
        rates: what was measured at load.
    """

    def __init__(
        self,
        file: BinaryIO,
        model: str,
        page_bytes: int,
        image_bytes: int,
        rates: Mapping[str, float],
    ) -> None:
        self._file: BinaryIO | None = file
        self._model = model
        self._page_bytes, self._image_bytes = page_bytes, image_bytes
        self._rates = dict(rates)
        self._key = secrets.token_bytes(32)
        self._known: dict[int, Request] = {}
        self._left: set[int] = set()
        self._turns: list[Turn] = []
        self._began = False
        self.failed: str | None = None

    def planning(self, world: World, now_ms: float) -> None:
        """Note the turn, and who came and went before it."""
        if not self._began:
            self._began = True
            self._write(self._head(world))
        came = [id for id in world.sequences if id not in self._known]
        for id in came:
            self._known[id] = world.sequences[id].request
        left = [id for id in self._known if id not in world.sequences]
        self._left.update(left)
        self._turns.append(Turn(now_ms, came, left, []))
        if len(self._turns) > _TURNS_A_LINE:
            self._flush_turns(keep=1)

    def committing(self, now_ms: float) -> None:
        """Note when the oldest round was committed."""
        if self._turns:
            self._turns[-1].committed_ms.append(now_ms)

    def ended(self, finish: Finish) -> None:
        """Write the line of a request."""
        request = self._known.pop(finish.request_id, None)
        if request is not None:
            self._write(self._asked(request, finish))
            self._left.discard(request.id)

    def close(self) -> None:
        """Write what is left."""
        self._flush_turns(keep=0)
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _flush_turns(self, keep: int) -> None:
        """Write the turns noted; the last may still have a commit to come."""
        split = len(self._turns) - keep
        written, self._turns = self._turns[:split], self._turns[split:]
        if written:
            self._write(Turns(written))

    def _write(self, line: Line) -> None:
        if self._file is None:
            return
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        except OSError as error:
            self.failed = error.strerror
            self._file = None

    def _name(self, digest: bytes) -> str:
        return blake3(digest, key=self._key).hexdigest(_NAME_BYTES)

    def _head(self, world: World) -> Head:
        tiers = world.tiers
        told = None
        if tiers is not None:
            arena = tiers.arena
            told = {
                "limits": dataclasses.asdict(tiers.limits),
                "num_cells": arena.num_cells,
                "image_cells": arena.image_cells,
                "cell_bytes": arena.cell_bytes,
            }
        return Head(
            format=FORMAT,
            version=__version__,
            model=self._model,
            limits=dataclasses.asdict(world.limits),
            interval_tokens=world.policy.interval_tokens,
            min_interrupted_tokens=world.policy.min_interrupted_tokens,
            num_pages=world.pages.num_pages,
            device_slots=world.slots.num_device,
            host_slots=world.slots.num_slots - world.slots.num_device,
            page_bytes=self._page_bytes,
            image_bytes=self._image_bytes,
            tiers=told,
            has_disk=tiers is not None and tiers.shelf is not None,
            rates=self._rates,
        )

    def _asked(self, request: Request, finish: Finish) -> Asked:
        chain, marks, reuse = request.chain, request.marks, finish.reuse
        whole = len(chain.digests) * PAGE_TOKENS
        before = chain.digests[-1] if chain.digests else chain.salt
        tail = b"tail" + before + chain.tokens[whole:].tobytes()
        return Asked(
            id=request.id,
            cls=request.cls,
            arrival_ms=request.arrival_ms,
            pages=[self._name(digest) for digest in chain.digests],
            tail=self._name(tail),
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            reuse=request.reuse,
            system_end=marks.system_end,
            turn_open=marks.turn_open,
            opener=marks.opener,
            generated=finish.generated_tokens,
            # One that left is cut off at that turn, whatever its end is called.
            reason="cancelled" if request.id in self._left else finish.reason,
            cached=finish.cached_tokens,
            matched=reuse.matched_tokens,
            kind=reuse.kind,
            tier=reuse.tier,
            miss=None if reuse.miss is None else reuse.miss.reason,
            ttft_ms=finish.timings.ttft_ms,
        )
