"""Clients that people build on, unchanged, against a running daemon.

The embedded model calls no tools and writes no JSON to order. So where a client needs such an
answer, the test looks at what the client sends and at how it takes the answer that comes; what
parsed calls look like is shown to the official client in tests/http.
"""

from typing import Any

import httpx
import pytest

from tests.daemon.running import Daemon

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

GREETING = "Hello! My name is Ada."
PROMPT = f"<|im_start|>user\n{GREETING}<|im_end|>\n<|im_start|>assistant\n"
SYSTEM = "You are a helpful assistant. Answer in one short sentence. " * 8


def expected(daemon: Daemon, *messages: dict[str, Any], max_tokens: int = 16) -> str:
    """The greedy answer, asked for without any client."""
    body = {"messages": list(messages), "max_tokens": max_tokens, "temperature": 0}
    answer = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=120).json()
    text: str = answer["choices"][0]["message"]["content"]
    return text


def too_long(daemon: Daemon) -> str:
    """More than the model's context holds."""
    entry = httpx.get(f"{daemon.url}/v1/models/ember", timeout=60).json()
    limit: int = entry["max_model_len"]
    return "word " * (limit + 1)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def test_openai_completions_and_models(daemon: Daemon):
    import openai

    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["ember"]
        model = client.models.retrieve("ember")
        assert model.model_extra is not None
        assert model.model_extra["status"] == "serving"
        fields: dict[str, Any] = {"model": "ember", "prompt": PROMPT, "max_tokens": 12}
        fields["temperature"] = 0
        plain = client.completions.create(**fields)
        stream = client.completions.create(
            **fields, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
        assert text == plain.choices[0].text != ""
        assert chunks[-1].usage == plain.usage
        ids = client.post("/tokenize", body={"prompt": PROMPT}, cast_to=httpx.Response).json()
        again = client.completions.create(**{**fields, "prompt": ids["tokens"]})
        assert again.choices[0].text == plain.choices[0].text
        raw = client.chat.completions.with_raw_response.create(
            model="ember",
            messages=[{"role": "user", "content": GREETING}],
            max_tokens=4,
            extra_headers={"x-request-id": "mine-1"},
        )
        assert raw.headers["x-request-id"] == "mine-1"
        assert "cached=" in raw.headers["x-ignis-reuse"]


def test_openai_tool_loop_history_and_errors(daemon: Daemon):
    import openai

    tool = {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
    }
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    history: list[Any] = [
        {"role": "system", "content": SYSTEM},
        user("What is the weather?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client:
        fields: dict[str, Any] = {"model": "ember", "tools": [tool], "max_tokens": 8}
        first = client.chat.completions.create(messages=history, **fields)
        history += [{"role": "assistant", "content": "Sunny."}, user("And tomorrow?")]
        second = client.chat.completions.create(messages=history, **fields)
        assert second.usage
        assert second.usage.prompt_tokens_details
        assert first.usage
        cached = second.usage.prompt_tokens_details.cached_tokens or 0
        assert cached >= first.usage.prompt_tokens // 64 * 64 - 64 > 0
        with pytest.raises(openai.BadRequestError) as long:
            client.chat.completions.create(messages=[user(too_long(daemon))], **fields)
        assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(
                model="other", messages=[{"role": "user", "content": "x"}]
            )


def test_langchain_invokes_streams_and_binds_tools(daemon: Daemon):
    from langchain_core.messages import HumanMessage, SystemMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAI

    @tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return "sunny"

    url = f"{daemon.url}/v1"
    model = ChatOpenAI(
        model="ember", base_url=url, api_key="none", temperature=0, max_tokens=16, max_retries=0
    )
    messages = [SystemMessage(SYSTEM), HumanMessage(GREETING)]
    answer = model.invoke(messages)
    want = expected(daemon, {"role": "system", "content": SYSTEM}, user(GREETING))
    assert answer.content == want
    assert answer.usage_metadata["input_token_details"]["cache_read"] >= 0
    pieces = list(model.stream(messages, stream_usage=True))
    assert "".join(piece.content for piece in pieces) == want
    usage = [piece.usage_metadata for piece in pieces if piece.usage_metadata][-1]
    assert usage["input_token_details"]["cache_read"] > 0
    bound = model.bind_tools([weather]).invoke(messages)
    assert bound.response_metadata["finish_reason"] in ("stop", "length", "tool_calls")
    completion = OpenAI(
        model="ember", base_url=url, api_key="none", temperature=0, max_tokens=8, max_retries=0
    )
    assert completion.invoke(PROMPT) == "".join(completion.stream(PROMPT)) != ""


async def test_langchain_batches_without_mixing_answers(daemon: Daemon):
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model="ember@agent",
        base_url=f"{daemon.url}/v1",
        api_key="none",
        temperature=0,
        max_tokens=12,
    )
    texts = [f"Tell me about number {n}." for n in range(8)]
    answers = await model.abatch(texts)
    assert [answer.content for answer in answers] == [
        expected(daemon, user(text), max_tokens=12) for text in texts
    ]


def test_litellm_completes_streams_and_maps_errors(daemon: Daemon, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would fetch prices
    import litellm

    common: dict[str, Any] = {
        "model": "openai/ember",
        "api_base": f"{daemon.url}/v1",
        "api_key": "none",
        "temperature": 0,
        "max_tokens": 16,
        "num_retries": 0,
    }
    messages = [{"role": "system", "content": SYSTEM}, user(GREETING)]
    want = expected(daemon, *messages)
    answer = litellm.completion(messages=messages, **common)
    assert answer.choices[0].message.content == want
    assert answer.usage.prompt_tokens_details.cached_tokens > 0
    chunks = list(
        litellm.completion(
            messages=messages, stream=True, stream_options={"include_usage": True}, **common
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == want
    plain = litellm.text_completion(
        prompt=PROMPT, **{**common, "model": "text-completion-openai/ember"}
    )
    assert plain.choices[0].text
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[user(too_long(daemon))], **common)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=messages, **{**common, "model": "openai/other"})
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=messages, **{**common, "temperature": 9})


async def test_pydantic_ai_runs_an_agent(daemon: Daemon):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{daemon.url}/v1", api_key="none")
    model = OpenAIChatModel("ember", provider=provider)
    settings: Any = {"temperature": 0, "max_tokens": 16}
    agent = Agent(model, system_prompt=SYSTEM, model_settings=settings)

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        return "sunny"

    first = await agent.run(GREETING)
    assert first.output
    second = await agent.run("What is my name?", message_history=first.all_messages())
    assert second.usage.cache_read_tokens > 0
    async with agent.run_stream(GREETING) as streamed:
        pieces = [piece async for piece in streamed.stream_text(delta=True)]
    assert "".join(pieces) == first.output
