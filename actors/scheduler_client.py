"""The router's side of the central scheduler: submissions out, decisions back, across its lives.

Submissions of one moment travel as one message: while one call is away, the next ones gather.
Those decided later come back over one long poll. Submits are idempotent by request id, so whatever
still waits when a scheduler died is simply submitted again to the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ray.exceptions import RayActorError, RayError

from actors.naming import SCHEDULER, ActorAddress
from actors.tasks import cancel_all, first_to_end
from cluster.errors import NotReady, SchedulerLost
from cluster.explanations import Explanation, Forecast
from cluster.messages import Decision, DecisionBatch, Submission
from cluster.stats import SchedulerStats

T = TypeVar("T")

logger = logging.getLogger(__name__)

RETRY_S = 0.1
"""Between two looks for a scheduler that is away; its replacement takes about a second."""

AWAY = (RayActorError, NotReady)
"""What calling, or looking up, a scheduler that is away raises."""


class SchedulerClient:
    """The connection of `router` to the scheduler actor of `namespace`.

    Raises SchedulerLost where no scheduler could be reached for `patience_s`, and to all who wait
    where one fails at a call: its books are not to be trusted with asking again. After `silence_s`
    without an answer the scheduler may have given us up, and what waits is posted again. Every
    `audit_s` the scheduler is told all that waits here: what either side lost is mended.
    """

    def __init__(
        self,
        router: str,
        namespace: str,
        patience_s: float = 30.0,
        silence_s: float = 10.0,
        audit_s: float = 30.0,
    ) -> None:
        self._silence_s = silence_s
        self._audit_s = audit_s
        self._router = router
        self._address = ActorAddress(SCHEDULER, namespace)
        self._patience_s = patience_s
        self._handle: Any = None
        self._waiting: dict[str, _Waiting] = {}
        self._outbox: list[Submission] = []
        self._in_flight: set[str] = set()
        self._abandoned: set[str] = set()
        self._posted = asyncio.Event()
        self._epoch = 0
        self._heard_at = 0.0
        self._acknowledged = 0
        self._running: asyncio.Task[None] | None = None

    async def place(self, submission: Submission) -> Decision:
        """The scheduler's decision on `submission`, however long it queues there."""
        self._start()
        waiting = self._waiting.get(submission.request_id)
        if waiting is None:
            waiting = self._waiting[submission.request_id] = _Waiting(submission)
            self._post([submission])
        try:
            return await asyncio.shield(waiting.decision)
        except asyncio.CancelledError:
            self._abandoned |= self._in_flight & {submission.request_id}
            raise
        finally:
            self._waiting.pop(submission.request_id, None)

    async def withdraw(self, request_id: str) -> None:
        """Take the request out of the queue, or give back the lease it got."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            waiting.decision.cancel()
        await self._call(lambda scheduler: scheduler.withdraw.remote(self._router, (request_id,)))

    async def stats(self) -> SchedulerStats:
        """The scheduler's books at this moment."""
        return await self._call(lambda scheduler: scheduler.stats.remote())

    async def explain(self, request_id: str) -> Explanation | None:
        """Why the request was last decided as it was; None where that is not remembered."""
        return await self._call(lambda scheduler: scheduler.explain.remote(request_id))

    async def forecast(self, submission: Submission) -> Forecast:
        """What would become of it at this moment."""
        return await self._call(lambda scheduler: scheduler.forecast.remote(submission))

    async def close(self) -> None:
        """Whoever waits is told SchedulerLost; no task is left."""
        if self._running is not None:
            await cancel_all(self._running)

    def _start(self) -> None:
        """Connect with the first submission, and anew with the first after a failure."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        reason = "the connection to the scheduler was closed"
        try:
            await first_to_end(self._send(), self._receive(), self._audit())
        except RayError:
            reason = "the scheduler failed; the log has the reason"
            logger.exception("router %s: the scheduler failed at a call", self._router)
        finally:
            for request_id in tuple(self._waiting):
                self._settle(request_id, SchedulerLost(reason))

    def _post(self, submissions: list[Submission]) -> None:
        self._outbox.extend(submissions)
        self._posted.set()

    async def _send(self) -> None:
        while True:
            await self._posted.wait()
            self._posted.clear()
            posted, self._outbox = self._outbox, []
            batch = tuple(one for one in posted if one.request_id in self._waiting)
            if batch:
                await self._submit(batch)

    async def _submit(self, batch: tuple[Submission, ...]) -> None:
        self._in_flight = {submission.request_id for submission in batch}
        try:
            decided = await self._call(lambda s: s.submit.remote(self._router, batch))
        except SchedulerLost as error:
            for submission in batch:
                self._settle(submission.request_id, error)
        else:
            self._settle_all(decided)
            await self._withdraw_abandoned()
        finally:
            self._in_flight, self._abandoned = set(), set()

    async def _withdraw_abandoned(self) -> None:
        """Ray keeps no order of calls: a withdrawal may have overtaken the submission it meant."""
        if self._abandoned:
            gone = tuple(self._abandoned)
            with contextlib.suppress(SchedulerLost):  # its leases went with it
                await self._call(lambda scheduler: scheduler.withdraw.remote(self._router, gone))

    async def _receive(self) -> None:
        """Decisions as they come; what waits is posted again when its scheduler is gone."""
        while True:
            try:
                batch = await self._next_decisions()
            except AWAY:
                self._handle = None
                await asyncio.sleep(RETRY_S)
                continue
            self._settle_all(batch.decisions)
            now = asyncio.get_running_loop().time()
            if batch.epoch != self._epoch or now - self._heard_at > self._silence_s:
                self._post([waiting.submission for waiting in self._waiting.values()])
            self._epoch, self._acknowledged, self._heard_at = batch.epoch, batch.number, now

    async def _audit(self) -> None:
        """One that fails is not repeated: it may have been done, and looks need time between."""
        while True:
            await asyncio.sleep(self._audit_s)
            try:
                lost = await self._look()
            except AWAY:
                self._handle = None
            else:
                self._post([self._waiting[one].submission for one in lost if one in self._waiting])

    async def _look(self) -> tuple[str, ...]:
        """What waits here and is not known there; told as it is when the message leaves."""
        scheduler = await self._scheduler()
        awaited = frozenset(self._waiting)
        lost: tuple[str, ...] = await scheduler.audit.remote(self._router, awaited)
        return lost

    async def _next_decisions(self) -> DecisionBatch:
        scheduler = await self._scheduler()
        batch: DecisionBatch = await scheduler.decisions.remote(self._router, self._acknowledged)
        return batch

    def _settle_all(self, decisions: tuple[Decision, ...]) -> None:
        for decision in decisions:
            self._settle(decision.request_id, decision)

    def _settle(self, request_id: str, outcome: Decision | SchedulerLost) -> None:
        waiting = self._waiting.get(request_id)
        if waiting is None or waiting.decision.done():
            return
        if isinstance(outcome, SchedulerLost):
            waiting.decision.set_exception(outcome)
        else:
            waiting.decision.set_result(outcome)

    async def _call(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """`call` on the living scheduler, or on the next one where it died."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._patience_s
        while True:
            try:
                return await call(await self._scheduler())
            except AWAY as error:
                self._handle = None
                if clock() > deadline:
                    message = f"no scheduler answered for {self._patience_s:.0f} s: {error}"
                    raise SchedulerLost(message) from error
            await asyncio.sleep(RETRY_S)

    async def _scheduler(self) -> Any:
        if self._handle is None:
            self._handle = await self._address.look_up()
        return self._handle


class _Waiting:
    """A submission, and the decision somebody waits for."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.decision: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
