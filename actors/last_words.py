"""How a shard gives itself up: who waits is told, and left a moment to hear it; then it exits."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any

from actors.doors import Doors
from actors.engine_thread import Crash
from cluster.errors import Displaced, ShardLost, StepFailed

logger = logging.getLogger(__name__)


class LastWords:
    """Waits for what must end a shard called `name`, and then says so at its `doors`.

    The process is left `moment_s` seconds for that; `dismiss` is called first, to end what must not
    outlive it. Call it on the event loop.
    """

    def __init__(
        self, name: str, doors: Doors, moment_s: float, dismiss: Callable[[], object]
    ) -> None:
        self._name = name
        self._doors = doors
        self._moment_s = moment_s
        self._dismiss = dismiss
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def are_said(self) -> bool:
        """Whether the shard has failed and is about to exit."""
        return self._lost.done()

    async def wait(self) -> None:
        """Never returns. Raises ShardLost where the shard gives itself up, with the reason."""
        await asyncio.shield(self._lost)

    def crashed(self, crash: Crash) -> None:
        """Its pages are suspect. Who was in the step is told so, since one of them may be the
        cause; unless it only found another rank gone, which may have been killed."""
        if self._lost.done():
            return
        logger.error("%s gives itself up", self._name, exc_info=crash.error)
        if not isinstance(crash.error, ShardLost):
            why = f"{self._name} failed at a step of it"
            self._doors.fail(crash.computing, StepFailed.__name__, why)
        self._lost.set_exception(ShardLost(f"{self._name} failed: {crash.error!r}"))
        self._exit(f"{self._name} failed at a step of others")

    def adrift(self) -> None:
        """Nobody owns it, so nobody would ever end it."""
        logger.error("%s has no owner any more", self._name)
        self._exit(f"{self._name} has no owner")

    def keep_running(
        self,
        work: Coroutine[Any, Any, None],
        computing: Callable[[], tuple[str, ...]] = lambda: (),
    ) -> None:
        """Run what is endless; should it end, it has failed, and the shard with it. `computing` are
        the requests that may be the cause."""
        task = self._loop.create_task(work)
        task.add_done_callback(lambda task: self._ended(task, computing))
        self._tasks.add(task)

    def _ended(self, task: asyncio.Task[None], computing: Callable[[], tuple[str, ...]]) -> None:
        if not task.cancelled():
            error = task.exception() or RuntimeError(f"{task.get_coro()!r} has ended")
            self.crashed(Crash(error, computing()))

    def _exit(self, message: str) -> None:
        self._dismiss()
        self._doors.fail_all(Displaced.__name__, message)
        self._loop.call_later(self._moment_s, os._exit, 1)
