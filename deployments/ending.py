"""How a gateway ends: it begins nothing new, and what runs finishes in time or is told why not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import TypeVar

from cluster.errors import ShuttingDown
from deployments.deadlines import next_in_time

T = TypeVar("T")

REFUSED = "the server is ending, and begins no answer any more"
CUT = "the server is ending, and the answer was not complete in the time that was left"
RETRY_AFTER_S = 10.0
"""A server that is started anew may answer by then."""

LAST_WORDS_S = 0.25
"""So long the last that was said may take to its reader, through HAProxy."""


class Ending:
    """All answers of a gateway go through here, and this alone knows how many there are."""

    def __init__(self) -> None:
        self.has_begun = False
        self._is_over = False
        self._running = 0
        self._waiting: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()

    async def through(self, source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """What `source` yields. Raises ShuttingDown, `source` closed, where it was not begun before
        the end was, or is not done when the time for it is over."""
        async with aclosing(source):
            if self.has_begun:
                raise ShuttingDown(REFUSED, RETRY_AFTER_S)
            self._running += 1
            self._idle.clear()
            try:
                while (item := await self._next(source)) is not None:
                    yield item
            finally:
                self._running -= 1
                if not self._running:
                    self._idle.set()

    async def begin(self, within_s: float) -> None:
        """Begin the end, which is there when this returns: after `within_s` at most, and a moment
        for what is then said."""
        self.has_begun = True
        if not self._running:
            return
        await self._wait_idle(within_s)
        self._cut()
        await self._wait_idle(LAST_WORDS_S)
        await asyncio.sleep(LAST_WORDS_S)

    async def _wait_idle(self, within_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._idle.wait()

    def _cut(self) -> None:
        self._is_over = True
        now = asyncio.get_running_loop().time()
        for limit in self._waiting:
            limit.reschedule(now)

    async def _next(self, source: AsyncGenerator[T, None]) -> T | None:
        if self._is_over:
            raise _cut_off()
        limit = asyncio.timeout(None)
        self._waiting.add(limit)
        try:
            return await next_in_time(source, limit, _cut_off)
        finally:
            self._waiting.discard(limit)


def _cut_off() -> ShuttingDown:
    return ShuttingDown(CUT, RETRY_AFTER_S)
