"""Instructor, unchanged, against a running daemon."""

from typing import Any

import pytest

from tests.daemon.running import Daemon

pytestmark = [pytest.mark.instructor, pytest.mark.filterwarnings("ignore")]

GREETING = "Hello! My name is Ada."


def test_instructor_forces_a_call_and_asks_again(daemon: Daemon):
    """The model cannot keep to a schema, so the client asks a second time and then gives up: that
    it got so far shows that its requests were taken, the repeated one included."""
    import instructor
    import openai
    import pydantic
    from instructor.core import InstructorRetryException

    class Name(pydantic.BaseModel):
        name: str

    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as official:
        client = instructor.from_openai(official, mode=instructor.Mode.TOOLS)
        asked: list[dict[str, Any]] = []
        client.on("completion:kwargs", lambda **kwargs: asked.append(kwargs))
        with pytest.raises(InstructorRetryException) as given_up:
            client.chat.completions.create(
                model="ember",
                response_model=Name,
                messages=[{"role": "user", "content": GREETING}],
                # A sampled answer may run into the limit, of which the client does not ask again.
                temperature=0,
                max_tokens=256,
                max_retries=1,
            )
    assert given_up.value.n_attempts == len(asked) == 2
    assert asked[0]["tool_choice"]["function"]["name"] == "Name"
    completion = given_up.value.last_completion
    assert completion.usage.prompt_tokens > 0
    assert completion.choices[0].finish_reason in ("stop", "length", "tool_calls")
