"""Several models and one device: who asks for which, who leaves, who waits."""

import asyncio
import random

from tests.lifecycle.rig import Answer, Rig, plays, until
from tests.lifecycle.test_switch import refused
from tests.planting import catches


@catches("who-waits-keeps-the-claim")
@plays(switch_allow_implicit="on", switch_drain_timeout="0.5")
async def test_l82_whoever_asks_for_whichever_model_is_answered(rig: Rig) -> None:
    """Among requests for three models, switches and departures nobody waits for ever."""
    drawn = random.Random(7)

    refused_names: set[str] = set()

    async def one(number: int) -> Answer:
        await asyncio.sleep(drawn.random() * 0.5)
        leave = asyncio.Event()
        leaves = drawn.random() < 0.2
        if leaves:
            asyncio.get_running_loop().call_later(drawn.random() * 0.2, leave.set)
        name = drawn.choice(["a", "b", "c", None])
        if number % 7 == 0:
            answer = await rig.switch(name or "a", leave=leave)
        else:
            answer = await rig.ask(
                name, max_tokens=drawn.randint(1, 60), stream=number % 3 == 0, leave=leave
            )
        assert leaves or answer.status != 499, f"request {number} stayed and was taken for gone"
        if answer.status == 503:
            refused(answer, "model_switching")
            refused_names.add(name or "a")
        return answer

    answers = await asyncio.gather(*map(one, range(150)))
    codes = {answer.status for answer in answers}
    assert 200 in codes
    assert codes <= {200, 499, 503}
    await until(rig.is_clean)
    # How many are refused depends on how long a change takes; that they may ask again does not.
    for name in sorted(refused_names | {"a"}):
        assert (await rig.ask(name)).json["model"] == name
    await until(rig.is_clean)


@catches("a-load-ends-with-its-client", "who-waits-keeps-the-claim")
@plays(switch_allow_implicit="on")
async def test_l83_a_switch_goes_on_without_who_asked_for_it(rig: Rig) -> None:
    """A client that leaves takes nothing away from those who wait for the same load."""
    rig.loader.loading.shut()
    leave = asyncio.Event()
    impatient = [rig.switch("b", leave=leave), rig.ask("b", leave=leave)]
    await until(lambda: rig.loader.loading.reached.is_set() and rig.service.num_waiting == 2)
    patient = rig.ask("b")
    await until(lambda: rig.service.num_waiting == 3)
    leave.set()
    assert [(await each).status for each in impatient] == [499, 499]
    rig.loader.loading.open()
    assert (await patient).json["model"] == "b"
    assert rig.loader.events.count("load b") == 1
    await until(rig.is_clean)
