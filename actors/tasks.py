"""Small helpers for asyncio: tasks that belong to somebody, and calls from other threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def first_to_end(*works: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, end the others, and raise what the first raised, if it did."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel_all(*tasks)


async def cancel_all(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and wait until they have ended; what they raise then is of no interest."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def to_the_end(work: Awaitable[T]) -> T:
    """Its result. Who waits for it can be cancelled, and is so only once it has ended."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    finally:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})


def on_loop(loop: asyncio.AbstractEventLoop, method: Callable[[T], None]) -> Callable[[T], None]:
    """The method, to be called on another thread and run on the loop."""

    def call(argument: T) -> None:
        loop.call_soon_threadsafe(method, argument)

    return call
