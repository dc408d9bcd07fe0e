import asyncio

import pytest
from starlette.routing import Route

from ignisd.engine.types import FinishReason
from ignisd.http.keys import KeyRing
from ignisd.http.options import HttpOptions
from tests.fakes import Script
from tests.http.rig import CHAT, ask, events_of, make_rig, until


async def send(rig, method="POST", path=CHAT, **kwargs):
    async with rig.client() as client:
        return await client.request(method, path, **kwargs)


def check(response, status, code, *, retry=False):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["message"]
    assert "Traceback" not in response.text
    if retry:
        assert int(response.headers["retry-after"]) >= 1
    else:
        assert response.headers["x-should-retry"] == "false"
    return error


async def test_unknown_routes_and_methods():
    rig = make_rig()
    check(await send(rig, "GET", "/nowhere"), 404, "route_not_found")
    check(await send(rig, "POST", CHAT + "/", json=ask()), 404, "route_not_found")
    response = await send(rig, "GET")
    check(response, 405, "method_not_allowed")
    assert "POST" in response.headers["allow"]
    check(await send(rig, "DELETE", "/health"), 405, "method_not_allowed")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"nonsense"])
async def test_a_body_that_is_no_json_object(content):
    check(await send(make_rig(), content=content), 400, "invalid_value")


async def test_a_wrong_field_is_a_400_that_names_it():
    error = check(await send(make_rig(), json=ask(temperature=9)), 400, "invalid_value")
    assert error["param"] == "temperature"
    assert error["type"] == "invalid_request_error"
    error = check(await send(make_rig(), json=ask(logprobs=True)), 400, "unsupported_value")
    assert error["param"] == "logprobs"
    error = check(await send(make_rig(), json={"model": "toy"}), 400, "invalid_value")
    assert error["param"] == "messages"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_wrong_request_fails_before_any_event(streamed):
    rig = make_rig()
    response = await send(rig, json=ask(top_p=7, stream=streamed))
    assert response.headers["content-type"] == "application/json"
    check(response, 400, "invalid_value")
    assert rig.engine.requests == []


@pytest.mark.parametrize("declared", ["text/plain", "multipart/form-data; boundary=x"])
async def test_other_media_types(declared):
    headers = {"content-type": declared}
    response = await send(make_rig(), content=b"{}", headers=headers)
    check(response, 415, "unsupported_media_type")


async def test_json_by_other_names_is_taken():
    rig = make_rig()
    body = b'{"messages":[{"role":"user","content":"x"}]}'
    for declared in ("application/json; charset=utf-8", "application/vnd.api+json"):
        assert (await send(rig, content=body, headers={"content-type": declared})).is_success
    assert (await send(rig, content=body)).is_success


async def test_encoded_bodies_are_not_taken():
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = await send(make_rig(), content=b"\x1f\x8b", headers=headers)
    check(response, 415, "unsupported_media_type")


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_the_limit_is_refused_unparsed(announced):
    rig = make_rig(options=HttpOptions(max_body_bytes=1000))
    body = b'{"messages":[{"role":"user","content":"%s"}]}' % (b"x" * 1000)

    async def pieces():
        for at in range(0, len(body), 100):
            yield body[at : at + 100]

    content = body if announced else pieces()
    error = check(await send(rig, content=content), 413, "body_too_large")
    assert "1000" in error["message"]
    assert rig.engine.requests == []


async def test_a_body_of_exactly_the_limit_is_taken():
    body = b'{"messages":[{"role":"user","content":"x"}]}'
    rig = make_rig(options=HttpOptions(max_body_bytes=len(body)))
    assert (await send(rig, content=body)).is_success


async def test_a_body_that_does_not_arrive_is_given_up():
    rig = make_rig(options=HttpOptions(body_timeout_s=0.05))

    async def pieces():
        yield b'{"messages":'
        await asyncio.sleep(0.5)
        yield b"[]}"

    response = await send(rig, content=pieces())
    assert response.status_code == 408
    assert response.json()["error"]["code"] == "body_timeout"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_full_queue_is_429_with_retry_after(streamed):
    rig = make_rig(Script(silent=True), limit=1)
    async with rig.client() as client:
        waiting = asyncio.create_task(client.post(CHAT, json=ask()))
        await until(lambda: rig.engine.requests)
        response = await client.post(CHAT, json=ask(stream=streamed))
        error = check(response, 429, "queue_full", retry=True)
        assert "--server-queue" in error["message"]
        rig.engine.fail("over")
        await waiting
    assert len(rig.engine.requests) == 1


async def test_a_flood_of_prompts_to_render_is_bounded():
    rig = make_rig(options=HttpOptions(num_workers=1, max_preparing=3))
    async with rig.client() as client:
        slow = ask(messages=[{"role": "user", "content": "word " * 500}])
        answers = await asyncio.gather(*(client.post(CHAT, json=slow) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200, 429}
        assert (await client.post(CHAT, json=ask())).is_success


async def test_while_loading_and_draining_requests_get_503():
    rig = make_rig(ready=False)
    rig.service.report_progress(0.42)
    error = check(await send(rig, json=ask()), 503, "loading", retry=True)
    assert "42%" in error["message"]
    rig.service.set_ready(rig.engine, rig.model)
    assert (await send(rig, json=ask())).is_success
    rig.service.set_draining()
    check(await send(rig, json=ask()), 503, "draining", retry=True)
    rig.service.set_failed("it broke")
    check(await send(rig, json=ask()), 500, "engine_error")


async def test_an_engine_that_drains_by_itself_is_503():
    rig = make_rig(draining=True)
    check(await send(rig, json=ask(stream=True)), 503, "draining", retry=True)


async def test_an_engine_error_before_the_first_token_has_its_status():
    rig = make_rig(Script(silent=True))
    async with rig.client() as client:
        answers = [
            asyncio.create_task(client.post(CHAT, json=ask(stream=streamed)))
            for streamed in (False, True)
        ]
        await until(lambda: len(rig.engine.requests) == 2)
        rig.engine.fail("the device is gone")
        for answer in answers:
            error = check(await answer, 500, "engine_error")
            assert error["message"] == "the device is gone."
            assert error["type"] == "server_error"


async def test_an_engine_error_after_the_first_byte_is_the_last_event():
    rig = make_rig(Script([104, 105], reason=FinishReason.ERROR, message="it broke"))
    response = await send(rig, json=ask(stream=True))
    events = events_of(response.text)
    assert response.status_code == 200
    assert events[-1]["error"]["code"] == "engine_error"
    assert events[-1]["error"]["message"] == "it broke."
    assert "[DONE]" not in events
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
    check(await send(rig, json=ask()), 500, "engine_error")


async def test_a_request_cut_off_by_a_shutdown_says_so():
    rig = make_rig(Script([104], reason=FinishReason.CANCELLED))
    check(await send(rig, json=ask()), 503, "draining", retry=True)
    events = events_of((await send(rig, json=ask(stream=True))).text)
    assert events[-1]["error"]["code"] == "draining"


async def test_a_plain_answer_that_takes_too_long_is_504_and_cancelled():
    rig = make_rig(Script(silent=True), options=HttpOptions(request_timeout_s=0.05))
    error = check(await send(rig, json=ask()), 504, "request_timeout")
    assert "--server-request-timeout" in error["message"]
    assert rig.engine.left == [(1, FinishReason.CANCELLED)]


async def test_a_bug_is_answered_without_its_details():
    def broken(request):
        raise ZeroDivisionError("secret")

    response = await send(make_rig(broken), json=ask())
    check(response, 500, "engine_error")
    assert "secret" not in response.text


KEYS = HttpOptions(keys=KeyRing(("alpha", "béta")))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "alpha"},
        {"authorization": "Basic alpha"},
        {"authorization": "Bearer "},
        {"x-api-key": "alph"},
        {"x-api-key": ""},
    ],
)
async def test_every_route_but_health_asks_for_the_key(headers):
    rig = make_rig(options=KEYS)
    paths = [route.path for route in rig.app.routes if isinstance(route, Route)]
    assert CHAT in paths
    for path in [*paths, "/nowhere"]:
        for method in ("GET", "POST"):
            if path == "/health":
                continue
            response = await send(rig, method, path, json=ask(), headers=headers)
            error = check(response, 401, "invalid_api_key")
            assert error["type"] == "authentication_error"
    assert (await send(rig, "GET", "/health")).is_success
    assert rig.engine.requests == []


async def test_any_of_the_keys_opens():
    rig = make_rig(options=KEYS)
    for headers in (
        {"authorization": "Bearer alpha"},
        {"authorization": "bearer béta".encode()},
        {"x-api-key": "béta".encode()},
        {"x-api-key": "alpha", "authorization": "Bearer wrong"},
    ):
        assert (await send(rig, json=ask(), headers=headers)).is_success
