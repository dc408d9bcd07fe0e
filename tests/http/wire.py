"""HTTP spelled out byte by byte, for clients that do what no library does."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager

from tests.http.rig import CHAT


def raw_request(body, *, path=CHAT, length=None, version="1.1", extra=b""):
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(content) if length is None else length}\r\n\r\n"
    return head.encode() + content + extra


async def connect(address):
    host, port = address.split(":")
    return await asyncio.open_connection(host, int(port))


@asynccontextmanager
async def connected(address):
    """A connection that is hung up at the end, whatever its other side did."""
    reader, writer = await connect(address)
    try:
        yield reader, writer
    finally:
        await hang_up(writer)


async def hang_up(writer):
    """Close as a killed process does: with a reset."""
    linger = bytes([1, 0, 0, 0, 0, 0, 0, 0])
    if not writer.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def read_answer(reader):
    """One answer off a connection that stays open: its head and its body, interim ones left out."""
    head = await read_until(reader, b"\r\n\r\n")
    while head.split()[1].startswith(b"1"):
        head = await read_until(reader, b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
    if b"content-length" in fields:
        async with asyncio.timeout(30.0):
            body = await reader.readexactly(int(fields[b"content-length"]))
    else:
        body = await read_until(reader, b"\r\n0\r\n\r\n")
    return head, body


async def read_until(reader, mark):
    """All that comes up to a mark, and the mark."""
    async with asyncio.timeout(30.0):
        return await reader.readuntil(mark)


async def read_to_end(reader):
    """All that comes until the other side closes."""
    async with asyncio.timeout(30.0):
        return await reader.read(-1)
