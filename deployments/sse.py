"""Server-sent events: framing, and an end for each way a stream can end."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import anyio
from starlette.responses import StreamingResponse
from starlette.types import Send

from cluster.errors import FaultError, ShoalError
from deployments.faults import fault_body
from deployments.responses import compact

DONE = b"data: [DONE]\n\n"

logger = logging.getLogger(__name__)


class EventStream(StreamingResponse):
    """Sends `events`, the first of which is known, and closes them however the client leaves."""

    def __init__(self, first: bytes, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(
            guarded(first, events),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )
        self._events = events

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            # A client that left has cancelled the scope, which would interrupt the closing too.
            with anyio.CancelScope(shield=True):
                await self._events.aclose()


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
