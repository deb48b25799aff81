"""The KV-cache shard as an actor: an engine on its own thread, and the doors that listen to it.

Everything but the engine lives on one event loop, so nothing here needs a lock. Ray would give
methods of another concurrency group a loop and a thread of their own; instead all share one group
that is too wide to fill, as a door has only one long poll out and control calls are short.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict

from actors.bookkeeping import Bookkeeping, no_record
from actors.departure import Departure
from actors.devices.assignment import assigned_ids
from actors.devices.berth import assigned_berth
from actors.devices.health import watch_devices
from actors.doors import Doors
from actors.engine_building import build_engine
from actors.engine_thread import EngineThread, Outcome
from actors.followers import Followers
from actors.hand_over import Intake
from actors.identity import Identity, Pulse, node_id
from actors.last_words import LastWords
from actors.parcels import Layout, Parcel
from actors.shard_spec import ShardSpec
from actors.tasks import on_loop
from actors.tether import Tether
from actors.threads import Threads
from cluster.audit import Discrepancy
from cluster.errors import Displaced, ShardLost, StaleLease
from cluster.messages import Assignment, DeltaBatch, PageHash, RequestFailed
from cluster.reports import ShardCapacity
from cluster.stats import ShardStats


class KVShard:
    """One pool of KV pages, the model that fills it, and a mailbox for each door.

    `load` first. A shard whose engine fails says so to its doors and to `watch`, then exits.
    """

    def __init__(self, spec: ShardSpec) -> None:
        self._spec = spec
        self._followers = Followers(spec)
        self._loop = asyncio.get_running_loop()
        self._doors = Doors(spec.timing.door_timeout_s, spec.timing.max_backlog)
        self._last_words = LastWords(
            spec.ref.shard, self._doors, spec.timing.last_words_s, self._dismiss
        )
        self._engine = EngineThread(
            lambda: build_engine(spec, self._threads.count, self._followers.meeting),
            publish=on_loop(self._loop, self._on_outcome),
            crashed=on_loop(self._loop, self._last_words.crashed),
        )
        self._intake = Intake(spec.model, spec.namespace, self._engine)
        self._departure = Departure(spec, self._doors, self._intake)
        self._threads = Threads(spec.threads, self._engine.use_threads)
        self._loading: asyncio.Task[ShardCapacity] | None = None
        self._tether = Tether(spec.tether_s, self._last_words.adrift)
        self._introduced = asyncio.Event()
        self._books: Bookkeeping | None = None
        self._latest: Outcome | None = None

    def __repr__(self) -> str:
        index = self._spec.ref.shard.rpartition("-")[2]
        gpus = f"gpu x{self._spec.gpus:g}" if self._spec.gpus else f"cpu x{self._threads.count}"
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
        spec, binding = self._spec, self._spec.model.resources.binding
        devices = self._followers.gather(assigned_ids(), self._threads.wanted)
        berth = assigned_berth(binding, devices, spec.claims, spec.devices)
        self._threads.moor(berth)
        self._engine.start()
        capacity = await self._followers.beside(asyncio.wrap_future(self._engine.capacity))
        if self._followers:
            self._last_words.keep_running(self._followers.watch(), self._engine.computing)
        self._books = Bookkeeping(
            spec, capacity, self._doors, self._engine, self._intake, self._on_heard
        )
        for loop in self._books.loops():
            self._last_words.keep_running(loop)
        self._last_words.keep_running(self._sweep_doors())
        self._last_words.keep_running(self._threads.run(spec.timing.settle_s))
        if berth.devices:
            self._last_words.keep_running(watch_devices(berth.devices, spec.timing.device_s))
        return capacity

    async def introduced(self) -> None:
        """Wait until a scheduler knows of the shard."""
        await self._introduced.wait()

    async def identity(self) -> Identity:
        spec, loaded = self._spec, self._books is not None
        whereabouts = node_id(), os.getpid(), spec.devices
        return Identity(spec.stamp, spec.ref, loaded, self._departure.begun, *whereabouts)

    async def ping(self) -> Pulse:
        self._tether.hold()
        return Pulse(self._engine.turns, self._engine.busy)

    async def watch(self) -> None:
        """Never returns. Raises ShardLost where the shard gives itself up, with the reason."""
        await self._last_words.wait()

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
                self._intake.admit(assignment)

    async def cancel(self, door: str, cancels: tuple[tuple[str, int | None], ...]) -> None:
        """End one choice (None: all) of each request, where it is the door's and still lives."""
        for request_id, choice in cancels:
            if self._doors.owns(door, request_id):
                self._intake.cancel(request_id, choice)
                if choice is None:
                    self._doors.leave((request_id,))

    async def wants(self, door: str, request_ids: tuple[str, ...]) -> None:
        """All that `door` still waits for. What it has twice left out is ended; of what is twice
        not here it is told so."""
        unwanted, unknown = self._doors.compare(door, frozenset(request_ids))
        await self.cancel(door, tuple((request_id, None) for request_id in unwanted))
        for request_id in unknown:
            failure = RequestFailed(request_id, Displaced.__name__, no_record(self._spec.ref))
            self._doors.refuse(door, failure, self._loop.time())
        if self._books is not None:
            self._books.count(Discrepancy.UNWANTED, len(unwanted))
            self._books.count(Discrepancy.UNKNOWN, len(unknown))

    async def deltas(self, door: str, acknowledged: int) -> DeltaBatch:
        """Long poll: all that came for `door` since batch `acknowledged`, or that batch again.

        After `poll_wait_s` without news the answer is empty and carries the number `acknowledged`.
        Raises ShardLost where the door was silent for too long and has been forgotten.
        """
        return await self._doors.poll(door, acknowledged, self._spec.timing.poll_wait_s)

    async def pages(self, life: str, layout: Layout, hashes: tuple[PageHash, ...]) -> Parcel:
        """Those of these pages that are here; none in another layout, nor of another life."""
        return await self._intake.give(layout, hashes if life == self._spec.ref.incarnation else ())

    async def handed_over(self, life: str, request_ids: tuple[str, ...]) -> None:
        """Other shards have what they want of these requests, which were let go in that life."""
        if life == self._spec.ref.incarnation:
            self._departure.farewell.settle(request_ids)

    async def drain(
        self, stuck: bool = False, limit_s: float = 0.0, hand_over_s: float = 0.0
    ) -> None:
        """Take no more, finish what ends within `limit_s`, and let the rest go to other shards;
        returns once all doors know, and those shards have its pages or `hand_over_s` are over.

        Asked again, it is the same leave. Where it is `stuck`, who is in its step is told so.
        """
        if stuck:
            await self._departure.break_off(self._books, self._engine.computing())
        else:
            await self._departure.leave(self._books, limit_s, hand_over_s)
        await self._dismiss()

    async def use_threads(self, count: int) -> None:
        """Compute with `count` threads a rank, or as many as find CPUs, from the next step on."""
        self._followers.use_threads(count)
        self._threads.want(count)

    async def stats(self) -> ShardStats:
        """The books as of the last turn. Call after `load`."""
        binding = self._threads.binding
        if self._latest is None or binding is None:
            raise ShardLost("the engine has not made its first turn")
        engine = asdict(self._latest.stats)
        return ShardStats(
            shard=self._spec.ref,
            doors=len(self._doors),
            threads=self._threads.count,
            binding=binding,
            hand_over=self._intake.stats(),
            mended=dict(self._books.mended) if self._books else {},
            **engine,
        )

    async def verify(self) -> None:
        """Raises LedgerBroken unless the engine's and the doors' books add up."""
        self._doors.verify()
        self._intake.verify(self._doors.requests())
        await asyncio.wrap_future(self._engine.ask(lambda engine: engine.verify()))

    def _dismiss(self) -> asyncio.Future[None]:
        """End what must not outlive the shard: its followers, and its files, with time."""
        self._followers.dismiss()
        return self._loop.run_in_executor(None, self._engine.remove_files)

    def _refusal(self, assignment: Assignment) -> tuple[str, str] | None:
        if assignment.lease.shard.incarnation != self._spec.ref.incarnation:
            return StaleLease.__name__, f"{self._spec.ref.shard} was replaced since the lease"
        if self._departure.begun or self._last_words.are_said:
            return Displaced.__name__, f"{self._spec.ref.shard} is about to exit"
        return None

    def _on_outcome(self, outcome: Outcome) -> None:
        self._latest = outcome
        self._intake.enter(outcome)
        self._doors.deliver(outcome.deltas)
        self._doors.leave(outcome.progress.ended)
        if self._books is not None:
            self._books.enter(outcome)

    def _on_heard(self) -> None:
        """A scheduler lives, and knows of the shard, so somebody may want it."""
        self._introduced.set()
        self._tether.hold()

    async def _sweep_doors(self) -> None:
        while True:
            await asyncio.sleep(self._spec.timing.door_timeout_s / 4)
            for request_id in self._doors.sweep(self._loop.time()):
                self._intake.cancel(request_id, None)
