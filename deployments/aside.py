"""Work that would hold up the event loop, done beside it, a little at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Aside:
    """A few threads for one kind of work, so that many at once queue here instead of piling up.

    A door's loop carries every client's stream, and must not wait for the long text of one.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises, once one of the threads had time for it."""
        call = partial(work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)
