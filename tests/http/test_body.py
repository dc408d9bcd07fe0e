import asyncio

import pytest
from starlette.requests import Request

from ignisd.http.body import ClientGone, while_connected


def request_of(*messages):
    """A request whose client sends these messages and is silent afterwards."""
    left = list(messages)

    async def receive():
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return Request({"type": "http", "headers": []}, receive)


GONE = {"type": "http.disconnect"}


async def test_work_is_done_while_the_client_waits():
    async def work():
        await asyncio.sleep(0)
        return 7

    assert await while_connected(request_of(), work()) == 7


async def test_leaving_wins_over_work_that_ends_at_the_same_time():
    async def work():
        return 7

    with pytest.raises(ClientGone):
        await while_connected(request_of(GONE), work())


async def test_work_is_cancelled_when_the_client_leaves():
    cancelled = asyncio.Event()

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(ClientGone):
        await while_connected(request_of({"type": "http.request"}, GONE), work())
    assert cancelled.is_set()


async def test_what_the_work_raises_comes_through():
    async def work():
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        await while_connected(request_of(), work())


async def test_cancelling_the_waiter_cancels_the_work():
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def work():
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    waiter = asyncio.create_task(while_connected(request_of(), work()))
    await begun.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert cancelled.is_set()
