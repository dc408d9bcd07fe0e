"""The end of the daemon, wherever it stands: bounded, and nobody is left waiting."""

import asyncio
from collections.abc import Callable

from tests.lifecycle.rig import Rig, plays, until
from tests.lifecycle.test_rest import rested
from tests.lifecycle.test_switch import refused

STOP_S = 10.0


async def stopped(rig: Rig, drain_s: float = 0.0) -> bool:
    """Stop the daemon; whether every thread has ended."""
    return await asyncio.wait_for(rig.lifecycle.stop(drain_s), STOP_S)


async def at(reached: Callable[[], object]) -> None:
    await until(reached)


@plays()
async def test_while_it_serves(rig: Rig) -> None:
    await rig.ask()
    assert await stopped(rig)
    assert rig.loader.events == ["load a", "close a"]
    refused(await rig.ask(), "draining")
    refused(await rig.switch("b"), "draining")


@plays()
async def test_while_requests_run_they_are_finished_or_cut_off(rig: Rig) -> None:
    rig.loader.rounds.shut()
    running = [rig.ask(max_tokens=40), rig.ask(max_tokens=2000, stream=True)]
    await at(rig.loader.rounds.reached.is_set)
    stopping = asyncio.create_task(stopped(rig, 0.3))
    await at(lambda: rig.service.phase == "draining")
    rig.loader.rounds.open()
    answers = [await each for each in running]
    assert await stopping
    assert answers[0].json["usage"]["completion_tokens"] == 40
    assert answers[1].text.endswith("[DONE]\n\n") or '"code":"draining"' in answers[1].text


@plays(start=False)
async def test_while_the_first_model_loads(rig: Rig) -> None:
    rig.loader.loading.shut()
    starting = asyncio.create_task(rig.lifecycle.start())
    await at(rig.loader.loading.reached.is_set)
    refused(await rig.ask(), "loading")
    refused(await rig.switch("a"), "loading")
    assert await rig.health() == (503, "loading")
    assert not await stopped(rig)
    starting.cancel()


@plays(switch_allow_implicit="on")
async def test_while_the_next_model_is_looked_at(rig: Rig) -> None:
    rig.loader.checking.shut()
    waiting = [rig.switch("b"), rig.ask("b")]
    await at(lambda: rig.loader.checking.reached.is_set() and rig.service.num_waiting == 2)
    assert (await rig.ask()).json["model"] == "a"
    assert not await stopped(rig)
    for each in waiting:
        refused(await each, "draining")
    assert rig.loader.events == ["load a", "close a"]


@plays()
async def test_while_requests_are_finished_for_a_switch(rig: Rig) -> None:
    rig.loader.rounds.shut()
    running = rig.ask(max_tokens=2000, stream=True)
    await at(rig.loader.rounds.reached.is_set)
    switching = rig.switch("b")
    await at(lambda: rig.service.phase == "switching")
    stopping = asyncio.create_task(stopped(rig, 0.05))
    refused(await switching, "draining")
    await asyncio.sleep(0.1)
    rig.loader.rounds.open()
    assert await stopping
    assert '"error"' in (await running).text
    assert rig.loader.events == ["load a", "close a"]


@plays()
async def test_while_the_old_model_is_given_back(rig: Rig) -> None:
    rig.loader.closing.shut()
    switching = rig.switch("b")
    await at(rig.loader.closing.reached.is_set)
    stopping = asyncio.create_task(stopped(rig))
    refused(await switching, "draining")
    rig.loader.closing.open()
    assert await stopping
    assert rig.loader.events == ["load a", "close a", "free"]


@plays()
async def test_while_the_next_model_loads(rig: Rig) -> None:
    rig.loader.loading.shut()
    switching = rig.switch("b")
    await at(lambda: rig.loader.events[-1] == "free" and rig.loader.loading.reached.is_set())
    assert not await stopped(rig), "the thread that loads cannot be ended"
    refused(await switching, "draining")
    assert await rig.health() == (503, "draining")


@plays()
async def test_while_unloaded(rig: Rig) -> None:
    await rested(rig)
    assert await stopped(rig)
    refused(await rig.ask(), "draining")
    assert rig.loader.events == ["load a", "close a", "free"]


@plays()
async def test_while_it_unloads_and_somebody_waits(rig: Rig) -> None:
    rig.loader.closing.shut()
    rig.live.change({"idle.unload-after": "0.01"})
    await at(rig.loader.closing.reached.is_set)
    waiting = rig.ask()
    await at(lambda: rig.service.num_waiting == 1)
    stopping = asyncio.create_task(stopped(rig))
    refused(await waiting, "draining")
    rig.loader.closing.open()
    assert await stopping
    assert rig.loader.events == ["load a", "close a", "free"]


@plays()
async def test_while_it_wakes(rig: Rig) -> None:
    await rested(rig)
    rig.loader.loading.shut()
    waiting = rig.ask()
    await at(rig.loader.loading.reached.is_set)
    assert not await stopped(rig)
    refused(await waiting, "draining")


@plays()
async def test_after_a_failure(rig: Rig) -> None:
    rig.loader.models[0].runner.breaks = True
    refused(await rig.ask(), "engine_error", 500)
    await at(rig.lifecycle.died.done)
    assert not await stopped(rig), "a device that failed is not waited for"
