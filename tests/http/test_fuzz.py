"""Bodies made of what may stand in them, at random: each is answered, and none by a bug."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import ignisd.ember
from ignisd.chat.checkpoint import read_model_info
from ignisd.chat.foreign import FOREIGN
from ignisd.chat.wire import WireChat, WireCompletion
from ignisd.http.app import build_app
from ignisd.http.counters import HttpCounters
from ignisd.http.options import HttpOptions
from ignisd.live import LiveSettings
from ignisd.resolve import resolve
from ignisd.settings import FLAGS
from tests.chat.outputs import OUTPUTS, TOOLS
from tests.chat.toy import NOON
from tests.fakes import Script
from tests.http.rig import CHAT, make_rig

EMBER = read_model_info(Path(ignisd.ember.__file__).parent / "weights", "ember", 2048, lambda: NOON)
OUTPUT = EMBER.tokenizer.encode(OUTPUTS["text-and-call"].text).tolist()
ROUTES = (CHAT, "/v1/completions", "/v1/tokenize", "/v1/detokenize", "/v1/reuse/explain")
WORDS = [
    *("", "x", "auto", "none", "required", "text", "json_object", "user", "system", "developer"),
    *("assistant", "tool", "function", "ember", "ember@agent", "agent", "low", "null", "stop"),
    *(
        "\x00",
        "é🙂汉",
        "\u202e",
        "</think>",
        "<|im_end|>",
        "{{ 7*7 }}",
        "{",
        '{"a": 1}',
        "a" * 5000,
    ),
]
NUMBERS = [0, 1, -1, 2, 8, 9, 64, 2**31, 2**63, -(2**63), 10**30, 0.5, 1.0, -0.0, 1e308, 1e-308]
KEYS = [
    *("role", "content", "type", "text", "function", "name", "arguments", "id", "tool_calls", "a"),
    *(
        "tool_call_id",
        "reasoning",
        "reasoning_content",
        "include_usage",
        "parameters",
        "properties",
    ),
    *("anyOf", "$ref", "enum", "items", "additionalProperties", "image_url", "url"),
]
CALL = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "u"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
    {"role": "tool", "tool_call_id": "c", "content": "t"},
    {"role": "developer", "content": "d"},
]
SENSIBLE: dict[str, Any] = {
    "messages": MESSAGES,
    "prompt": "hello",
    "tokens": [1, 2, 3],
    "tools": TOOLS,
    "tool_choice": {"type": "function", "function": {"name": "read"}},
    "response_format": {"type": "text"},
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"enable_thinking": True},
    "stop": ["a", "b"],
    "n": 2,
    "max_tokens": 5,
}


def value(chance: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can say."""
    kind = chance.randrange(8 if depth < 4 else 5)
    if kind == 0:
        return chance.choice([None, True, False])
    if kind <= 2:
        return chance.choice(NUMBERS)
    if kind <= 4:
        return chance.choice(WORDS)
    size = chance.randrange(4)
    if kind <= 5:
        return [value(chance, depth + 1) for _ in range(size)]
    return {chance.choice(KEYS): value(chance, depth + 1) for _ in range(size)}


def mutated(chance: random.Random, sound: Any) -> Any:
    """A sensible value with something in it replaced, dropped or doubled."""
    if chance.random() < 0.15:
        return value(chance)
    if isinstance(sound, dict) and sound:
        key = chance.choice(list(sound))
        if chance.random() < 0.15:
            return {name: each for name, each in sound.items() if name != key}
        return {**sound, key: mutated(chance, sound[key])}
    if isinstance(sound, list) and sound:
        place = chance.randrange(len(sound))
        doubled = [sound[place]] if chance.random() < 0.2 else []
        return [*sound[:place], mutated(chance, sound[place]), *doubled, *sound[place + 1 :]]
    return value(chance) if chance.random() < 0.5 else sound


def body(chance: random.Random, path: str) -> dict[str, Any]:
    fields = [*WireChat.__struct_fields__, *WireCompletion.__struct_fields__, *FOREIGN]
    needed = {"/v1/completions": "prompt", "/v1/detokenize": "tokens"}.get(path, "messages")
    made = {needed: SENSIBLE[needed]}
    for _ in range(chance.randrange(5)):
        name = chance.choice(fields)
        sound = SENSIBLE.get(name, value(chance))
        made["class" if name == "class_name" else name] = mutated(chance, sound)
    made[needed] = mutated(chance, made[needed]) if chance.random() < 0.7 else made[needed]
    return made


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("seed", range(4))
async def test_any_body_is_answered_and_by_no_bug(path, seed):
    rig = make_rig(Script(OUTPUT), model=EMBER, options=HttpOptions(header_wait_s=0.01))
    chance = random.Random(f"{path} {seed}")
    statuses = set()
    async with rig.client() as client:
        for _ in range(150):
            sent = body(chance, path)
            content = json.dumps(sent, ensure_ascii=chance.random() < 0.5).encode()
            answer = await client.post(path, content=content)
            check(answer, sent)
            statuses.add(answer.status_code)
    assert 200 in statuses
    assert rig.engine.stats().busy is False


def check(answer: httpx.Response, sent: object) -> None:
    assert answer.status_code in (200, 202, 400, 404), (answer.status_code, answer.text, sent)
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error["code"] != "engine_error"
        assert error["message"].endswith((".", "?", "!"))
        assert len(error["message"]) < 1100
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n"), sent
    else:
        answer.json()


@pytest.mark.parametrize("seed", range(3))
async def test_any_change_of_settings_is_answered_and_by_no_bug(seed):
    live, rig = LiveSettings(resolve({}, {})), make_rig()
    app = build_app(rig.service, HttpOptions(), HttpCounters(), live)
    chance = random.Random(seed)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for _ in range(200):
            before = live.resolved
            flags = chance.sample(FLAGS, chance.randrange(4))
            sent = {flag.key: value(chance) for flag in flags}
            if chance.random() < 0.3:
                sent = {"server": {"queue": chance.choice(NUMBERS)}, **sent}
            answer = await client.patch("/v1/config", json=sent)
            check(answer, sent)
            if answer.status_code == 400:
                assert live.resolved == before
            assert replace(live.settings) == live.settings  # it could have been started with


async def test_any_switch_is_answered_and_by_no_bug():
    rig, chance, statuses = make_rig(), random.Random(1), set()
    async with rig.client() as client:
        for _ in range(200):
            sent = mutated(chance, {"model": chance.choice([rig.model.name, "x" * 5000])})
            answer = await client.post("/v1/models/switch", json=sent)
            check(answer, sent)
            statuses.add(answer.status_code)
    assert statuses == {200, 400, 404}
    assert rig.service.num_waiting == 0
