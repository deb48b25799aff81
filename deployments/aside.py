"""Work that would hold up the event loop, done beside it, a little at a time.

A door's loop carries every client's stream. What takes long for one of them, such as a large body
or a long text, goes to a few threads, so that many at once queue here instead of piling up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 2
_pool = ThreadPoolExecutor(THREADS, thread_name_prefix="aside")


async def aside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns or raises, once one of this process's few threads had time for it."""
    return await asyncio.get_running_loop().run_in_executor(_pool, partial(work, *args, **kwargs))
