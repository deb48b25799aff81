"""An answer that is wanted by a certain time, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from cluster.errors import DeadlineExceeded

T = TypeVar("T")
RETRY_AFTER_S = 1.0


async def within(deadline_s: float, source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """What `source` yields in `deadline_s` seconds from the first step on.

    Raises DeadlineExceeded, `source` closed, once they are over; the consumer's own time counts.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + deadline_s
    async with aclosing(source):
        while True:
            try:
                async with asyncio.timeout_at(deadline) as limit:
                    item = await anext(source, None)
            except TimeoutError:
                if not limit.expired():
                    raise
                message = f"the answer was not complete within its deadline of {deadline_s:g} s"
                raise DeadlineExceeded(message, RETRY_AFTER_S) from None
            if item is None:
                return
            yield item
