"""Streams of chat answers, put together as a client does."""

from dataclasses import replace
from typing import Any

from tests.chat.outputs import TOOLS, tokens_of
from tests.chat.toy import toy_model
from tests.fakes import Script
from tests.http.rig import CHAT, ask, events_of, make_rig

# Its template is costly to compile and never changes.
_TOY = toy_model()


def scripted(output, cut, **options):
    """A rig whose model says an output in tokens cut so, and the fields to ask it with."""
    tokens, vocabulary = tokens_of(output.text, cut)
    rig = make_rig(Script(tokens), model=replace(_TOY, tokenizer=vocabulary), **options)
    fields = {"tools": TOOLS, "enable_thinking": output.thinking or None}
    if output.stop:
        fields["stop"] = list(output.stop)
    return rig, fields


async def post(rig, headers=None, **fields):
    async with rig.client() as client:
        return await client.post(CHAT, json=ask(**fields), headers=headers)


async def plain(rig, **fields):
    """The choice and the usage of a plain answer."""
    response = await post(rig, **fields)
    assert response.status_code == 200, response.text
    body = response.json()
    (choice,) = body["choices"]
    return choice, body["usage"]


async def streamed(rig, **fields):
    """The same of a stream, put together from its deltas."""
    fields |= {"stream": True, "stream_options": {"include_usage": True}}
    response = await post(rig, **fields)
    assert response.status_code == 200, response.text
    # Every event is valid by itself: nothing is cut inside a character.
    for block in response.content.split(b"\n\n"):
        block.decode("utf-8")
    events = events_of(response.text)
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    return assembled(events[:-2]), events[-2]["usage"]


def assembled(events):
    """The choice that the deltas of a stream amount to; it ends exactly once, at its end."""
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert reasons[-1] is not None
    message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    calls: list[Any] = []
    for event in events:
        (choice,) = event["choices"]
        delta = dict(choice["delta"])
        assert delta.pop("role", "assistant") == "assistant"
        for piece in delta.pop("tool_calls", ()):
            if "id" in piece:
                assert piece.pop("index") == len(calls)
                calls.append(piece)
            else:
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
        for name, text in delta.items():
            message[name] = message.get(name, "") + text
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    last = {key: value for key, value in events[-1]["choices"][0].items() if key != "delta"}
    return {**last, "message": message}


def without_ids(choice):
    """The choice, its calls' fresh identities left out."""
    for call in choice["message"].get("tool_calls", ()):
        assert call.pop("id").startswith("call_")
    return choice
