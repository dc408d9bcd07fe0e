"""Faults of what outlasts a process: which files are taken up, and what stamps them."""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ignisd import fingerprint
from ignisd.engine import scheduler, spilling
from ignisd.engine.files import FileThreads
from ignisd.engine.loop import Engine
from state import chain
from state.chain import Chain
from state.spec import Fingerprint
from state.tiers import adopt
from state.tiers.disk import Disk
from state.tiers.shelf import Room, Shelf
from tests.planting import mutant

Plant = AbstractContextManager[Any]


@mutant
def weights_are_no_part_of_the_stamp() -> Plant:
    """Artifacts with files of the same names count as the same."""

    def content(folder: Path) -> str:
        return " ".join(sorted(path.name for path in folder.iterdir()))

    stack = ExitStack()
    stack.enter_context(patch.object(fingerprint, "content_of", content))
    for module in ("tests.cases.test_restart",):
        stack.enter_context(patch(f"{module}.content_of", content))
    return stack


@mutant
def the_name_is_the_stamp() -> Plant:
    """A model is known by its name alone."""
    real = Fingerprint.of

    def of(**facts: Any) -> Fingerprint:
        return real(model=facts["model"]) if "model" in facts else real(**facts)

    return patch.object(Fingerprint, "of", of)


@mutant
def adopted_beyond_the_ceiling() -> Plant:
    """Files of an earlier process are all taken up, however many there are."""
    return patch.object(adopt, "_within_ceiling", lambda shelf, *args: shelf)


@mutant
def foreign_files_stay_for_ever() -> Plant:
    """Files of another model make way for nobody."""
    real = Shelf.plan

    def plan(self: Shelf, *args: Any) -> Room | None:
        return real(replace(self, foreign=()), *args)

    return patch.object(Shelf, "plan", plan)


@mutant
def keys_of_this_process_only() -> Plant:
    """The key of a page depends on the seed of this process's hashes."""

    def link(before: bytes, page: bytes) -> bytes:
        return hash((before, page)).to_bytes(8, "little", signed=True) * 2

    real = chain.chain_of

    def chain_of(tokens: Any, salt: bytes = b"", link: Any = link) -> Chain:
        return real(tokens, salt, link)

    return patch("tests.cases.test_restart.chain_of", chain_of)


@mutant
def nothing_is_written_out() -> Plant:
    """An orderly end takes everything that is retained with it."""
    return patch.object(spilling, "_emptied_device", lambda world, now_ms: world)


@mutant
def what_is_retained_is_written_after_an_engine_error() -> Plant:
    """An engine that has died writes out what it retained, right or wrong."""
    real = Engine._fail

    def fail(self: Engine, message: str) -> None:
        files, world = self._files, spilling.draining(self._world)
        assert files is not None
        for _ in range(20):
            world, work = scheduler.plan(replace(world, sequences={}, queue=()), 1e9)
            world, orders = scheduler.take_orders(world)
            if work is not None:
                done = self._runner.fetch(self._runner.run(work))
                world, _ = scheduler.commit(
                    replace(world, in_flight=world.in_flight[-1:]), done, 1e9
                )
            for order in orders:
                world = FileThreads(Disk(), files._rows).execute(order)(world, 1e9)
        real(self, message)

    return patch.object(Engine, "_fail", fail)
