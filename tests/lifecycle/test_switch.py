"""Switching from one model to another while requests come and go."""

import asyncio
import threading
from typing import Any
from unittest.mock import patch

import pytest

from ignisd.errors import ConfigError
from ignisd.http import intake
from tests.lifecycle.rig import CHAT, USER, Answer, Rig, plays, until

ROUTES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER], "max_tokens": 3},
    "/v1/completions": {"prompt": "hello", "max_tokens": 3},
    "/v1/tokenize": {"prompt": "hello"},
    "/v1/detokenize": {"tokens": [104]},
    "/v1/reuse/explain": {"prompt": "hello"},
    "/v1/reuse/flush": {},
}


def refused(answer: Answer, code: str, status: int = 503) -> None:
    assert (answer.status, answer.code) == (status, code), answer.text
    assert ("retry-after" in answer.headers) is (status == 503)
    if status == 503:
        assert int(answer.headers["retry-after"]) >= 1


@plays()
async def test_all_known_models_are_listed_and_one_serves(rig: Rig) -> None:
    (rig.folder / "no-model").mkdir()
    (rig.folder / ".hidden").mkdir()
    (rig.folder / ".hidden" / "config.json").touch()
    assert await rig.statuses() == {"a": "serving", "b": "unloaded", "c": "unloaded"}
    (rig.folder / "d").mkdir()
    (rig.folder / "d" / "config.json").touch()
    assert list(await rig.statuses()) == ["a", "b", "c", "d"]
    listed = (await rig.call("/v1/models")).json["data"]
    assert [each["max_model_len"] for each in listed] == [4096, None, None, None]
    assert (await rig.call("/v1/models/b")).json["status"] == "unloaded"
    unknown = await rig.call("/v1/models/e")
    refused(unknown, "model_not_found", 404)
    assert "'a', 'b', 'c', 'd'" in unknown.json["error"]["message"]


@plays()
async def test_a_switch_gives_back_the_old_model_and_loads_the_new(rig: Rig) -> None:
    assert (await rig.ask()).json["model"] == "a"
    answer = await rig.switch("b")
    assert answer.status == 200
    told = answer.json
    assert (told["model"], told["previous"], told["switched"]) == ("b", "a", True)
    assert rig.loader.events == ["load a", "close a", "free", "load b"]
    assert await rig.statuses() == {"b": "serving", "a": "unloaded", "c": "unloaded"}
    assert (await rig.ask()).json["model"] == "b"
    assert (await rig.ask("b@agent")).status == 200
    refused(await rig.ask("a"), "model_not_found", 404)
    assert await rig.health() == (200, "ready")
    config = (await rig.call("/v1/config")).json
    assert config["model"] == "b"
    assert config["settings"]["model.name"]["where"] == "POST /v1/models/switch"
    listed = (await rig.call("/v1/models")).json["data"]
    assert [each["max_model_len"] for each in listed] == [4096, 4096, None]


@plays()
async def test_totals_go_on_over_a_switch(rig: Rig) -> None:
    await rig.ask()
    await rig.switch("b")
    await rig.ask()
    assert await rig.metric("ignis_requests_submitted_total") == 2
    assert await rig.metric('ignis_requests_finished_total{reason="length"}') == 2
    assert await rig.metric('ignis_model_loads_total{outcome="loaded"}') == 2
    assert await rig.metric('ignis_model_unloads_total{reason="switch"}') == 1


@plays()
async def test_a_switch_to_what_serves_does_nothing(rig: Rig) -> None:
    answer = await rig.switch("a")
    assert answer.status == 200
    assert answer.json["switched"] is False
    assert rig.loader.events == ["load a"]


@plays()
async def test_what_no_switch_can_mean_is_refused_and_told(rig: Rig) -> None:
    for name in ("e", "../a", str(rig.folder / "b"), ""):
        answer = await rig.switch(name)
        refused(answer, "model_not_found", 404)
        assert "'a', 'b', 'c'" in answer.json["error"]["message"]
    bodies: tuple[object, ...] = ({}, {"model": 5}, [], None)
    for body in bodies:
        answer = await rig.call("/v1/models/switch", body, method="POST")
        refused(answer, "invalid_value", 400)
    assert rig.loader.events == ["load a"]


@plays()
async def test_what_cannot_be_loaded_is_refused_before_anything_is_given_up(rig: Rig) -> None:
    rig.loader.rounds.shut()
    running = rig.ask(max_tokens=40)
    await until(lambda: rig.loader.rounds.reached.is_set())
    path = rig.folder / "b" / "model.safetensors"
    rig.loader.unfit["b"] = f"--vram-budget-bytes 1G is too little for {path}: it wants 2G"
    answer = await rig.switch("b")
    refused(answer, "model_load_failed", 500)
    message = answer.json["error"]["message"]
    assert "--vram-budget-bytes 1G is too little for model.safetensors" in message
    assert "'a' is served on" in message
    assert str(rig.folder) not in message
    assert answer.headers["x-should-retry"] == "false"
    rig.loader.rounds.open()
    assert (await running).json["usage"]["completion_tokens"] == 40
    assert rig.loader.events == ["load a"]
    assert await rig.metric('ignis_model_loads_total{outcome="refused"}') == 1
    del rig.loader.unfit["b"]
    assert (await rig.switch("b")).status == 200


@pytest.mark.parametrize("error", [ConfigError("the weights are torn"), MemoryError("no room")])
def test_after_a_load_that_fails_the_old_model_serves_again(error: Exception) -> None:
    @plays(switch_allow_implicit="on")
    async def story(rig: Rig) -> None:
        rig.loader.broken["b"] = error
        answer = await rig.switch("b")
        refused(answer, "model_load_failed", 500)
        why = "the weights are torn" if isinstance(error, ConfigError) else "MemoryError"
        assert why in answer.json["error"]["message"]
        assert "'a' is served on" in answer.json["error"]["message"]
        assert rig.loader.events == ["load a", "close a", "free", "fail b", "load a"]
        assert (await rig.ask()).json["model"] == "a"
        assert (await rig.statuses())["b"] == "failed"
        assert why in (await rig.call("/v1/models/b")).json["error"]
        # A request does not try it again, an operator does.
        refused(await rig.ask("b"), "model_load_failed", 500)
        assert len(rig.loader.events) == 5
        rig.loader.broken.clear()
        assert (await rig.switch("b")).status == 200
        assert (await rig.statuses())["b"] == "serving"
        assert (await rig.ask("a")).json["model"] == "a"
        assert (await rig.statuses())["b"] == "unloaded"

    story()


@plays()
async def test_meanwhile_every_route_for_answers_says_so_and_when_to_come_back(rig: Rig) -> None:
    rig.loader.loading.shut()
    switching = rig.switch("b")
    await until(lambda: rig.loader.events[-1] == "free" and rig.loader.loading.reached.is_set())
    for path, body in ROUTES.items():
        refused(await rig.call(path, body), "model_switching")
    refused(await rig.call("/v1/reuse"), "model_switching")
    health = await rig.call("/health")
    assert health.status == 503
    assert health.json == {
        "status": "switching",
        "stage": "loading",
        "model": "a",
        "target": "b",
        "progress": 0.5,
    }
    assert await rig.statuses() == {"a": "switching", "b": "loading", "c": "unloaded"}
    assert (await rig.call("/v1/config")).json["status"] == "switching"
    assert await rig.metric('ignis_phase{phase="switching"}') == 1
    rig.loader.loading.open()
    assert (await switching).status == 200
    assert await rig.metric('ignis_requests_refused_total{reason="model_switching"}') == 7


@plays(switch_allow_implicit="on")
async def test_one_switch_at_a_time_who_wants_the_same_joins(rig: Rig) -> None:
    rig.loader.loading.shut()
    first, second = rig.switch("b"), rig.switch("b")
    await until(lambda: rig.loader.loading.reached.is_set() and rig.service.target == "b")
    named = [rig.ask("b"), rig.ask("b", stream=True)]
    other = await rig.switch("c")
    refused(other, "model_switching")
    assert "'b'" in other.json["error"]["message"]
    refused(await rig.switch("a"), "model_switching")
    for name in ("a", "c", None):
        refused(await rig.ask(name), "model_switching")
    refused(await rig.ask("e"), "model_not_found", 404)
    await until(lambda: rig.service.num_waiting == 4)
    rig.loader.loading.open()
    assert [(await each).status for each in (first, second)] == [200, 200]
    plain, streamed = [await each for each in named]
    assert plain.json["model"] == "b"
    assert '"model":"b"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert rig.loader.events == ["load a", "close a", "free", "load b"]


@plays(switch_allow_implicit="on")
async def test_a_request_that_names_another_model_is_answered_by_it(rig: Rig) -> None:
    answer = await rig.ask("c@agent")
    assert (answer.status, answer.json["model"]) == (200, "c")
    tokens = await rig.call("/v1/tokenize", {"prompt": "hello", "model": "b"})
    assert tokens.status == 200
    assert rig.service.name == "b"
    refused(await rig.ask("e"), "model_not_found", 404)
    assert (await rig.ask()).json["model"] == "b"


@plays()
async def test_without_leave_to_switch_a_request_is_told_how_to(rig: Rig) -> None:
    answer = await rig.ask("b")
    refused(answer, "model_not_found", 404)
    message = answer.json["error"]["message"]
    assert "'b' is not loaded, 'a' is" in message
    assert "/v1/models/switch" in message
    assert "--switch-allow-implicit" in message
    assert rig.loader.events == ["load a"]
    rig.live.change({"switch.allow-implicit": True})
    assert (await rig.ask("b")).json["model"] == "b"


@plays()
async def test_what_runs_is_finished_before_the_switch(rig: Rig) -> None:
    rig.loader.rounds.shut()
    running = rig.ask(max_tokens=40)
    await until(lambda: rig.loader.rounds.reached.is_set())
    switching = rig.switch("b")
    await until(lambda: rig.service.phase == "switching")
    assert (await rig.call("/health")).json["stage"] == "draining"
    rig.loader.rounds.open()
    answer = await running
    assert (answer.json["model"], answer.json["usage"]["completion_tokens"]) == ("a", 40)
    assert (await switching).status == 200
    assert await rig.metric('ignis_requests_cut_total{reason="model_switching"}') == 0


@plays(switch_drain_timeout="0.05")
async def test_what_is_left_then_is_cut_off_with_an_error_and_counted(rig: Rig) -> None:
    running = [rig.ask(max_tokens=2000, stream=True), rig.ask(max_tokens=2000)]
    await until(lambda: rig.service.engine and len(rig.service.engine.world.running) == 2)
    rig.loader.rounds.shut()
    switching = rig.switch("b")
    await until(lambda: rig.service.phase == "switching")
    await asyncio.sleep(0.1)
    rig.loader.rounds.open()
    streamed, plain = [await each for each in running]
    assert streamed.status == 200
    assert '"code":"model_switching"' in streamed.text.rstrip().split("\n\n")[-1]
    assert "[DONE]" not in streamed.text
    refused(plain, "model_switching")
    assert "--switch-drain-timeout" in plain.json["error"]["message"]
    assert (await switching).status == 200
    assert await rig.metric('ignis_requests_cut_total{reason="model_switching"}') == 2
    assert (await rig.ask()).json["model"] == "b"


@plays()
async def test_what_is_prepared_for_a_model_does_not_reach_another(rig: Rig) -> None:
    """A request that is being read when the switch begins is finished by the model it was for."""
    began, go = threading.Event(), threading.Event()
    real = intake._prepare_chat

    def slowly(*arguments: Any) -> Any:
        prepared = real(*arguments)
        began.set()
        assert go.wait(10)
        return prepared

    with patch.object(intake, "_prepare_chat", slowly):
        early = rig.ask()
        await until(began.is_set)
        switching = rig.switch("b")
        await until(lambda: rig.service.phase == "switching")
        await asyncio.sleep(0.05)
        assert rig.loader.events == ["load a"]
        go.set()
        assert (await early).json["model"] == "a"
        assert (await switching).status == 200


@plays(switch_drain_timeout="0.02")
async def test_what_is_read_for_too_long_is_refused_and_not_taken_by_another(rig: Rig) -> None:
    began, go = threading.Event(), threading.Event()
    real = intake._prepare_chat

    def slowly(*arguments: Any) -> Any:
        began.set()
        assert go.wait(10)
        return real(*arguments)

    with patch.object(intake, "_prepare_chat", slowly):
        early = rig.ask()
        await until(began.is_set)
        assert (await rig.switch("b")).status == 200
        go.set()
        refused(await early, "model_switching")
    assert rig.is_clean()


@plays(switch_allow_implicit="on", switch_wait_timeout="0.05")
async def test_nobody_waits_for_ever(rig: Rig) -> None:
    rig.loader.loading.shut()
    refused(await rig.ask("b"), "loading")
    rig.loader.loading.open()
    await until(lambda: rig.service.phase == "ready")
    assert rig.is_clean()


@plays()
async def test_settings_that_wait_for_a_load_come_into_force_with_it(rig: Rig) -> None:
    rig.live.change({"model.max-context": 2048})
    rig.loader.broken["b"] = ConfigError("2048 is too much")
    refused(await rig.switch("b"), "model_load_failed", 500)
    assert [model.settings.model_max_context for model in rig.loader.models] == [None, None]
    assert dict(rig.live.pending) == {"model.max-context": 2048}
    assert (await rig.switch("c")).status == 200
    assert rig.loader.models[-1].settings.model_max_context == 2048
    assert rig.live.settings.model_max_context == 2048
    assert not rig.live.pending


@plays(switch_allow_implicit="on")
async def test_what_follows_while_serving_follows_in_the_next_model_too(rig: Rig) -> None:
    await rig.ask("b")
    rig.live.change({"server.queue": 7, "model.decode-share": 50})
    await rig.ask()
    assert await rig.metric("ignis_queue_limit") == 7
    await rig.ask("c")
    assert await rig.metric("ignis_queue_limit") == 7
    assert rig.service.engine is not None
    assert rig.service.engine.world.limits.decode_share == 50


@plays()
async def test_a_device_that_breaks_while_requests_are_finished_ends_the_process(rig: Rig) -> None:
    rig.loader.rounds.shut()
    running = rig.ask(max_tokens=40)
    await until(lambda: rig.loader.rounds.reached.is_set())
    switching = rig.switch("b")
    await until(lambda: rig.service.phase == "switching")
    rig.loader.models[0].runner.breaks = True
    rig.loader.rounds.open()
    refused(await running, "engine_error", 500)
    error = await asyncio.wait_for(asyncio.shield(rig.lifecycle.died), 5)
    assert isinstance(error, AssertionError)
    rig.service.set_failed("the engine has died")
    assert (await switching).status in (500, 503)
    assert rig.loader.events == ["load a"]


@plays()
async def test_a_model_that_cannot_be_given_back_ends_the_process(rig: Rig) -> None:
    rig.loader.stuck = True
    switching = rig.switch("b")
    error = await asyncio.wait_for(asyncio.shield(rig.lifecycle.died), 5)
    assert "kv_disk" in str(error)
    rig.service.set_failed("it hangs")
    refused(await switching, "engine_error", 500)


@plays()
async def test_neither_model_loads_and_the_process_ends(rig: Rig) -> None:
    rig.loader.broken = {name: ConfigError("torn") for name in ("a", "b")}
    switching = rig.switch("b")
    error = await asyncio.wait_for(asyncio.shield(rig.lifecycle.died), 5)
    assert "a does not load again" in str(error)
    rig.service.set_failed("no model is left")
    refused(await switching, "engine_error", 500)
