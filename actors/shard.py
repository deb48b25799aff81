"""The KV-cache shard as an actor: an engine on its own thread, and the doors that listen to it.

Everything but the engine lives on one event loop, so nothing here needs a lock. Ray would give
methods of another concurrency group a loop and a thread of their own; instead all share one group
that is too wide to fill, as a door has only one long poll out and control calls are short.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any, TypeVar

from actors.devices.assignment import assigned_ids
from actors.devices.berth import Berth, assigned_berth
from actors.devices.health import watch_devices
from actors.doors import Doors
from actors.engine_building import build_engine
from actors.engine_thread import Crash, EngineThread, Outcome
from actors.identity import Identity, Pulse, node_id
from actors.naming import SCHEDULER, ActorAddress
from actors.reporting import Reporter, ReportLedger
from actors.shard_audit import Ledgers, ShardAudit
from actors.shard_spec import ShardSpec
from actors.tether import Tether
from cluster.audit import Discrepancy
from cluster.errors import Displaced, ShardLost, StaleLease, StepFailed
from cluster.messages import Assignment, DeltaBatch, RequestFailed
from cluster.reports import ShardCapacity
from cluster.stats import ShardStats

T = TypeVar("T")

logger = logging.getLogger(__name__)


class KVShard:
    """One pool of KV pages, the model that fills it, and a mailbox for each door.

    `load` first. A shard whose engine fails says so to its doors and to `watch`, then exits.
    """

    def __init__(self, spec: ShardSpec) -> None:
        self._spec = spec
        self._wanted_threads = self._threads = spec.threads
        self._berth: Berth | None = None
        self._loop = asyncio.get_running_loop()
        self._doors = Doors(spec.timing.door_timeout_s, spec.timing.max_backlog)
        self._engine = EngineThread(
            lambda: build_engine(spec.model, spec.on_gpu, self._threads),
            publish=self._from_thread(self._on_outcome),
            crashed=self._from_thread(self._on_crash),
        )
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._loading: asyncio.Task[ShardCapacity] | None = None
        self._tether = Tether(spec.tether_s, self._adrift)
        self._introduced = asyncio.Event()
        self._draining = False
        self._reporter: Reporter | None = None
        self._audit: ShardAudit | None = None
        self._latest: Outcome | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        index = self._spec.ref.shard.rpartition("-")[2]
        gpus = f"gpu x{self._spec.gpus:g}" if self._spec.gpus else f"cpu x{self._threads}"
        device = ", ".join(self._spec.devices) or gpus
        return f"KVShard({self._spec.ref.model}/{index}, {device})"

    async def load(self) -> ShardCapacity:
        """Build the engine and report to the scheduler from then on; asked again, it is the same.

        Raises OperatorError where configuration, devices, weights or memory do not allow it.
        """
        if self._loading is None:
            self._loading = self._loop.create_task(self._load())
        return await asyncio.shield(self._loading)

    async def _load(self) -> ShardCapacity:
        # First: threads inherit the binding of who starts them, and pages stay where they were put.
        binding = self._spec.model.resources.binding
        devices, claims = self._spec.devices, self._spec.claims
        self._berth = assigned_berth(binding, assigned_ids(), claims, devices)
        self._settle()
        self._engine.start()
        capacity = await asyncio.wrap_future(self._engine.capacity)
        scheduler = ActorAddress(SCHEDULER, self._spec.namespace)
        self._reporter = Reporter(
            ReportLedger(self._spec.ref, capacity),
            scheduler,
            self._engine.ask_snapshot,
            self._spec.timing.reports,
            self._on_heard,
        )
        self._audit = ShardAudit(self._spec.ref, scheduler, self._ledgers(self._reporter))
        self._keep_running(self._reporter.run())
        self._keep_running(self._audit.run(self._spec.timing.audit_s))
        self._keep_running(self._sweep_doors())
        self._keep_running(self._settle_again())
        if self._berth.devices:
            self._keep_running(watch_devices(self._berth.devices, self._spec.timing.device_s))
        return capacity

    async def introduced(self) -> None:
        """Wait until a scheduler knows of the shard."""
        await self._introduced.wait()

    async def identity(self) -> Identity:
        loaded = self._reporter is not None
        spec = self._spec
        whereabouts = node_id(), os.getpid(), spec.devices
        return Identity(spec.stamp, spec.ref, loaded, self._draining, *whereabouts)

    async def ping(self) -> Pulse:
        self._tether.hold()
        return Pulse(self._engine.turns, self._engine.busy)

    async def watch(self) -> None:
        """Never returns. Raises ShardLost where the shard gives itself up, with the reason."""
        await asyncio.shield(self._lost)

    async def assign(self, door: str, assignments: tuple[Assignment, ...]) -> None:
        """Take requests in for `door`; one that it has sent before changes nothing.

        What cannot be taken in is answered with a RequestFailed among the door's deltas.
        """
        for assignment in assignments:
            request_id = assignment.request.request_id
            refusal = self._refusal(assignment)
            if refusal is not None:
                kind, message = refusal
                failure = RequestFailed(request_id, kind, message)
                self._doors.refuse(door, failure, self._loop.time())
            elif self._doors.enter(door, request_id, self._loop.time()):
                self._engine.admit(assignment)

    async def cancel(self, door: str, cancels: tuple[tuple[str, int | None], ...]) -> None:
        """End one choice (None: all) of each request, where it is the door's and still lives."""
        for request_id, choice in cancels:
            if self._doors.owns(door, request_id):
                self._engine.cancel(request_id, choice)
                if choice is None:
                    self._doors.leave((request_id,))

    async def wants(self, door: str, request_ids: tuple[str, ...]) -> None:
        """All that `door` still waits for. What it has twice left out is ended; of what is twice
        not here it is told so."""
        unwanted, unknown = self._doors.compare(door, frozenset(request_ids))
        await self.cancel(door, tuple((request_id, None) for request_id in unwanted))
        for request_id in unknown:
            failure = RequestFailed(request_id, Displaced.__name__, self._no_record())
            self._doors.refuse(door, failure, self._loop.time())
        if self._audit is not None:
            self._audit.count(Discrepancy.UNWANTED, len(unwanted))
            self._audit.count(Discrepancy.UNKNOWN, len(unknown))

    async def deltas(self, door: str, acknowledged: int) -> DeltaBatch:
        """Long poll: all that came for `door` since batch `acknowledged`, or that batch again.

        After `poll_wait_s` without news the answer is empty and carries the number `acknowledged`.
        Raises ShardLost where the door was silent for too long and has been forgotten.
        """
        return await self._doors.poll(door, acknowledged, self._spec.timing.poll_wait_s)

    async def drain(self, stuck: bool = False, limit_s: float = 0.0) -> None:
        """Take no more, finish what ends within `limit_s`, and let the rest go to other shards;
        returns once all doors know.

        Where it is `stuck`, its step will never end, and who is in it is told so.
        """
        self._draining = True
        name = self._spec.ref.shard
        if self._reporter is not None:
            self._reporter.leave()
        await self._doors.idle(limit_s)
        if stuck:
            self._doors.fail(self._engine.computing(), StepFailed.__name__, f"{name} is stuck")
        self._doors.fail_all(Displaced.__name__, f"{name} is drained")
        await self._doors.heard()

    async def use_threads(self, count: int) -> None:
        """Compute with `count` CPU threads from the next step on, or with as many as it finds CPUs
        of its own."""
        self._wanted_threads = count
        self._settle()

    async def stats(self) -> ShardStats:
        """The books as of the last turn. Call after `load`."""
        if self._latest is None or self._berth is None:
            raise ShardLost("the engine has not made its first turn")
        engine = asdict(self._latest.stats)
        return ShardStats(
            shard=self._spec.ref,
            doors=len(self._doors),
            threads=self._threads,
            binding=self._berth.binding,
            mended=dict(self._audit.mended) if self._audit else {},
            **engine,
        )

    async def verify(self) -> None:
        """Raises LedgerBroken unless the engine's and the doors' books add up."""
        self._doors.verify()
        await asyncio.wrap_future(self._engine.verify())

    def _refusal(self, assignment: Assignment) -> tuple[str, str] | None:
        if assignment.lease.shard.incarnation != self._spec.ref.incarnation:
            return StaleLease.__name__, f"{self._spec.ref.shard} was replaced since the lease"
        if self._draining or self._lost.done():
            return Displaced.__name__, f"{self._spec.ref.shard} is about to exit"
        return None

    def _on_outcome(self, outcome: Outcome) -> None:
        self._latest = outcome
        self._doors.deliver(outcome.deltas)
        self._doors.leave(outcome.progress.ended)
        if self._reporter is not None:
            self._reporter.enter(outcome)
        if self._audit is not None and outcome.snapshot is not None:
            self._audit.enter(frozenset(one.request_id for one in outcome.snapshot.held))

    def _on_heard(self) -> None:
        """A scheduler lives, and knows of the shard, so somebody may want it."""
        self._introduced.set()
        self._tether.hold()

    def _ledgers(self, reporter: Reporter) -> Ledgers:
        kind = Displaced.__name__
        return Ledgers(
            at_doors=self._doors.requests,
            ask_engine=self._engine.ask_snapshot,
            end=lambda request_id: self._engine.cancel(request_id, None),
            tell_doors=lambda request_ids: self._doors.fail(request_ids, kind, self._no_record()),
            report_in_full=reporter.resync,
        )

    def _no_record(self) -> str:
        return f"{self._spec.ref.shard} has no record of it any more"

    def _on_crash(self, crash: Crash) -> None:
        """Say it to all who wait, leave them a moment to hear it, and go: the pages are suspect.

        Who was in the step is told so, since one of them may be the cause.
        """
        if self._lost.done():
            return
        logger.error("%r gives itself up", self, exc_info=crash.error)
        name = self._spec.ref.shard
        self._doors.fail(crash.computing, StepFailed.__name__, f"{name} failed at a step of it")
        self._doors.fail_all(Displaced.__name__, f"{name} failed at a step of others")
        self._lost.set_exception(ShardLost(f"{name} failed: {crash.error!r}"))
        self._loop.call_later(self._spec.timing.last_words_s, os._exit, 1)

    def _adrift(self) -> None:
        """Nobody owns it, so nobody would ever end it."""
        logger.error("%r has no owner any more", self)
        self._doors.fail_all(Displaced.__name__, f"{self._spec.ref.shard} has no owner")
        self._loop.call_later(self._spec.timing.last_words_s, os._exit, 1)

    async def _sweep_doors(self) -> None:
        while True:
            await asyncio.sleep(self._spec.timing.door_timeout_s / 4)
            for request_id in self._doors.sweep(self._loop.time()):
                self._engine.cancel(request_id, None)

    async def _settle_again(self) -> None:
        """A neighbour that leaves, or narrows, makes room later than we are told to take it."""
        while True:
            await asyncio.sleep(self._spec.timing.settle_s)
            self._settle()

    def _settle(self) -> None:
        """Before it is loaded, a shard only remembers how many threads it is to have."""
        if self._berth is None:
            return
        threads = self._berth.settle(self._wanted_threads)
        if threads != self._threads:
            self._threads = threads
            self._engine.use_threads(threads)

    def _keep_running(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        task.add_done_callback(self._on_task_end)
        self._tasks.add(task)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        """The tasks are endless, so one that ended has failed, and the shard with it."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_crash(Crash(error))

    def _from_thread(self, method: Callable[[T], None]) -> Callable[[T], None]:
        """The method, to be called on another thread and run on the loop."""

        def call(argument: T) -> None:
            self._loop.call_soon_threadsafe(method, argument)

        return call
