"""What a model generated, sent back by its client, renders to the text that was generated."""

from pathlib import Path

import pytest

import ignisd.ember
from ignisd.chat.checkpoint import read_model_info
from tests.chat.outputs import OUTPUTS, TOOLS, call
from tests.chat.toy import NOON
from tests.fakes import Script
from tests.http.rig import USER, make_rig
from tests.http.streams import plain, streamed

EMBER = read_model_info(Path(ignisd.ember.__file__).parent / "weights", "ember", 8192, lambda: NOON)

LOOPS = [
    (call("read", path="a"), False),
    (OUTPUTS["text-and-call"].text.strip(), False),
    (OUTPUTS["parallel"].text, False),
    (OUTPUTS["code"].text, False),
    (call("search", limit="5", kinds='["a", "b"]', range='{"z": 1, "a": {"b": null}}'), False),
    ("I need é\n</think>\n\nSo:\n\n" + call("read", path="汉"), True),
]


@pytest.mark.parametrize("answer", [plain, streamed])
@pytest.mark.parametrize(("text", "thinking"), LOOPS)
async def test_l13_a_step_of_a_tool_loop_extends_the_prompt_by_what_was_generated(
    answer, text, thinking
):
    rig = make_rig(model=EMBER)
    generated = EMBER.tokenizer.encode(text).tolist()
    rig.engine.script = Script(generated)
    fields = {"tools": TOOLS, "enable_thinking": thinking}
    choice, _ = await answer(rig, **fields)
    results = [
        {"role": "tool", "tool_call_id": made["id"], "content": "done"}
        for made in choice["message"]["tool_calls"]
    ]
    await plain(rig, messages=[USER, choice["message"], *results], **fields)
    first, second = (request.chain.tokens.tolist() for request in rig.engine.requests)
    decode = EMBER.tokenizer.decode
    assert decode(second).startswith(decode(first) + text)
    opener = rig.engine.requests[0].marks.opener
    assert second[:opener] == first[:opener]
    # The turn is the same one, so its opening mark does not move.
    assert rig.engine.requests[1].marks.turn_open == opener


@pytest.mark.parametrize("answer", [plain, streamed])
async def test_a_forced_call_echoed_extends_the_prompt_too(answer):
    rig = make_rig(model=EMBER)
    opening = "<tool_call>\n<function=read>\n"
    text = call("read", path="a").removeprefix(opening)
    rig.engine.script = Script(EMBER.tokenizer.encode(text).tolist())
    named = {"type": "function", "function": {"name": "read"}}
    for thinking in (False, True):
        fields = {"tools": TOOLS, "enable_thinking": thinking}
        choice, _ = await answer(rig, tool_choice=named, **fields)
        result = {"role": "tool", "tool_call_id": "c", "content": "done"}
        await plain(rig, messages=[USER, choice["message"], result], **fields)
        first, second = (request.chain.tokens.tolist() for request in rig.engine.requests[-2:])
        decode = EMBER.tokenizer.decode
        assert decode(second).startswith(decode(first) + text)
