"""The control plane over all three tiers: what it lists, explains, flushes and pins."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from ignisd.http import listing as listing_module
from state.tiers.disk import Disk
from state.tiers.format import whole_blocks
from tests.engine.below import Tiered
from tests.fake_device import CELL_BYTES
from tests.http.live import (
    IMAGE_CELLS,
    Below,
    Live,
    cached,
    chat,
    fill,
    listing,
    live,
    post,
)
from tests.http.rig import CHAT, until

TIERS = ("device", "kv_ram", "kv_disk")


def by_tier(told: Any) -> dict[str, list[dict[str, Any]]]:
    """The states that are told, by tier."""
    found: dict[str, list[dict[str, Any]]] = {tier: [] for tier in TIERS}
    for one in told["states"]:
        found[one["tier"]].append(one)
    return found


def quiet(rig: Live) -> bool:
    """Whether nothing moves."""
    tiers = rig.engine.world.tiers
    assert tiers is not None
    return not (tiers.writing or tiers.reading or tiers.touched or tiers.orders)


async def spread(rig: Live, count: int = 12) -> None:
    """States in every tier."""
    await post(rig, CHAT, chat("first"))
    await fill(rig, count)
    await until(lambda: quiet(rig))


def everywhere(root: Path, **more: Any) -> Below:
    return Below(num_cells=24, low_cells=12, root=root, **more)


def state_files(root: Path) -> list[Path]:
    """The files of a disk tier."""
    return list(root.rglob("*.state"))


async def test_states_of_every_tier_are_listed_with_what_they_take(tmp_path: Path) -> None:
    async with live(below=everywhere(tmp_path / "kv"), num_slots=2) as rig:
        await spread(rig)
        told = await listing(rig)
        states = by_tier(told)
        world = rig.engine.world
        assert world.tiers is not None
        assert world.tiers.shelf is not None
        assert all(states.values()), {tier: len(found) for tier, found in states.items()}
        arena, shelf = world.tiers.arena, world.tiers.shelf
        for one in states["kv_ram"]:
            assert one["bytes"] == (IMAGE_CELLS + one["tokens"] // 64) * CELL_BYTES
            assert one["own_bytes"] <= one["bytes"]
        sizes = (path.stat().st_size for path in (tmp_path / "kv").rglob("*.state"))
        there = sum(map(whole_blocks, sizes))
        assert sum(one["bytes"] for one in states["kv_disk"]) == there == shelf.used_bytes
        totals = told["totals"]["tiers"]
        for tier in TIERS:
            assert totals[tier]["states"] == len(states[tier])
            assert totals[tier]["tokens"] == sum(one["tokens"] for one in states[tier])
            assert totals[tier]["bytes"] <= totals[tier]["ceiling_bytes"]
        assert totals["kv_ram"]["bytes"] == arena.used_bytes
        assert totals["kv_disk"]["bytes"] == there
        assert totals["kv_disk"]["writer"] == {"condition": "writing", "why": None}
        groups = told["totals"]["groups"]
        for group in groups.values():
            assert group["bytes"] == sum(group["bytes_by_tier"].values())
        assert told["live"] == {tier: {"sequences": 0, "bytes": 0} for tier in TIERS[1:]}
        keys = {key for one in told["states"] for key in one}
        assert keys == set(told["states"][0])
        assert "Rules" not in str(told)


async def test_common_pages_of_the_arena_count_once() -> None:
    async with live(below=Below(num_cells=100), num_slots=1) as rig:
        for number in range(4):
            await post(rig, CHAT, chat(f"{number}" + " more" * 40))
        await until(lambda: quiet(rig))
        told = (await listing(rig))["totals"]["tiers"]["kv_ram"]
        states = by_tier(await listing(rig))["kv_ram"]
        assert len(states) > 1
        assert told["bytes"] < sum(one["bytes"] for one in states)
        assert told["bytes"] + told["free_bytes"] == told["ceiling_bytes"] == 100 * CELL_BYTES


async def test_no_more_states_are_looked_at_than_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = listing_module.state_below

    def counted(*args: Any) -> Any:
        asked.append(args)
        return real(*args)

    monkeypatch.setattr(listing_module, "state_below", counted)
    async with live(below=Below(num_cells=200), num_slots=1) as rig:
        await fill(rig, 20)
        await until(lambda: quiet(rig))
        whole = await listing(rig)
        asked.clear()
        part = await listing(rig, "?limit=4")
        assert len(asked) == 3
        assert part["states"] == whole["states"][:4] or part["omitted"] > 0
        assert [one["id"] for one in part["states"]] == [one["id"] for one in whole["states"][:4]]
        assert part["omitted"] == len(whole["states"]) - 4
        only = await listing(rig, "?tier=kv_ram&limit=2")
        assert [one["tier"] for one in only["states"]] == ["kv_ram"] * 2
        assert only["omitted"] == len(by_tier(whole)["kv_ram"]) - 2


async def test_a_tier_that_is_not_known_is_refused() -> None:
    async with live() as rig, rig.client() as client:
        response = await client.get("/v1/reuse?tier=tape")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tier"
        response = await client.post("/v1/reuse/flush", json={"tier": "tape"})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tier")


def lacks_time(reuse: dict[str, Any]) -> dict[str, Any]:
    """Without what only a restore can tell."""
    return {key: value for key, value in reuse.items() if key != "restore_ms"}


@pytest.mark.parametrize("tier", ["kv_ram", "kv_disk"])
async def test_an_explanation_tells_the_restore(tmp_path: Path, tier: str) -> None:
    below = Below(num_cells=200) if tier == "kv_ram" else everywhere(tmp_path / "kv")
    async with live(below=below, num_slots=1) as rig:
        body = chat("first " * 30)
        await post(rig, CHAT, body)
        await fill(rig, 14)
        await until(lambda: quiet(rig))
        told = await post(rig, "/v1/reuse/explain", body)
        assert told == await post(rig, "/v1/reuse/explain", body), "asking changes nothing"
        listed = {one["id"]: one for one in (await listing(rig))["states"]}
        assert told["ignis_reuse"]["tier"] == told["restore"]["tier"] == tier
        assert told["restore"]["has_room"]
        assert listed[told["state"]]["tier"] == tier
        assert told["tiers"][tier]["tokens"] == told["ignis_reuse"]["cached_tokens"]
        answer = await post(rig, CHAT, body)
        assert lacks_time(told["ignis_reuse"]) == lacks_time(answer["ignis_reuse"])
        assert told["recomputed_tokens"] == told["prompt_tokens"] - cached(answer)


async def test_an_explanation_names_the_floor_that_keeps_a_state_below() -> None:
    below = Below(num_cells=200, limits={"ram_floor_tokens": 100_000})
    async with live(below=below, num_slots=1) as rig:
        body = chat("first " * 30)
        await post(rig, CHAT, body)
        await fill(rig, 3)
        await until(lambda: quiet(rig))
        told = await post(rig, "/v1/reuse/explain", body)
        assert (told["why_not_more"], told["restore"]) == ("below_floor", None)
        there = told["tiers"]["kv_ram"]
        assert there["floor_tokens"] == 100_000
        (help_,) = (one for one in told["would_have_helped"] if "floor" in one["what"])
        assert (help_["flag"], help_["tokens"]) == ("--reuse-kv-ram-floor", there["tokens"])
        answer = await post(rig, CHAT, body)
        assert answer["ignis_reuse"]["miss_reason"] == "below_floor"


async def test_a_flush_leaves_nothing_in_any_tier_and_no_file(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    async with live(below=everywhere(root), num_slots=2) as rig:
        await spread(rig)
        before = (await listing(rig))["totals"]
        told = await post(rig, "/v1/reuse/flush", {})
        assert not any(told["kept"].values())
        freed = told["freed"]
        for tier in TIERS:
            assert freed["states_by_tier"][tier] == before["tiers"][tier]["states"] > 0
            assert freed["bytes_by_tier"][tier] == before["tiers"][tier]["bytes"]
        assert freed["bytes"] == sum(freed["bytes_by_tier"].values())
        assert not list(root.rglob("*.state*"))
        assert (await listing(rig))["states"] == []
        assert cached(await post(rig, CHAT, chat("first"))) == 0
    assert not len(Tiered(disk_bytes=1 << 20, root=root).shelf.index)


@pytest.mark.parametrize("tier", TIERS)
async def test_a_flush_of_one_tier_leaves_the_others(tmp_path: Path, tier: str) -> None:
    async with live(below=everywhere(tmp_path / "kv"), num_slots=2) as rig:
        await spread(rig)
        before = by_tier(await listing(rig))
        told = await post(rig, "/v1/reuse/flush", {"tier": tier})
        assert told["tier"] == tier
        after = by_tier(await listing(rig))
        for one in TIERS:
            assert len(after[one]) == (0 if one == tier else len(before[one])), one
        assert told["freed"]["states"] == len(before[tier])
        freed = {one: size for one, size in told["freed"]["bytes_by_tier"].items() if size}
        assert freed.keys() == {tier}
        assert bool(state_files(tmp_path)) == (tier != "kv_disk")


class SlowDisk(Disk):
    """Syncs when it is allowed to."""

    def __init__(self) -> None:
        self.may = threading.Event()

    def sync_data(self, fd: int) -> None:
        self.may.wait(10.0)
        super().sync_data(fd)


async def test_a_flush_says_what_a_file_that_is_being_written_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ignisd.http.retained._MOST_LOOKS", 3)
    disk, root = SlowDisk(), tmp_path / "kv"
    async with live(below=everywhere(root, disk=disk), num_slots=2) as rig:
        await post(rig, CHAT, chat("first"))
        await fill(rig, 5)
        world = rig.engine.world
        assert world.tiers is not None
        await until(lambda: bool(rig.engine.world.tiers and rig.engine.world.tiers.writing))
        told = await post(rig, "/v1/reuse/flush", {})
        kept = told["kept"]
        assert kept["states_in_use"] > 0
        assert kept["files_in_use"] > 0
        assert kept["file_bytes_in_use"] > 0
        assert (await listing(rig))["states"] == []
        disk.may.set()
        await until(lambda: quiet(rig))
        await until(lambda: not list(root.rglob("*.state*")))
        again = await post(rig, "/v1/reuse/flush", {})
        assert not any(again["kept"].values())


async def test_a_pin_keeps_a_state_and_shows_until_it_is_taken_back() -> None:
    async with live(below=Below(num_cells=60), num_slots=4) as rig:
        await post(rig, CHAT, chat("first"))
        (one, *_) = (await listing(rig))["states"]
        assert one["pinned"] is False
        told = await post(rig, "/v1/reuse/pin", {"id": one["id"]})
        assert (told["pinned"], told["state"]["rank"]) == (True, "pinned")
        assert told["pins"] == {
            "states": 1,
            "pages": one["tokens"] // 64,
            "most_states": 2,
            "most_pages": 99,
        }
        await fill(rig, 12)
        await until(lambda: quiet(rig))
        first = (await listing(rig))["states"][0]
        assert (first["id"], first["pinned"], first["tier"]) == (one["id"], True, "device")
        below = [each for each in (await listing(rig, "?tier=kv_ram"))["states"] if each["pinned"]]
        assert [each["tokens"] for each in below] == [one["tokens"]]
        told = await post(rig, "/v1/reuse/unpin", {"id": one["id"]})
        assert (told["pinned"], told["state"]["pinned"], told["pins"]["states"]) == (
            False,
            False,
            0,
        )
        assert not any(each["pinned"] for each in (await listing(rig))["states"])


async def test_half_of_the_slots_can_be_pinned_and_the_next_is_told_so() -> None:
    async with live(num_slots=4) as rig, rig.client() as client:
        await fill(rig, 4)
        ids = [one["id"] for one in (await listing(rig))["states"]]
        for each in ids[:2]:
            await post(rig, "/v1/reuse/pin", {"id": each})
        response = await client.post("/v1/reuse/pin", json={"id": ids[2]})
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (409, "pins_full", "id")
        assert "3 slots of device" in error["message"]
        assert "may take 2" in error["message"]
        told = (await listing(rig))["totals"]["tiers"]["device"]["pinned"]
        assert (told["states"], told["most_states"]) == (2, 2)


@pytest.mark.parametrize("route", ["pin", "unpin"])
async def test_pins_of_what_is_not_there_are_refused(route: str) -> None:
    async with live() as rig, rig.client() as client:
        for body, status, param in (
            ({"id": 99}, 404, "id"),
            ({"id": 10**30}, 404, "id"),
            ({"id": "1"}, 400, "id"),
            ({"id": True}, 400, "id"),
            ({}, 400, "id"),
            ([], 400, None),
        ):
            response = await client.post(f"/v1/reuse/{route}", json=body)
            told = (response.status_code, response.json()["error"]["param"])
            assert told == (status, param), body


async def test_a_pin_that_the_engine_does_not_come_to_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with live() as rig, rig.client() as client:
        never = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(rig.engine, "pin", lambda state_id, pinned: never)
        monkeypatch.setattr("ignisd.http.retained._TOLD_S", 0.02)
        response = await client.post("/v1/reuse/pin", json={"id": 1})
        assert response.status_code == 500
