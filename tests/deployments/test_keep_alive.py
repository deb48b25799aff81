"""A stream that has nothing to say shows that it lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message

from deployments.sse import EventStream


class Client:
    """Takes in what is sent; after `comments` of them it lets the stream go on."""

    def __init__(self, comments: int) -> None:
        self.bodies: list[bytes] = []
        self._comments = comments
        self.goes_on = asyncio.Event()

    async def send(self, message: Message) -> None:
        self.bodies.append(message.get("body", b""))
        if self.bodies.count(b": alive\n\n") >= self._comments:
            self.goes_on.set()

    async def events(self) -> AsyncGenerator[bytes, None]:
        await self.goes_on.wait()
        yield b"data: 2\n\n"


async def test_comments_fill_a_pause_between_events_and_end_with_the_stream() -> None:
    client = Client(comments=2)
    before = asyncio.all_tasks()
    stream = EventStream(b"data: 1\n\n", client.events(), keep_alive_s=0.01)
    await stream.stream_response(client.send)
    said = b"".join(client.bodies)
    assert said.startswith(b"data: 1\n\n: alive\n\n: alive\n\n")
    assert said.endswith(b"data: 2\n\n")
    assert client.bodies[-1] == b""
    assert asyncio.all_tasks() == before


async def test_without_an_interval_there_are_no_comments() -> None:
    client = Client(comments=0)
    stream = EventStream(b"data: 1\n\n", client.events())
    await stream.stream_response(client.send)
    assert b"".join(client.bodies) == b"data: 1\n\ndata: 2\n\n"
