"""What the control plane tells of retained states, over an engine that really keeps some."""

import asyncio

import pytest

from ignisd.http import retained
from ignisd.http.keys import KeyRing, owner_of
from ignisd.http.options import HttpOptions
from ignisd.http.salts import chain_salt
from tests.http.live import NUM_PAGES, cached, chat, listing, live, post
from tests.http.rig import CHAT, make_rig, until


async def test_an_empty_server_keeps_nothing():
    async with live() as rig:
        told = await listing(rig)
    assert (told["states"], told["omitted"], told["on"]) == ([], 0, True)
    totals = told["totals"]
    assert totals["pages"] == {"total": NUM_PAGES - 1, "free": NUM_PAGES - 1}
    assert totals["slots"] == {
        "total": 8,
        "used": 0,
        "device": {"total": 1, "used": 0},
        "host": {"total": 7, "used": 0},
    }


async def test_states_are_told_with_size_rank_and_use():
    async with live() as rig:
        first = await post(rig, CHAT, chat("one"))
        second = await post(rig, CHAT, chat("two", **{"class": "agent"}))
        assert 0 == cached(first) < cached(second)
        told = await listing(rig)
        states = {state["kind"]: state for state in told["states"]}
        prefix = states["prefix"]
        pages = prefix["tokens"] // 64
        assert prefix["tokens"] == cached(second)
        assert prefix["bytes"] == pages * 1000 + 7
        assert (prefix["hits"], prefix["rank"], prefix["tier"]) == (1, "prefix", "device")
        assert (prefix["slot"], prefix["class"]) == ("device", "interactive")
        assert prefix["age_s"] > prefix["idle_s"] > 0
        # What gives way last comes first.
        assert told["states"][0] == prefix
        world = rig.engine.world
        listed = {page for held in world.index for page in held.table}
        totals = told["totals"]
        assert totals["states"] == len(told["states"]) == len(world.index)
        assert totals["tiers"]["device"]["bytes"] == len(listed) * 1000 + len(world.index) * 7
        assert totals["tokens"] == sum(state["tokens"] for state in told["states"])
        assert totals["pages"]["free"] == NUM_PAGES - 1 - len(listed)
        assert totals["slots"]["used"] == len(world.index)
        assert "Rules" not in str(told)


async def test_a_long_list_is_cut_and_says_so():
    async with live() as rig:
        for text in ("one", "two " * 40, "three " * 60):
            await post(rig, CHAT, chat(text))
        whole = await listing(rig)
        part = await listing(rig, "?limit=1")
        assert len(whole["states"]) > 1
        assert [state["id"] for state in part["states"]] == [whole["states"][0]["id"]]
        assert part["omitted"] == len(whole["states"]) - 1
        assert part["totals"] == whole["totals"]


@pytest.mark.parametrize("limit", ["0", "-1", "x", "10001", "9" * 400, "٣"])
async def test_a_limit_out_of_range_is_refused(limit):
    rig = make_rig()
    async with rig.client() as client:
        response = await client.get("/v1/reuse", params={"limit": limit})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "limit"


@pytest.mark.parametrize(
    "body", [chat("one"), chat("other"), chat("one", reuse=False), chat("one", cache_salt="s")]
)
async def test_an_explanation_says_what_the_completion_then_gets(body):
    async with live() as rig:
        await post(rig, CHAT, chat("one"))
        await post(rig, CHAT, chat("one"))
        before = await listing(rig)
        explained = await post(rig, "/v1/reuse/explain", body)
        told_again = await post(rig, "/v1/reuse/explain", body)
        # Asking changes nothing: no hit, no use, no state.
        assert explained == told_again
        after = await listing(rig)
        assert [each["hits"] for each in before["states"]] == [
            each["hits"] for each in after["states"]
        ]
        kept = {(state["tokens"], state["kind"]) for state in after["states"]}
        answer = await post(rig, CHAT, body)
        assert explained["ignis_reuse"] == answer["ignis_reuse"]
        assert explained["prompt_tokens"] == answer["usage"]["prompt_tokens"]
        assert explained["recomputed_tokens"] == explained["prompt_tokens"] - cached(answer)
        states = (await listing(rig))["states"]
        new = {(state["tokens"], state["kind"]) for state in states} - kept
        promised = {(each["tokens"], each["kind"]) for each in explained["would_keep"]}
        assert new <= promised
        if body.get("cache_salt"):
            assert promised
        assert explained["state"] is None or explained["state"] in [s["id"] for s in states]


async def test_an_explanation_names_why_there_is_no_more():
    async with live() as rig:
        await post(rig, CHAT, chat("one"))
        hit = await post(rig, "/v1/reuse/explain", chat("two"))
        assert hit["state"] is not None
        miss = await post(rig, "/v1/reuse/explain", chat("two", reuse=False))
        assert (miss["why_not_more"], miss["would_keep"]) == ("reuse_off", [])
        other = [{"role": "user", "content": "z" * 200}]
        miss = await post(rig, "/v1/reuse/explain", {"messages": other})
        assert miss["ignis_reuse"]["miss_reason"] == miss["why_not_more"] == "diverged"
        assert miss["ignis_reuse"]["diverged_at"]["segment"] == "message 0"
        short = await post(rig, "/v1/reuse/explain", {"prompt": "x"})
        assert (short["why_not_more"], short["prompt_tokens"]) == ("too_short", 1)


async def test_a_server_without_reuse_says_so():
    async with live(reuse=False) as rig:
        await post(rig, CHAT, chat("one"))
        explained = await post(rig, "/v1/reuse/explain", chat("one"))
        assert explained["why_not_more"] == "reuse_off"
        assert (await listing(rig))["on"] is False


async def test_a_flush_gives_up_everything_and_says_what_that_was():
    async with live() as rig:
        await post(rig, CHAT, chat("one"))
        await post(rig, CHAT, chat("two" * 30))
        totals = (await listing(rig))["totals"]
        assert totals["states"] > 1
        told = await post(rig, "/v1/reuse/flush", {})
        assert told["freed"]["states"] == totals["states"]
        assert told["freed"]["bytes"] == totals["tiers"]["device"]["bytes"]
        assert told["freed"]["bytes_by_tier"] == {"device": told["freed"]["bytes"]}
        assert not any(told["kept"].values())
        assert (await listing(rig))["totals"]["states"] == 0
        assert cached(await post(rig, CHAT, chat("one"))) == 0
        again = await post(rig, "/v1/reuse/flush", {})
        assert again["freed"]["states"] > 0


async def test_a_flush_in_traffic_says_what_it_could_not_free():
    async with live() as rig, rig.client() as client:
        await post(rig, CHAT, chat("one"))
        running = asyncio.create_task(client.post(CHAT, json=chat("one", max_tokens=3000)))
        await until(lambda: rig.engine.stats().num_decoding)
        told = await post(rig, "/v1/reuse/flush", {})
        assert told["kept"]["pages_in_use"] > 0
        assert told["freed"]["states"] > 0
        assert told["freed"]["pages"] < NUM_PAGES
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_flush_that_the_engine_does_not_come_to_is_an_error(monkeypatch):
    rig = make_rig()
    monkeypatch.setattr(
        rig.engine, "flush", lambda tier: asyncio.get_running_loop().create_future()
    )
    monkeypatch.setattr(retained, "_TOLD_S", 0.02)
    async with rig.client() as client:
        response = await client.post("/v1/reuse/flush")
    assert response.status_code == 500
    assert "did not flush" in response.json()["error"]["message"]


async def test_a_salt_keeps_prompts_apart():
    async with live() as rig:
        for salt in (None, "a", "b", "a\0", ""):
            fields = {} if salt is None else {"cache_salt": salt}
            assert cached(await post(rig, CHAT, chat("one", **fields))) == 0, salt
            assert cached(await post(rig, CHAT, chat("one", **fields))) > 0, salt


@pytest.mark.parametrize("scoped", [False, True])
async def test_keys_share_prompts_unless_they_are_kept_apart(scoped):
    async with live(HttpOptions(keys=KeyRing(("k1", "k2")), scoped=scoped)) as rig:
        assert cached(await post(rig, CHAT, chat("one"), "k1")) == 0
        assert cached(await post(rig, CHAT, chat("one"), "k1")) > 0
        explained = await post(rig, "/v1/reuse/explain", chat("one"), "k2")
        assert (explained["ignis_reuse"]["cached_tokens"] == 0) == scoped
        assert (cached(await post(rig, CHAT, chat("one"), "k2")) == 0) == scoped
        plain = {"prompt": "x" * 200, "max_tokens": 1}
        assert cached(await post(rig, "/v1/completions", plain, "k1")) == 0
        assert (cached(await post(rig, "/v1/completions", plain, "k2")) == 0) == scoped


def test_no_salt_passes_for_the_scope_of_a_key():
    """Every scope, salt, and salt within a scope is another one, whatever the client sends."""
    owner = owner_of(b"k1")
    salts = [None, "", "k1", "key:", "salt:", f"key:{owner.hex()}", "salt:key:", "salt"]
    made = [chain_salt(salt, key) for salt in salts for key in (None, b"k1", b"k2", b"")]
    assert len(set(made)) == len(made)
    # A client's bytes always stand behind a tag, and a scope has one length.
    assert all(chain_salt(salt, None).startswith(b"salt:") for salt in salts[1:])
    assert chain_salt(None, None) == b""
    assert len({len(chain_salt(None, key)) for key in (b"", b"k", b"k" * 500)}) == 1
    assert b"k1" not in chain_salt(None, b"k1")
