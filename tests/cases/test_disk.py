"""States in files while the daemon runs: whole or not there, on a disk of any temper."""

import errno
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ignisd.engine.tiers import TierLimits
from ignisd.engine.types import Phase, Tier
from state.retention import Marks
from state.reuse import MissReason
from state.spec import Class
from state.tiers.condition import RETRY_MS, Condition
from tests.cases.prompts import promised
from tests.engine.below import Tiered, check_bytes
from tests.engine.harness import words
from tests.planting import catches
from tests.state.tiers.faulty_disk import Fault

CEILING = 1 << 22
KEPT = 256
"""What is kept of the prompts here, which have 300 tokens."""


def filing(**more: Any) -> Tiered:
    """A harness with one slot, which writes to a file whatever goes down."""
    sizes: dict[str, Any] = {"num_host_slots": 1, "disk_bytes": CEILING, "low_cells": 200}
    return Tiered(**(sizes | more))


def asked(harness: Tiered, who: int) -> int:
    """One of the prompts, asked; how much of it was reused."""
    return harness.ask(words(300, who), marks=Marks(opener=300)).cached_tokens


def condition(harness: Tiered) -> Condition:
    """Whether files are written."""
    return harness.shelf.writer.condition


def filed(harness: Tiered, *whose: int) -> None:
    """Ask these, and another, until they lie in files."""
    for who in (*whose, 99):
        asked(harness, who)
    harness.settle()
    for who in whose:
        assert harness.on_disk(words(300, who), KEPT) is not None, who


@catches("file-found-before-it-is-there", "cells-go-before-their-file-is-whole")
def test_v29_a_file_is_found_when_it_is_whole() -> None:
    harness = filing()
    harness.slow_files = True
    asked(harness, 1)
    asked(harness, 2)
    harness.turn()
    assert len(harness.orders) == 1
    assert harness.on_disk(words(300, 1), KEPT) is None
    finish = harness.ask(words(300, 1), marks=Marks(opener=300))
    assert (finish.cached_tokens, finish.reuse.tier) == (KEPT, Tier.KV_RAM)
    harness.slow_files = False
    harness.settle()
    assert harness.on_disk(words(300, 1), KEPT) is not None
    assert harness.in_ram(words(300, 1), KEPT) is None
    asked(harness, 3)
    finish = harness.ask(words(300, 1), marks=Marks(opener=300))
    assert (finish.cached_tokens, finish.reuse.tier) == (KEPT, Tier.KV_DISK)
    harness.assert_leak_free()


@catches("image-of-the-neighbour", "pages-rise-in-another-order", "tier-of-a-restore-unsaid")
def test_v79_twenty_sessions_come_back_from_disk_each_as_itself() -> None:
    rng = random.Random(79)
    harness = filing(num_cells=30, num_pages=40, max_context=1024, window_pages=2, low_cells=25)
    sessions = [words(250 + 40 * (who % 4), who) for who in range(20)]
    for prompt in sessions:
        harness.ask(prompt, marks=Marks(opener=len(prompt)))
        harness.settle()
    tiers = []
    for prompt in rng.sample(sessions, 20):
        short = harness.submit(words(70, 80), max_tokens=12)
        tiers.append(harness.ask(prompt, marks=Marks(opener=len(prompt)), max_tokens=9).reuse.tier)
        harness.assert_cold(short)
        check_bytes(harness)
        harness.settle()
    assert tiers.count(Tier.KV_DISK) >= 12
    harness.assert_leak_free()


@catches("corrupt-file-served", "window-not-checked")
def test_v79_a_file_that_was_changed_is_a_miss_and_goes() -> None:
    for damage in (0.01, 0.3, 0.5, 0.7, 0.95, 0.999, None):
        harness = filing()
        filed(harness, 1, 2)
        held = harness.on_disk(words(300, 1), KEPT)
        assert held is not None
        path = harness.shelf.path_of(held)
        raw = bytearray(path.read_bytes())
        if damage is None:
            del raw[-1:]
        else:
            raw[int(damage * len(raw))] ^= 4
        path.write_bytes(raw)
        finish = harness.ask(words(300, 1), marks=Marks(opener=300), max_tokens=20)
        assert finish.cached_tokens == 0
        assert finish.reuse.miss is not None
        assert finish.reuse.miss.reason is MissReason.CORRUPT
        harness.settle()
        assert not path.exists()
        assert asked(harness, 2) == KEPT
        assert harness.world.counters.file_failures == 1
        harness.assert_leak_free()


@catches("failed-file-stays", "short-write-taken-for-whole")
def test_v80_a_file_of_which_one_write_fails_is_not_there_and_is_written_later() -> None:
    for number in range(3):
        for fault in (Fault(error=errno.EIO), Fault(short=700)):
            harness = filing()
            harness.slow_files = True
            asked(harness, 1)
            asked(harness, 2)
            harness.turn()
            harness.disk.faults = _at_write(harness, number, fault)
            harness.file()
            harness.obey()
            failed = fault.error is not None
            there = harness.on_disk(words(300, 1), KEPT) is not None
            assert there is not failed
            assert len(harness.files()) == (0 if failed else 1)
            harness.slow_files = False
            harness.settle()
            assert harness.on_disk(words(300, 1), KEPT) is not None
            assert asked(harness, 1) == KEPT
            assert harness.world.counters.file_failures == failed


class _AtWrite(dict[int, Fault]):
    """A fault at the n-th write from now on, whatever other calls come between."""

    def __init__(self, harness: Tiered, number: int, fault: Fault) -> None:
        super().__init__()
        self.disk, self.number, self.fault = harness.disk, number, fault
        self.before = len(harness.disk.named("write"))

    def get(self, key: int, default: object = None) -> Fault | None:  # type: ignore[override]
        """The fault, if the call is that write."""
        is_write = self.disk.calls[key][0] == "write"
        due = len(self.disk.named("write")) - self.before == self.number + 1
        return self.fault if is_write and due else None


def _at_write(harness: Tiered, number: int, fault: Fault) -> dict[int, Fault]:
    return _AtWrite(harness, number, fault)


def _troubles() -> Iterator[tuple[str, int]]:
    writing = ("make_directory", "open_new", "write", "sync_data", "sync", "rename", "space")
    for number, name in enumerate((*writing, "sync_directory", "close")):
        yield name, (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES)[number % 4]
    yield from (("write", errno.ENOSPC), ("open_new", errno.EROFS), ("open_new", errno.ENOENT))
    yield from (("open_old", errno.EACCES), ("open_old", errno.ENOENT), ("read", errno.EIO))


@catches("a-failed-file-stops-everything", "corrupt-file-served")
def test_v83_whatever_the_disk_answers_requests_are_answered() -> None:
    for call, error in _troubles():
        harness = filing()
        filed(harness, 1)
        harness.disk.always = {call: error}
        for who in (2, 3, 1, 4, 2):
            asked(harness, who)
            harness.settle()
            check_bytes(harness)
        assert not harness.tiers.writing, call
        assert harness.world.counters.file_failures > 0, call
        landed = [harness.shelf.path_of(one) for one in harness.shelf.index]
        assert all(path.is_file() for path in landed), call
        harness.disk.always = {}
        harness.now_ms += RETRY_MS
        stopped = harness.shelf.writer.condition is Condition.DISABLED
        assert stopped is (error in (errno.EROFS, errno.EACCES) and call not in ("open_old",))
        harness.settle()
        asked(harness, 5)
        harness.assert_leak_free()


@catches("full-disk-tried-again-and-again")
def test_v83_a_full_disk_is_read_on_and_tried_now_and_then() -> None:
    harness = filing()
    filed(harness, 1)
    harness.disk.always = {"write": errno.ENOSPC}
    asked(harness, 2)
    harness.settle()
    tried = len(harness.disk.named("open_new"))
    assert condition(harness) is Condition.PAUSED
    for who in range(3, 8):
        asked(harness, who)
        harness.settle()
    assert len(harness.disk.named("open_new")) == tried
    assert asked(harness, 1) == KEPT
    harness.disk.always = {}
    harness.now_ms += RETRY_MS
    harness.settle()
    asked(harness, 8)
    harness.settle()
    assert condition(harness) is Condition.WRITING
    assert harness.world.counters.files_written > 2


@catches("flush-forgets-kv-disk", "orphans-stay")
def test_v85_a_flush_removes_the_files_also_those_under_way() -> None:
    for begun in ("written", "writing", "reading"):
        harness = filing(num_lanes=2)
        filed(harness, 1, 2)
        harness.slow_files = True
        if begun == "writing":
            asked(harness, 3)
            asked(harness, 4)
            harness.turn()
            assert harness.tiers.writing
        elif begun == "reading":
            harness.submit(words(300, 1), marks=Marks(opener=300))
            harness.turn()
            assert harness.tiers.reading
        harness.flush()
        harness.slow_files = False
        harness.drain()
        harness.assert_cold()
        harness.settle()
        harness.flush()
        harness.settle()
        assert harness.files() == []
        assert (harness.shelf.used_bytes, harness.arena.used_bytes) == (0, 0)
        assert asked(harness, 1) == 0
        assert harness.files() == []


@catches("file-given-back-while-it-is-read")
def test_v85_what_is_flushed_while_it_is_read_is_whole_or_not_used() -> None:
    harness = filing(num_lanes=2, num_cells=20, low_cells=0)
    harness.change_tiers(limits=scaled(harness, low_cells=20))
    filed(harness, 1)
    harness.change_tiers(limits=scaled(harness, low_cells=0))
    harness.slow_files = True
    reading = harness.submit(words(300, 1), marks=Marks(opener=300), max_tokens=20)
    harness.until_phase(Phase.RESTORING, reading)
    harness.flush()
    assert reading in harness.world.sequences
    agent = harness.submit(words(70, 5), max_tokens=4, cls=Class.AGENT)
    harness.until(lambda: agent in harness.finishes)
    harness.file()
    harness.drain()
    harness.assert_cold()
    harness.slow_files = False
    harness.assert_leak_free()


def scaled(harness: Tiered, **limits: int) -> TierLimits:
    """The bounds of the tiers with some of them changed."""
    changes: dict[str, Any] = dict(limits)
    return replace(harness.tiers.limits, **changes)


@catches("failed-file-stays", "full-disk-tried-again-and-again")
def test_l65_what_could_not_be_written_or_is_gone_is_not_chosen() -> None:
    harness = filing()
    harness.disk.always = {"sync": errno.ENOSPC}
    asked(harness, 1)
    asked(harness, 2)
    harness.settle()
    assert harness.files() == []
    assert len(harness.shelf.index) == 0
    assert asked(harness, 1) == KEPT, "it lies in host memory"
    harness.disk.always = {}
    harness.now_ms += RETRY_MS
    filed(harness, 2)
    for path in harness.files():
        path.unlink()
    finish = harness.ask(words(300, 2), marks=Marks(opener=300))
    assert finish.reuse.miss is not None
    assert (finish.cached_tokens, finish.reuse.miss.reason) == (0, MissReason.CORRUPT)
    assert harness.on_disk(words(300, 2), KEPT) is None
    assert harness.world.counters.files_read == 0
    harness.assert_leak_free()


@catches("nothing-bounds-the-files", "flush-forgets-kv-disk")
def test_l70_the_files_keep_to_their_ceiling_and_go_when_asked() -> None:
    one_file = 8192 + 6 * 512 + 4096
    harness = filing(disk_bytes=4 * one_file)
    for who in range(12):
        asked(harness, who)
        harness.settle()
        there = sum(path.stat().st_size for path in harness.files())
        assert there <= harness.shelf.used_bytes <= 4 * one_file
    assert len(harness.files()) >= 3
    assert asked(harness, 10) == KEPT
    streaming = harness.submit(words(70, 50), max_tokens=60)
    harness.until_said(streaming, 5)
    harness.flush()
    harness.settle()
    assert harness.files() == []
    harness.assert_cold(streaming)


@catches("spilled-without-need")
def test_l118_a_long_session_writes_each_state_once_and_only_if_it_must() -> None:
    harness = filing(num_cells=60, low_cells=40, num_host_slots=2, max_context=8192, num_pages=300)
    system, talks = words(256, 1), [words(40, 10 + who) for who in range(4)]
    for turn in range(60):
        who = turn % 4
        talks[who] = [*talks[who], *words(70, 100 + turn)]
        prompt = [*system, *talks[who]]
        end = len(prompt)
        harness.ask(prompt, marks=Marks(256, end, end), max_tokens=2)
        harness.settle()
    written = [path for call, (_, path) in harness.disk.named("rename")]
    assert len(written) == len(set(written)) > 0, "no state was written twice"
    roomy = filing(num_cells=400, low_cells=20)
    for who in range(10):
        asked(roomy, who)
        roomy.settle()
    assert roomy.files() == [], "nothing is written while host memory has room"


@catches("kept-for-who-asked-for-none")
def test_l118_a_prompt_that_nobody_wants_kept_is_not_written() -> None:
    harness = filing()
    for who in range(4):
        harness.ask(words(300, who), marks=Marks(opener=300), reuse=False)
        harness.settle()
    assert harness.files() == []
    assert promised(300) == KEPT
