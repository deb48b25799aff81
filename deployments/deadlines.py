"""An answer that is wanted by a certain time, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from cluster.errors import DeadlineExceeded, ShoalError

T = TypeVar("T")
RETRY_AFTER_S = 1.0


async def within(deadline_s: float, source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """What `source` yields in `deadline_s` seconds from the first step on.

    Raises DeadlineExceeded, `source` closed, once they are over; the consumer's own time counts.
    """

    def late() -> DeadlineExceeded:
        message = f"the answer was not complete within its deadline of {deadline_s:g} s"
        return DeadlineExceeded(message, RETRY_AFTER_S)

    deadline = asyncio.get_running_loop().time() + deadline_s
    async with aclosing(source):
        while (item := await next_in_time(source, asyncio.timeout_at(deadline), late)) is not None:
            yield item


async def next_in_time(
    source: AsyncGenerator[T, None], limit: asyncio.Timeout, late: Callable[[], ShoalError]
) -> T | None:
    """What `source` yields next, None at its end. Raises what is `late` once the limit is over."""
    try:
        async with limit:
            return await anext(source, None)
    except TimeoutError:
        if not limit.expired():
            raise
        raise late() from None
