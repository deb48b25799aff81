"""Server-sent events: framing, signs of life, and an end for each way a stream can end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import anyio
from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from actors.tasks import cancel_all
from cluster.errors import FaultError, ShoalError
from deployments.faults import fault_body
from deployments.responses import compact

DONE = b"data: [DONE]\n\n"
ALIVE: Message = {"type": "http.response.body", "body": b": alive\n\n", "more_body": True}
"""A comment, which clients of server-sent events skip."""

logger = logging.getLogger(__name__)


class EventStream(StreamingResponse):
    """Sends `events`, the first of which is known, and closes them however the client leaves.

    Where no event came for `keep_alive_s` it sends a comment; with 0, never.
    """

    def __init__(
        self, first: bytes, events: AsyncGenerator[bytes, None], keep_alive_s: float = 0.0
    ) -> None:
        super().__init__(
            guarded(first, events),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )
        self._events = events
        self._keep_alive_s = keep_alive_s

    async def stream_response(self, send: Send) -> None:
        pulse = Pulse(send, self._keep_alive_s)
        beating = asyncio.ensure_future(pulse.beat())
        try:
            await super().stream_response(pulse.send)
        finally:
            # A client that left has cancelled the scope, which would interrupt the closing too.
            with anyio.CancelScope(shield=True):
                await cancel_all(beating)
                await self._events.aclose()


class Pulse:
    """Passes on what is sent and fills in where nothing was: a proxy, or a client, gives up a
    connection that is silent for long, as one is that waits for another shard."""

    def __init__(self, send: Send, every_s: float) -> None:
        self._send = send
        self._every_s = every_s
        self._clock = asyncio.get_running_loop().time
        self._sent_at = self._clock()
        self._over = False

    async def send(self, message: Message) -> None:
        self._sent_at = self._clock()
        self._over = message["type"] == "http.response.body" and not message.get("more_body")
        await self._send(message)

    async def beat(self) -> None:
        """A comment after each silence, until the end of the body or for ever."""
        while self._every_s:
            await asyncio.sleep(self._sent_at + self._every_s - self._clock())
            if self._over:
                return
            if self._clock() >= self._sent_at + self._every_s:
                await self.send(ALIVE)


async def guarded(first: bytes, events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """`first` and `events`; a failure among them becomes an event, as the status is long sent."""
    yield first
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except ShoalError as error:
        logger.warning("a stream failed: %s", error)
        yield error_event(error)
    except Exception:  # whatever it was, the client is told that its stream is not whole
        logger.exception("a stream failed")
        yield error_event(FaultError("the stream failed; the server's log has the reason"))


def error_event(error: ShoalError) -> bytes:
    return b"event: error\ndata: " + compact(fault_body(error)) + b"\n\n"
