"""The router's side of the central scheduler: submissions out, decisions back, across its restarts.

Submissions of one moment travel as one message: while one call is away, the next ones gather.
Those decided later come back over one long poll. Submits are idempotent by request id, so after a
scheduler's death everything still waiting is simply submitted again to the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError

from cluster.errors import SchedulerLost
from cluster.messages import Decision, SchedulerStats, Submission

log = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_S = 0.1
"""Between two look-ups of a scheduler that is away; its replacement takes about a second."""


class SchedulerClient:
    """One router's connection to the scheduler actor named `actor` in `namespace`.

    A request is given up with SchedulerLost when no scheduler could be reached for `patience_s`.
    """

    def __init__(self, router: str, actor: str, namespace: str, patience_s: float = 30.0) -> None:
        self._router = router
        self._actor = actor
        self._namespace = namespace
        self._patience_s = patience_s
        self._handle: Any = None
        self._waiting: dict[str, tuple[Submission, asyncio.Future[Decision]]] = {}
        self._outbox: list[Submission] = []
        self._pending = asyncio.Event()
        self._acknowledged = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def place(self, submission: Submission) -> Decision:
        """The scheduler's decision on `submission`, however long it queues there."""
        self._start()
        entry = self._waiting.get(submission.request_id)
        if entry is None:
            entry = (submission, asyncio.get_running_loop().create_future())
            self._waiting[submission.request_id] = entry
            self._post([submission])
        try:
            return await asyncio.shield(entry[1])
        finally:
            self._waiting.pop(submission.request_id, None)

    async def withdraw(self, request_id: str) -> None:
        """Take the request back: out of the queue, or its lease if it just got one."""
        entry = self._waiting.pop(request_id, None)
        if entry is not None:
            entry[1].cancel()
        await self._call(lambda scheduler: scheduler.withdraw.remote(self._router, (request_id,)))

    async def stats(self) -> SchedulerStats:
        """The scheduler's books at this moment."""
        return await self._call(lambda scheduler: scheduler.stats.remote())

    async def close(self) -> None:
        """End the two loops; what still waits is left to its callers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _start(self) -> None:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._send_loop(), name="submissions"),
                asyncio.create_task(self._receive_loop(), name="decisions"),
            ]

    def _post(self, submissions: list[Submission]) -> None:
        self._outbox.extend(submissions)
        if self._outbox:
            self._pending.set()

    async def _send_loop(self) -> None:
        while True:
            await self._pending.wait()
            self._pending.clear()
            batch = tuple(s for s in self._outbox if s.request_id in self._waiting)
            self._outbox.clear()
            if batch:
                await self._send(batch)

    async def _send(self, batch: tuple[Submission, ...]) -> None:
        try:
            decided = await self._call(lambda s: s.submit.remote(self._router, batch))
        except SchedulerLost as error:
            self._give_up(batch, error)
        else:
            self._settle(decided)

    async def _receive_loop(self) -> None:
        while True:
            try:
                scheduler = await self._scheduler()
                batch = await scheduler.decisions.remote(self._router, self._acknowledged)
            except (RayActorError, SchedulerLost):
                self._forget_scheduler()
                await asyncio.sleep(RETRY_S)
                self._post([submission for submission, _ in self._waiting.values()])
            else:
                self._acknowledged = batch.number
                self._settle(batch.decisions)

    def _settle(self, decisions: tuple[Decision, ...]) -> None:
        for decision in decisions:
            entry = self._waiting.get(decision.request_id)
            if entry is not None and not entry[1].done():
                entry[1].set_result(decision)

    def _give_up(self, batch: tuple[Submission, ...], error: SchedulerLost) -> None:
        for submission in batch:
            entry = self._waiting.get(submission.request_id)
            if entry is not None and not entry[1].done():
                entry[1].set_exception(error)

    async def _call(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """`call` on the living scheduler, again on the next one if it dies meanwhile."""
        deadline = asyncio.get_running_loop().time() + self._patience_s
        while True:
            try:
                return await call(await self._scheduler())
            except (RayActorError, SchedulerLost) as error:
                self._forget_scheduler()
                if asyncio.get_running_loop().time() >= deadline:
                    raise SchedulerLost(
                        f"no scheduler answered for {self._patience_s:.0f} s ({error})"
                    ) from error
            await asyncio.sleep(RETRY_S)

    async def _scheduler(self) -> Any:
        if self._handle is None:
            self._handle = await asyncio.to_thread(self._look_up)
        return self._handle

    def _look_up(self) -> Any:
        try:
            return ray.get_actor(self._actor, namespace=self._namespace)
        except ValueError as error:  # Ray's word for "no actor of that name"
            raise SchedulerLost(f"no actor {self._actor!r} in {self._namespace!r}") from error

    def _forget_scheduler(self) -> None:
        self._handle = None
        self._acknowledged = 0
