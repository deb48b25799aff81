"""Several asynchronous generators as one, for calls with several prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """What all sources yield, as it comes; the first failure ends all, and so does closing."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for value in only:
                yield value
        return
    coming = {asyncio.create_task(_next(source)): source for source in sources}
    try:
        while coming:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                item, source = task.result(), coming.pop(task)
                if item is not None:
                    coming[asyncio.create_task(_next(source))] = source
                    yield item
    finally:
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        for source in sources:
            await source.aclose()


async def _next(source: AsyncGenerator[T, None]) -> T | None:
    return await anext(source, None)
