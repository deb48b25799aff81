"""The central actor: a loop, a clock and a mailbox for each router around `cluster.scheduling`."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from actors.door_watch import DoorWatch
from actors.identity import Identity, node_id
from actors.tether import Tether
from cluster.events import (
    Acknowledge,
    Ask,
    Audited,
    DoorGone,
    Event,
    Instruction,
    Reported,
    RouterGone,
    ShardGone,
    Submitted,
    Tell,
    Ticked,
    Withdrawn,
)
from cluster.explanations import Explanation, Forecast
from cluster.garbage import BRAIN, collect_seldom
from cluster.messages import Decision, DecisionBatch, Lease, ShardRef, Submission
from cluster.reports import ReportAck, ShardReport
from cluster.scheduling import SchedulerBrain
from cluster.scheduling_config import SchedulingConfig
from cluster.stats import ModelStats, SchedulerStats

IDLE_TICK_S = 0.5
"""How late the silence of a shard or a router may be noticed; deadlines, timeouts and the ends of
gathering windows have a timer of their own."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Mailbox:
    """Decisions that one router still has to fetch: `sent` is on its way, `fresh` comes after."""

    heard_at: float
    polls: int = 0
    fresh: list[Decision] = field(default_factory=list)
    sent: DecisionBatch | None = None
    number: int = 0
    arrival: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, decision: Decision) -> None:
        self.fresh.append(decision)
        self.arrival.set()

    def acknowledge(self, number: int) -> None:
        if self.sent is not None and self.sent.number == number:
            self.sent = None

    def take(self, epoch: int, acknowledged: int) -> DecisionBatch:
        """The unacknowledged batch again, else all that is fresh, else nothing.

        Numbers go on from the router's where those are ahead, as after a restart, and never come
        twice: a poll that the router gave up on must not number a batch so that it seems known.
        """
        self.number = max(self.number, acknowledged)
        if self.sent is None and self.fresh:
            self.number += 1
            self.sent = DecisionBatch(epoch, self.number, tuple(self.fresh))
            self.fresh = []
            self.arrival.clear()
        return self.sent or DecisionBatch(epoch, acknowledged, ())

    def undelivered(self) -> tuple[Decision, ...]:
        return (*(self.sent.decisions if self.sent else ()), *self.fresh)


class BatchScheduler:
    """Decides for the whole cluster; tokens never pass through it.

    Wrapped at launch as one named actor (`creation`), without concurrency groups: Ray gives each
    group a thread and an event loop of its own, while the brain is one and must see one event at a
    time. Control calls are not starved by the long polls all the same: there is one a router, far
    fewer than the actor's `max_concurrency`.

    `epoch` is larger in each life; `clock` gives seconds that never go back; `stamp` says what it
    is made from. It ends by itself after `tether_s` without its owner and without any router.
    """

    def __init__(
        self,
        config: SchedulingConfig,
        epoch: int,
        clock: Callable[[], float] = time.monotonic,
        stamp: str = "",
        tether_s: float = math.inf,
    ) -> None:
        collect_seldom(BRAIN)
        self._config = config
        self._epoch = epoch
        self._clock = clock
        self._brain = SchedulerBrain(config, epoch)
        self._mailboxes: dict[str, Mailbox] = {}
        self._timer: asyncio.Handle | None = None
        self._wakes_at = math.inf
        self._stamp = stamp
        self._tether = Tether(tether_s, partial(os._exit, 0))
        self._door_watch = DoorWatch(self._brain.doors, self._door_gone)

    def __repr__(self) -> str:
        return f"BatchScheduler(epoch={self._epoch})"

    async def submit(
        self, router: str, submissions: tuple[Submission, ...]
    ) -> tuple[Decision, ...]:
        """Those decided at once; the others come by `decisions` to the router they name."""
        self._mailbox(router)
        if any(one.door for one in submissions):
            self._door_watch.start()
        brought = [each for one in submissions for each in self._handle(Submitted(one))]
        told = [each for each in brought if isinstance(each, Tell)]
        # An arrival may close a window, and with it let requests of other routers be served.
        self._post([tell for tell in told if tell.router != router])
        return tuple(tell.decision for tell in told if tell.router == router)

    async def decisions(self, router: str, acknowledged: int) -> DecisionBatch:
        """Wait for decisions after batch `acknowledged` (0 at first), for a third of the
        `router_timeout_s` at most; then the batch is empty. Batch `acknowledged` is forgotten.
        """
        self._tether.hold()
        mailbox = self._mailbox(router)
        mailbox.acknowledge(acknowledged)
        mailbox.polls += 1
        try:
            if mailbox.sent is None:
                async with asyncio.timeout(self._config.router_timeout_s / 3):
                    await mailbox.arrival.wait()
        except TimeoutError:
            pass
        finally:
            mailbox.polls -= 1
            mailbox.heard_at = self._clock()
        return mailbox.take(self._epoch, acknowledged)

    async def withdraw(self, router: str, request_ids: tuple[str, ...]) -> None:
        """The router no longer waits for these, nor uses a lease of them."""
        self._mailbox(router)
        for request_id in request_ids:
            self._post(self._handle(Withdrawn(request_id, router)))

    async def audit(self, router: str, awaited: frozenset[str]) -> tuple[str, ...]:
        """Compare the queue with all that a router waits for; those that it has to submit again."""
        self._mailbox(router)
        instructions = self._handle(Audited(router, awaited))
        self._post(instructions)
        return tuple(each.request_id for each in instructions if isinstance(each, Ask))

    async def report(self, report: ShardReport) -> ReportAck:
        """Believe a shard; the acknowledgement says whether its next report has to be full."""
        instructions = self._handle(Reported(report))
        self._post(instructions)
        [ack] = [each.ack for each in instructions if isinstance(each, Acknowledge)]
        return ack

    async def shard_gone(self, shard: ShardRef) -> None:
        """To be called by whoever saw this life of the shard end, before it asks for another."""
        self._post(self._handle(ShardGone(shard)))

    async def explain(self, request_id: str) -> Explanation | None:
        """Why the request was last decided as it was; None where that is not remembered."""
        return self._brain.explain(request_id, self._clock())

    async def forecast(self, submission: Submission) -> Forecast:
        """What would become of it at this moment; nothing is changed by asking."""
        return self._brain.forecast(submission, self._clock())

    async def leases_on(self, shard: ShardRef) -> frozenset[str]:
        """The requests that hold a lease on this life of the shard, for its audit."""
        return self._brain.leases_on(shard)

    async def stats(self) -> SchedulerStats:
        return self._brain.stats()

    async def demand(self) -> dict[str, ModelStats]:
        """How full and how late each model is."""
        return self._brain.demand(self._clock())

    async def identity(self) -> Identity:
        return Identity(self._stamp, node=node_id())

    async def ping(self) -> int:
        """Answers with the epoch as soon as the loop turns."""
        self._tether.hold()
        return self._epoch

    async def watch(self) -> None:
        """Never returns: whoever awaits it learns of this actor's death the moment it happens."""
        await asyncio.Event().wait()

    async def verify(self) -> None:
        """Raises LedgerBroken where the books do not add up; slow, for tests and idle times."""
        self._brain.verify()

    def tick(self) -> None:
        """What only time brings about: timeouts, deadlines, silent shards and routers."""
        self._post(self._handle(Ticked()))
        silent_since = self._clock() - self._config.router_timeout_s
        for router, mailbox in list(self._mailboxes.items()):
            if not mailbox.polls and mailbox.heard_at <= silent_since:
                self._give_up(router)

    def _give_up(self, router: str) -> None:
        """Nobody will fetch what this router was granted, so others may have it."""
        undelivered = self._mailboxes.pop(router).undelivered()
        leases = [each.request_id for each in undelivered if isinstance(each, Lease)]
        logger.warning("%s: router %s is silent, %d leases go back", self, router, len(leases))
        self._post(self._handle(RouterGone(router)))
        for request_id in leases:
            self._post(self._handle(Withdrawn(request_id)))

    def _door_gone(self, door: str) -> None:
        self._post(self._handle(DoorGone(door)))

    def _handle(self, event: Event) -> tuple[Instruction, ...]:
        """The only way to the brain. The timer starts with the first event, inside the loop."""
        now = self._clock()
        instructions = self._brain.handle(event, now)
        self._set_timer(self._brain.wake_at() - now)
        return instructions

    def _set_timer(self, due_s: float) -> None:
        """Wake after `due_s` at the latest; an earlier timer stays, and sets the next itself.

        When it is due is kept here: uvloop, which Ray's actors run on, makes of a timer that is due
        at once a handle that does not know.
        """
        loop = asyncio.get_running_loop()
        at = loop.time() + min(max(due_s, 0.0), IDLE_TICK_S)
        if at < self._wakes_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._wakes_at = loop.call_at(at, self._wake), at

    def _wake(self) -> None:
        self._timer, self._wakes_at = None, math.inf
        try:
            self.tick()
        except Exception:  # without timers nothing would expire, and no lost shard be noticed
            logger.exception("%s: a tick failed", self)
            self._set_timer(IDLE_TICK_S)

    def _post(self, instructions: Iterable[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, Tell):
                self._mailbox_of(each.router).put(each.decision)

    def _mailbox(self, router: str) -> Mailbox:
        """Of a router that is calling right now."""
        mailbox = self._mailbox_of(router)
        mailbox.heard_at = self._clock()
        return mailbox

    def _mailbox_of(self, router: str) -> Mailbox:
        if router not in self._mailboxes:
            self._mailboxes[router] = Mailbox(self._clock())
        return self._mailboxes[router]
