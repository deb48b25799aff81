"""The badly behaved clients, each kind in a process of its own.

    python -m benchmarks.neighbours.bad KIND PORT

Prints `standing` once it does what it is for. A kind that the server is to end by itself prints
`let go` once it did; the others go on until the process is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.neighbours.server import BAD_KEY, CONTEXT, IDLE, MAX_BODY, MODEL

READERS, VANISHING, FLOOD, HALF, HELD = 16, 8, 16, 500, 500
"""How many clients of each kind there are at once: few where they cost what good ones cost too."""

LONG: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True, "stream": True}
CONNECTING = 64
"""Connections that are begun at once: a backlog is not what is measured."""

Kind = Callable[[int], Coroutine[Any, Any, None]]


async def good_readers(port: int) -> None:
    """For comparison: as many clients as the slow ones, that read and ask again."""

    async def one() -> None:
        while True:
            reader, writer = await _connect(port)
            writer.write(_request({**LONG, "prompt": "One fish"}))
            await _read_all(reader)
            writer.close()

    _say("standing")
    await asyncio.gather(*(one() for _ in range(READERS)))


async def slow_readers(port: int) -> None:
    """Streams whose clients read a few bytes a second, through the smallest window there is."""
    clients = [await _connect(port, receive_buffer=2048, limit=1024) for _ in range(READERS)]
    for _, writer in clients:
        writer.write(_request({**LONG, "prompt": "One fish"}))
    _say("standing")
    while True:
        for reader, _ in clients:
            await reader.read(8)
        await asyncio.sleep(1.0)


async def vanishing(port: int) -> None:
    """Streams whose clients reset the connection at the first bytes, and come again."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await _connect(port)
                writer.write(_request({**LONG, "prompt": "One fish"}))
                await reader.read(16)
                writer.transport.abort()

    _say("standing")
    await asyncio.gather(*(one() for _ in range(VANISHING)))


async def half_sent(port: int) -> None:
    """Heads without an end, and bodies without theirs, until the server has had enough."""
    clients = await _connect_all(port, HALF)
    head, _, body = _request({"prompt": "x" * 8000, "max_tokens": 1}).partition(b"\r\n\r\n")
    for number, (_, writer) in enumerate(clients):
        writer.write(head if number % 2 else head + b"\r\n\r\n" + body[:4000])
    await _until_let_go(clients)


async def idle(port: int) -> None:
    """Connections on which nothing is ever sent."""
    await _until_let_go(await _connect_all(port, IDLE))


async def largest(port: int) -> None:
    """Bodies of the largest size, one after the other: text that no context holds, a million empty
    lists, and as much as a context does hold, sixteen times."""
    many = [
        _request({"prompt": "x" * (MAX_BODY - 200), "max_tokens": 1}),
        _request({"prompt": [[]] * ((MAX_BODY - 200) // 4), "max_tokens": 1}),
        _request({"prompt": [5] * (CONTEXT - 20), "max_tokens": 16, "n": 16, "ignore_eos": True}),
    ]
    _say("standing")
    while True:
        for request in many:
            reader, writer = await _connect(port)
            writer.write(request)
            await reader.read(64)
            writer.close()


async def tiny_flood(port: int) -> None:
    """Requests for one token, as fast as they are answered."""

    async def one() -> None:
        while True:
            reader, writer = await _connect(port)
            writer.write(_request({"prompt": "x", "max_tokens": 1}))
            await reader.read()
            writer.close()

    _say("standing")
    await asyncio.gather(*(one() for _ in range(FLOOD)))


async def held(port: int) -> None:
    """Long streams that are read as they should be; it is their Gateway that dies."""
    clients = await _connect_all(port, HELD)
    for _, writer in clients:
        writer.write(_request({**LONG, "prompt": "One fish"}))
    await asyncio.gather(*(reader.read(16) for reader, _ in clients))  # each has begun
    _say("standing")
    await asyncio.gather(*(_read_all(reader) for reader, _ in clients))


async def _read_all(reader: StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(65536):
            pass


async def _connect_all(port: int, count: int) -> list[tuple[StreamReader, StreamWriter]]:
    clients: list[tuple[StreamReader, StreamWriter]] = []
    while len(clients) < count:
        group = min(CONNECTING, count - len(clients))
        clients += await asyncio.gather(*(_connect(port) for _ in range(group)))
    return clients


async def _connect(
    port: int, receive_buffer: int = 0, limit: int = 65536
) -> tuple[StreamReader, StreamWriter]:
    end = socket.socket()
    if receive_buffer:  # before it connects, or the window is larger for good
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    end.setblocking(False)
    await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=end, limit=limit)


async def _until_let_go(clients: list[tuple[StreamReader, StreamWriter]]) -> None:
    """Each is, once it has an answer or an end."""
    _say("standing")
    await asyncio.gather(*(reader.read(1) for reader, _ in clients))
    _say("let go")


def _request(fields: dict[str, Any]) -> bytes:
    body = json.dumps({"model": MODEL, **fields}, separators=(",", ":")).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {BAD_KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def _say(what: str) -> None:
    print(what, flush=True)


KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (good_readers, slow_readers, vanishing, half_sent, idle, largest, tiny_flood, held)
}

if __name__ == "__main__":
    asyncio.run(KINDS[sys.argv[1]](int(sys.argv[2])))
