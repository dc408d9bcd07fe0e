"""A daemon that gives its memory back while nobody asks, and serves again when somebody does."""

import asyncio
from collections.abc import Callable

from ignisd.errors import ConfigError
from ignisd.http.service import ServicePhase
from ignisd.notify import words_for
from ignisd.settings import Settings
from tests.lifecycle.rig import FakeModel, Rig, plays, until
from tests.lifecycle.test_switch import ROUTES, refused

SOON = "0.05"
LATER = "60"


async def rested(rig: Rig) -> None:
    """Wait until the model is unloaded."""
    rig.live.change({"idle.unload-after": SOON})
    await until(lambda: rig.service.phase == "unloaded")
    rig.live.change({"idle.unload-after": LATER})


@plays(idle_unload_after=SOON)
async def test_after_a_while_without_requests_the_memory_is_given_back(rig: Rig) -> None:
    assert (await rig.ask()).status == 200
    await until(lambda: rig.service.phase == "unloaded")
    assert rig.loader.events == ["load a", "close a", "free"]
    health = await rig.call("/health")
    assert (health.status, health.json) == (200, {"status": "unloaded", "model": "a"})
    assert await rig.statuses() == {"a": "unloaded", "b": "unloaded", "c": "unloaded"}
    assert await rig.metric("ignis_requests_submitted_total") == 1
    assert await rig.metric('ignis_model_unloads_total{reason="idle"}') == 1
    config = (await rig.call("/v1/config")).json
    assert (config["status"], config["memory"], config["exact"]) == ("unloaded", [], None)
    refused_calls = [await rig.call("/v1/reuse"), await rig.call("/v1/reuse/flush", {})]
    for answer in refused_calls:
        assert (answer.status, answer.code) == (503, "unloaded")
        assert answer.headers["x-should-retry"] == "false"
    assert rig.loader.events == ["load a", "close a", "free"], "something woke it"


@plays()
async def test_the_next_request_wakes_it_and_is_served_whichever_it_is(rig: Rig) -> None:
    for path, body in ROUTES.items():
        if path != "/v1/reuse/flush":
            await rested(rig)
            assert (await rig.call(path, body)).status == 200, path
    assert rig.loader.events == ["load a"] + ["close a", "free", "load a"] * 5
    assert (await rig.ask()).status == 200
    assert await rig.metric("ignis_requests_submitted_total") == 3


@plays(idle_unload_after="0.2")
async def test_a_request_that_runs_keeps_it_loaded(rig: Rig) -> None:
    rig.loader.rounds.shut()
    running = rig.ask(max_tokens=40)
    await asyncio.sleep(0.5)
    assert rig.service.phase == "ready"
    rig.loader.rounds.open()
    assert (await running).json["usage"]["completion_tokens"] == 40
    assert rig.loader.events == ["load a"]


@plays()
async def test_by_default_it_stays_loaded(rig: Rig) -> None:
    assert rig.live.settings.idle_unload_after is None
    rig.live.change({"idle.unload-after": SOON})
    await until(lambda: rig.service.phase == "unloaded")
    rig.live.change({"idle.unload-after": "off"})
    await rig.ask()
    await asyncio.sleep(0.2)
    assert rig.service.phase == "ready"


@plays()
async def test_requests_that_come_while_it_is_unloaded_wait_for_it_and_one_load(rig: Rig) -> None:
    rig.loader.closing.shut()
    rig.live.change({"idle.unload-after": SOON})
    await until(lambda: rig.loader.closing.reached.is_set())
    assert await rig.health() == (200, "unloading")
    early = rig.ask()
    await until(lambda: rig.service.num_waiting == 1)
    rig.loader.loading.shut()
    rig.loader.closing.open()
    await until(lambda: rig.service.phase == "waking" and rig.loader.loading.reached.is_set())
    rig.live.change({"idle.unload-after": LATER})
    late = [rig.ask(stream=True), rig.ask("a"), rig.switch("a")]
    await until(lambda: rig.service.num_waiting == 4)
    health = await rig.call("/health")
    assert (health.status, health.json["status"]) == (200, "waking")
    assert (await rig.statuses())["a"] == "loading"
    rig.loader.loading.open()
    assert [(await each).status for each in (early, *late)] == [200] * 4
    assert rig.loader.events == ["load a", "close a", "free", "load a"]


@plays()
async def test_a_wrong_request_for_another_model_wakes_nothing(rig: Rig) -> None:
    await rested(rig)
    refused(await rig.ask("e"), "model_not_found", 404)
    refused(await rig.ask("b"), "model_not_found", 404)
    refused(await rig.call("/v1/completions", {"model": 7}), "invalid_value", 400)
    assert rig.service.phase == "unloaded"


@plays(switch_allow_implicit="on")
async def test_another_model_is_loaded_without_the_one_that_was_unloaded(rig: Rig) -> None:
    await rested(rig)
    assert (await rig.ask("b")).json["model"] == "b"
    assert rig.loader.events == ["load a", "close a", "free", "load b"]
    await rested(rig)
    rig.loader.broken["c"] = ConfigError("torn")
    refused(await rig.switch("c"), "model_load_failed", 500)
    assert rig.service.phase == "unloaded"
    assert (await rig.ask()).json["model"] == "b"


@plays()
async def test_a_model_that_does_not_wake_is_told_and_tried_again(rig: Rig) -> None:
    await rested(rig)
    rig.loader.broken["a"] = ConfigError("torn")
    answers = await asyncio.gather(rig.ask(), rig.ask(stream=True))
    for answer in answers:
        refused(answer, "model_load_failed", 500)
    assert await rig.health() == (200, "unloaded")
    rig.loader.broken.clear()
    assert (await rig.ask()).status == 200


@plays()
async def test_a_setting_that_cannot_be_had_keeps_nobody_waiting(rig: Rig) -> None:
    """It stays pending, and what served before serves again."""
    real = rig.loader.load

    def load(settings: Settings, report: Callable[[float], None]) -> FakeModel:
        if settings.model_max_context:
            raise ConfigError("so much does not fit")
        return real(settings, report)

    await rested(rig)
    rig.live.change({"model.max-context": 1_000_000})
    rig.loader.load = load  # type: ignore[method-assign]
    assert (await rig.ask()).status == 200
    assert dict(rig.live.pending) == {"model.max-context": 1_000_000}
    assert rig.live.settings.model_max_context is None


@plays()
async def test_who_leaves_while_waiting_leaves_nothing_behind(rig: Rig) -> None:
    await rested(rig)
    rig.loader.loading.shut()
    leave = asyncio.Event()
    waiting = [rig.ask(leave=leave, stream=flag) for flag in (True, False)]
    await until(lambda: rig.service.num_waiting == 2)
    leave.set()
    assert [(await each).status for each in waiting] == [499, 499]
    assert rig.service.num_waiting == 0
    rig.loader.loading.open()
    await until(lambda: rig.service.phase == "ready")
    assert rig.is_clean()
    assert await rig.metric("ignis_requests_submitted_total") == 0


@plays()
async def test_who_leaves_as_the_model_comes_leaves_nothing_behind(rig: Rig) -> None:
    for _ in range(5):
        await rested(rig)
        leave = asyncio.Event()
        waiting = [rig.ask(leave=leave) for _ in range(4)]
        await until(lambda: rig.service.phase == "ready")
        leave.set()
        await asyncio.gather(*waiting)
        await until(rig.is_clean)


@plays(switch_wait_timeout="0.05")
async def test_a_wait_has_an_end(rig: Rig) -> None:
    await rested(rig)
    rig.loader.loading.shut()
    refused(await rig.ask(), "loading")
    rig.loader.loading.open()
    await until(lambda: rig.service.phase == "ready")
    assert (await rig.ask()).status == 200


@plays()
async def test_the_service_manager_hears_of_it_and_the_watchdog_is_fed(rig: Rig) -> None:
    def words(stalled_s: float = 0.0) -> tuple[str, ...]:
        return words_for(rig.service, round_limit_ms=1000.0, stalled_s=stalled_s)

    await rested(rig)
    assert words(1e9) == ("STATUS=unloaded a, until a request comes", "WATCHDOG=1")
    rig.loader.loading.shut()
    asked = rig.ask()
    await until(lambda: rig.loader.loading.reached.is_set())
    await until(lambda: rig.service.progress == 0.5)
    assert words() == ("STATUS=loading a, 50%", "WATCHDOG=1")
    assert words(901.0) == ("STATUS=loading a, 50%",)
    rig.loader.loading.open()
    await asked
    rig.loader.rounds.shut()
    running = rig.ask()
    await until(lambda: rig.service.engine and rig.service.engine.world.running)
    switching = rig.switch("b")
    await until(lambda: rig.service.phase is ServicePhase.SWITCHING)
    status, fed = words()
    assert status.startswith("STATUS=switching a to b: 1 running, 0 waiting")
    assert fed == "WATCHDOG=1"
    rig.loader.rounds.open()
    await asyncio.gather(running, switching)
