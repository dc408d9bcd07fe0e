"""Metrics of the tiers agree with what requests were told and with what lies there."""

import errno
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ignisd.engine.stats import FileWork, NotDemoted, PinEnd, SkipReason
from ignisd.http.serving import Facts
from state.retained import Kind
from state.tiers.condition import Condition
from tests.http.live import Below, Live, cached, chat, fill, listing, live, post
from tests.http.rig import CHAT, make_rig, until
from tests.http.test_retained_tiers import TIERS, by_tier, everywhere, quiet, spread, state_files
from tests.state.tiers.faulty_disk import FaultyDisk

Samples = dict[tuple[str, ...], float]


async def scrape(rig: Live) -> Samples:
    """Every sample by its name and its labels' values, in the order of the labels' names."""
    async with rig.client() as client:
        response = await client.get("/metrics")
    assert response.status_code == 200
    samples = [
        sample
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    ]
    return {
        (one.name.removeprefix("ignis_"), *(value for _, value in sorted(one.labels.items()))): (
            one.value
        )
        for one in samples
    }


def of(found: Samples, name: str) -> Samples:
    """The samples of a family."""
    return {key[1:]: value for key, value in found.items() if key[0] == name}


async def test_every_label_is_there_from_the_start_with_zero() -> None:
    async with live() as rig:
        found = await scrape(rig)
    kinds = {kind.value for kind in Kind}
    pairs = {(kind, tier) for kind in kinds for tier in TIERS}
    for name in ("hits_total", "retained_states"):
        assert of(found, name) == dict.fromkeys(pairs, 0), name
    down = {(kind, tier) for kind in kinds for tier in TIERS[1:]}
    assert of(found, "demotions_total") == dict.fromkeys(down, 0)
    assert len(of(found, "discards_total")) == 3 * 3 * len(kinds)
    sources = {("computed",), *((tier,) for tier in TIERS)}
    assert of(found, "prompt_tokens_total") == dict.fromkeys(sources, 0)
    for name, keys in (
        ("disk_failures_total", FileWork),
        ("not_demoted_total", NotDemoted),
        ("pins_ended_total", PinEnd),
        ("captures_skipped_total", SkipReason),
        ("disk_writer", Condition),
    ):
        assert of(found, name) == {(str(key),): 0 for key in keys}, name
    for name in (
        "key_bytes",
        "tier_ceiling_bytes",
        "pinned_states",
        "evicted_sequences",
        "arriving_states",
    ):
        assert of(found, name).keys() == {(tier,) for tier in TIERS}, name
    assert of(found, "restore_seconds_count") == {("kv_disk",): 0, ("kv_ram",): 0}


def plain(word: str) -> dict[str, Any]:
    """A chat that shares nothing with others."""
    messages = [{"role": "user", "content": word * 60}]
    return {"messages": messages, "max_tokens": 1, "return_reuse": True}


async def test_prompt_tokens_by_source_are_the_sums_of_the_answers(tmp_path: Path) -> None:
    async with live(below=everywhere(tmp_path / "kv"), num_slots=1) as rig:
        sums = dict.fromkeys(("computed", *TIERS), 0)
        hits = dict.fromkeys(TIERS, 0)
        body, other = chat("first " * 30), plain("other ")

        async def ask(asked: dict[str, Any]) -> None:
            answer = await post(rig, CHAT, asked)
            tier = answer["ignis_reuse"]["tier"]
            sums["computed"] += answer["usage"]["prompt_tokens"] - cached(answer)
            if tier is not None:
                sums[tier] += cached(answer)
                hits[tier] += 1

        await ask(other)
        await ask(body)
        await ask(body)
        for number in range(16):
            await ask(plain(f"{number} "))
            if number == 1:
                await until(lambda: quiet(rig))
                await ask(body)
        await until(lambda: quiet(rig))
        await ask(other)
        found = await scrape(rig)
        assert min(sums.values()) > 0, sums
        assert {key[0]: value for key, value in of(found, "prompt_tokens_total").items()} == sums
        counted = dict.fromkeys(TIERS, 0.0)
        for (_, tier), value in of(found, "hits_total").items():
            counted[tier] += value
        assert counted == hits
        restores = of(found, "restore_seconds_count")
        assert restores == {("kv_ram",): hits["kv_ram"], ("kv_disk",): hits["kv_disk"]}


async def test_states_and_bytes_are_those_of_the_listing(tmp_path: Path) -> None:
    async with live(below=everywhere(tmp_path / "kv"), num_slots=2) as rig:
        await spread(rig)
        told, found = await listing(rig), await scrape(rig)
        for tier, states in by_tier(told).items():
            kinds = of(found, "retained_states")
            assert sum(value for (_, at), value in kinds.items() if at == tier) == len(states)
            sizes = {key: value for key, value in of(found, "tier_bytes").items() if key[2] == tier}
            assert sum(sizes.values()) == found["tier_ceiling_bytes", tier]
            totals = told["totals"]["tiers"][tier]
            kept = sum(value for (_, owner, _), value in sizes.items() if owner == "retained")
            assert kept == totals["bytes"]
            assert found["retained_tokens", tier] == totals["tokens"]
        written = sum(path.stat().st_size for path in state_files(tmp_path / "kv"))
        assert found["disk_bytes_total", "write"] >= written > 0
        assert found["disk_files_total", "write"] >= len(by_tier(told)["kv_disk"])
        assert of(found, "disk_writer") == {("writing",): 1, ("paused",): 0, ("disabled",): 0}


@pytest.mark.parametrize(
    ("number", "condition"), [(errno.ENOSPC, "paused"), (errno.EROFS, "disabled")]
)
async def test_a_disk_that_takes_no_files_shows_as_degraded_and_why(
    tmp_path: Path, number: int, condition: str
) -> None:
    disk = FaultyDisk(always={"open_new": number})
    async with live(below=everywhere(tmp_path / "kv", disk=disk), num_slots=1) as rig:
        async with rig.client() as client:
            before = (await client.get("/health")).json()
            assert (before["degraded"], before["notes"]) == ([], [])
            await fill(rig, 8)
            await until(lambda: quiet(rig))
            health = await client.get("/health")
            assert health.status_code == 200
            assert health.json()["degraded"] == [f"kv_disk_{condition}"]
            assert str(tmp_path) not in health.text, "who needs no key learns no path"
            config = (await client.get("/v1/config")).json()
        assert config["degraded"] == [f"kv_disk_{condition}"]
        assert config["reasons"][f"kv_disk_{condition}"]
        writer = (await listing(rig))["totals"]["tiers"]["kv_disk"]["writer"]
        assert writer == {
            "condition": condition,
            "why": config["reasons"][f"kv_disk_{condition}"],
        }
        found = await scrape(rig)
        assert found["disk_writer", condition] == 1
        assert found["disk_failures_total", "write"] > 0


async def test_memory_that_is_not_locked_is_a_note_and_nothing_worse() -> None:
    rig = make_rig()
    for locked in (True, False):
        why = None if locked else "the limit on locked memory is 64 bytes"
        facts = Facts(kv_ram={"locked": locked, "why_not_locked": why})
        rig.service.set_ready(rig.engine, rig.model, facts)
        async with rig.client() as client:
            health = (await client.get("/health")).json()
            config = (await client.get("/v1/config")).json()
        assert health["degraded"] == []
        assert health["notes"] == ([] if locked else ["kv_ram_unlocked"])
        assert config["reasons"] == ({} if locked else {"kv_ram_unlocked": why})


async def test_what_is_pinned_and_flushed_is_counted() -> None:
    async with live(below=Below(), num_slots=4) as rig:
        await fill(rig, 2)
        (one, *_) = (await listing(rig))["states"]
        await post(rig, "/v1/reuse/pin", {"id": one["id"]})
        await until(lambda: quiet(rig))
        pinned = of(await scrape(rig), "pinned_states")
        assert pinned == {("device",): 1, ("kv_ram",): 1, ("kv_disk",): 0}
        told = await post(rig, "/v1/reuse/flush", {})
        found = await scrape(rig)
        assert found["flushed_states_total",] == told["freed"]["states"] > 0
        assert not any(of(found, "discards_total").values()), "a flush is no lack of room"
        assert not any(of(found, "pinned_states").values())
