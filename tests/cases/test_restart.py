"""What outlasts a process: adopted only if it is whole and this model's, never a wrong answer."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ignisd.fingerprint import content_of, fingerprint_of
from ignisd.model.forward import ForwardSpec
from state.chain import chain_of
from state.retention import Marks
from state.spec import Fingerprint, KvFormat
from state.tiers.disk import Disk
from state.tiers.files import verify_state
from state.tiers.stored import key_of
from tests.cases.prompts import chat, floor, promised
from tests.cases.test_disk import CEILING, KEPT, asked, filed, filing
from tests.engine.below import Tiered, new_folder
from tests.engine.harness import words
from tests.model.make_random_checkpoint import SIZES
from tests.planting import catches
from tests.state.tiers.faulty_disk import Fault, Killed

SESSIONS = range(1, 7)


def restarted(before: Tiered, **more: Any) -> Tiered:
    """Another process on the same files."""
    return filing(**({"root": before.root} | more))


@catches("weights-are-no-part-of-the-stamp")
def test_v86_another_artifact_of_the_same_shape_shares_nothing() -> None:
    stamps = []
    for weights in (b"first", b"other"):
        artifact = new_folder(stamps_owner)
        (artifact / "config.json").write_text("{}")
        (artifact / "model.safetensors").write_bytes(weights)
        stamps.append(Fingerprint.of(weights=content_of(artifact)))
    first = filing(fingerprint=stamps[0])
    filed(first, 1, 2)
    other = restarted(first, fingerprint=stamps[1])
    assert asked(other, 1) == 0
    back = restarted(first, fingerprint=stamps[0])
    assert asked(back, 1) == KEPT


class _Owner:
    """Somebody whom folders can belong to."""


stamps_owner = _Owner()


@catches("strays-stay", "adopted-beyond-the-ceiling")
def test_v88_after_a_kill_the_good_files_are_adopted_and_the_rest_goes() -> None:
    first = filing()
    filed(first, *SESSIONS)
    first.disk.faults = {len(first.disk.calls) + 6: Fault(kills=True)}
    with pytest.raises(Killed):
        filed(first, 20, 21)
    assert any(path.name.endswith(".partial") for path in first.files())
    there = sum(path.stat().st_size for path in first.files())
    half = restarted(first, disk_bytes=there // 2)
    half.settle()
    assert sum(path.stat().st_size for path in half.files()) <= there // 2
    kept = len(half.shelf.index)
    assert 0 < kept < len(SESSIONS)
    again = restarted(half)
    assert not any(path.name.endswith(".partial") for path in again.files())
    hits = [asked(again, who) for who in SESSIONS]
    assert hits.count(KEPT) == kept
    again.assert_leak_free()


@catches("keys-of-this-process-only")
def test_v89_the_key_of_a_prompt_is_the_same_in_every_process() -> None:
    code = (
        "from state.chain import chain_of\nprint(chain_of(range(200), b'salt').digests[-1].hex())\n"
    )
    keys = {chain_of(range(200), b"salt").digests[-1].hex()}
    for seed in ("0", "1", "4711"):
        environ = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environ,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        keys.add(done.stdout.strip())
    assert len(keys) == 1


@catches("nothing-is-written-out")
def test_l59_after_an_orderly_end_the_next_turn_resumes_from_disk() -> None:
    system = words(200, 1)
    first = Tiered(num_host_slots=6, disk_bytes=CEILING, num_pages=300)
    talks = []
    for who in range(3):
        prompt, marks = chat(system, words(150, 10 + who))
        first.ask(prompt, marks=marks)
        talks.append([*prompt, *words(90, 20 + who)])
    assert first.files() == []
    first.write_out()
    assert len(first.files()) == len({path.name for path in first.files()}) >= 4
    again = restarted(first, num_host_slots=6)
    for talk in talks:
        finish = again.ask(talk, marks=Marks(200, 440, 440))
        assert finish.cached_tokens == promised(350)
        assert finish.reuse.tier is not None
        assert finish.reuse.tier.value == "kv_disk"
    branch = again.ask([*system, *words(80, 50)], marks=Marks(200, 280, 280))
    assert branch.cached_tokens == floor(200)


@catches("the-worst-is-written-first")
def test_l59_what_is_worth_most_is_written_first_when_time_is_short() -> None:
    harness = Tiered(num_host_slots=6, disk_bytes=CEILING, num_pages=300, low_cells=0)
    prompt, marks = chat(words(200, 1), words(90, 2))
    for who in range(2):
        harness.now_ms += 10.0
        harness.ask([*prompt[:200], *words(90, 2 + who)], marks=marks)
    harness.now_ms += 10.0
    harness.ask(words(300, 9), marks=Marks(opener=300), max_tokens=1)
    harness.slow_files = True
    harness.begin_to_write_out()
    harness.until(lambda: bool(harness.orders))
    harness.threads.execute(harness.orders[0])
    (first,) = harness.files()
    ttl_ms = harness.limits.ttl_ms
    best = max(harness.arena.index, key=lambda one: key_of(one, harness.now_ms, ttl_ms))
    assert first == harness.shelf.path_of(best)


@catches("ceiling-without-foreign-bytes", "foreign-files-stay-for-ever")
def test_l61_files_of_another_model_count_and_go_first() -> None:
    first = filing(fingerprint=Fingerprint.of(model="old"))
    filed(first, *SESSIONS)
    there = first.shelf.used_bytes
    other = restarted(first, disk_bytes=there + 20_000)
    assert other.shelf.foreign_bytes == there
    filed(other, *SESSIONS)
    assert sum(path.stat().st_size for path in other.files()) <= there + 20_000
    assert other.shelf.foreign_bytes < there
    assert [asked(other, who) for who in SESSIONS] == [KEPT] * len(SESSIONS)


def stamp(folder: Path, **changes: Any) -> Fingerprint:
    """The stamp of a model of which one thing is different."""
    model = replace(SIZES["tiny"], **changes.pop("model", {}))
    sizes = SimpleNamespace(**({"chunk_tokens": 256, "num_lanes": 4} | changes.pop("sizes", {})))
    spec = ForwardSpec(model, changes.pop("kv_format", KvFormat.BF16))
    planned: Any = SimpleNamespace(name="model", folder=folder, sizes=sizes)
    return fingerprint_of(planned, spec, across_starts=True)


@catches("weights-are-no-part-of-the-stamp", "the-name-is-the-stamp")
def test_l62_whatever_decides_bits_is_in_the_stamp() -> None:
    folder = new_folder(stamps_owner)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    tiny = SIZES["tiny"]
    stamps = [
        stamp(folder),
        stamp(folder, model={"rope_theta": 2 * tiny.rope_theta}),
        stamp(folder, model={"head_dim": 2 * tiny.head_dim}),
        stamp(folder, sizes={"chunk_tokens": 512}),
        stamp(folder, sizes={"num_lanes": 5}),
    ]
    (folder / "tokenizer.json").write_text('{"other": 1}')
    stamps.append(stamp(folder))
    (folder / "model.safetensors").write_bytes(b"Weights")
    stamps.append(stamp(folder))
    assert len(set(stamps)) == len(stamps)


def die_while_writing(step: int, short: int | None) -> Tiered:
    """A process that is killed at some step of its second file."""
    victim = filing()
    filed(victim, 1)
    victim.disk.faults = {len(victim.disk.calls) + step: Fault(kills=True, short=short)}
    with pytest.raises(Killed):
        filed(victim, 2, 3, 4, 5)
    return victim


@catches("named-before-the-header", "strays-stay")
def test_l64_a_kill_at_any_step_of_a_write_poisons_nothing() -> None:
    for step in range(16):
        for short in (None, 300):
            victim = die_while_writing(step, short)
            if short is not None:
                victim.disk.lose_power(random.Random(step))
            again = restarted(victim)
            assert not again.found.damaged, "what has a name is whole"
            assert not any(path.name.endswith(".partial") for path in again.files())
            for path in again.files():
                verify_state(Disk(), path)
            assert asked(again, 1) == KEPT
            for who in (2, 3):
                asked(again, who)
            again.assert_leak_free()


@catches("a-page-more-is-asked-for-below", "nothing-is-written-out")
def test_l67_a_prompt_that_ends_anywhere_resumes_at_the_deepest_whole_state() -> None:
    first = Tiered(num_host_slots=12, disk_bytes=CEILING, interval_tokens=128, num_pages=300)
    prompt = words(600, 1)
    first.ask(prompt, marks=Marks(200, None, 600))
    first.write_out()
    kept = [held.length for held in first.shelf.index]
    assert sorted(kept) == [128, 192, 256, 384, 512, 576]
    for length in (130, 192, 193, 256, 383, 400, 512, 513, 576, 577, 600, 700):
        again = restarted(first, num_host_slots=12)
        tokens = [*prompt[:length], *words(max(0, length - 600), 5)]
        shared = max(at for at in kept if at < min(length, 601))
        finish = again.ask(tokens, marks=Marks(opener=len(tokens)))
        assert finish.cached_tokens == shared, length
