"""Shards that are real planners on modelled devices, and die when told: a cluster for doors.

Everything happens on the test's event loop, in an order that depends on nothing but the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from actors.token_stream import TokenStream
from cluster.batching import Batcher
from cluster.batching_config import BatchingConfig
from cluster.blocks import BlockPool
from cluster.config import CacheConfig, ModelConfig, ShoalConfig
from cluster.errors import Displaced, ShardLost, StepFailed
from cluster.fleet_config import FailoverConfig
from cluster.messages import (
    Assignment,
    Decision,
    Lease,
    Reason,
    RequestFailed,
    ShardRef,
    Submission,
)
from cluster.steps import StepPlan
from deployments.door import Door
from tests.cluster.paged_memory import PagedMemory

MAX_MODEL_LEN = 64
MODEL = ModelConfig(name="toy", cache=CacheConfig(block_size=4))

Poisons = Callable[[StepPlan], bool]
"""Whether a step ends its shard."""


class ToyShard:
    """One life of a shard, with its own streams."""

    def __init__(self, ref: ShardRef) -> None:
        self.ref = ref
        self.pool = BlockPool(256, MODEL.cache.block_size, prefix_caching=True)
        config = BatchingConfig(max_num_seqs=16, max_batch_tokens=64)
        self.batcher = Batcher(self.pool, config, MAX_MODEL_LEN)
        self.memory = PagedMemory(MODEL.cache.block_size)
        self.streams: dict[str, TokenStream] = {}
        self.held: dict[str, Assignment] = {}

    def admit(self, request_id: str) -> None:
        assignment = self.held.pop(request_id, None)
        if assignment is not None:
            self.batcher.admit(assignment)

    def tell(self, request_id: str, kind: str) -> None:
        self.streams.pop(request_id).put(RequestFailed(request_id, kind, f"{self.ref.shard} died"))


class ToyCluster:
    """Leases by turns, and `size` shards; one that dies is replaced at once.

    A step that `poisons` ends its shard, `speaking` of who was in it or in silence.
    """

    def __init__(self, size: int, poisons: Poisons, *, speaking: bool = True) -> None:
        self.deaths = 0
        self._poisons = poisons
        self._speaking = speaking
        self._lives = count()
        self._turns = count()
        self._shards = [self._born(index) for index in range(size)]
        quick = FailoverConfig(first_delay_s=1e-6, longest_delay_s=1e-6, watch_s=1e-6)
        config = ShoalConfig(models=(MODEL,), failover=quick)
        self.door = Door(self, self, config, uniform=lambda: 0.0)

    async def place(self, submission: Submission) -> Decision:
        shard = self._shards[next(self._turns) % len(self._shards)]
        return Lease(submission.request_id, 1, shard.ref, 0, Reason(0.0, ()))

    def withdraw(self, request_id: str) -> None:
        """A toy scheduler keeps no books."""

    def open(self, assignment: Assignment, held: bool = False) -> TokenStream:
        request_id = assignment.request.request_id
        for shard in self._shards:
            if shard.ref == assignment.lease.shard:
                stream = shard.streams[request_id] = TokenStream(
                    assignment, self.cancel, shard.admit
                )
                shard.held[request_id] = assignment
                if not held:
                    shard.admit(request_id)
                return stream
        stream = TokenStream(assignment, self.cancel)
        stream.put(RequestFailed(request_id, Displaced.__name__, "it was replaced"))
        return stream

    def cancel(self, request_id: str, choice: int | None) -> bool:
        for shard in self._shards:
            shard.held.pop(request_id, None)
            shard.batcher.cancel(request_id, choice)
        return True

    async def close(self) -> None:
        """Nothing is kept open."""

    async def run(self) -> None:
        """Steps of all shards in turn, for ever."""
        while True:
            for index in range(len(self._shards)):
                self._step(index)
                await asyncio.sleep(0)

    def kill(self, index: int) -> None:
        """From outside, between two steps. What was held back was never there."""
        shard = self._shards[index]
        self.deaths += 1
        self._shards[index] = self._born(index)
        for request_id in tuple(shard.streams):
            kind = Displaced if request_id in shard.held else ShardLost
            shard.tell(request_id, kind.__name__)
        shard.held.clear()

    def kill_busy(self) -> None:
        """Whoever has a request, or will."""
        for index, shard in enumerate(self._shards):
            if shard.streams:
                self.kill(index)

    def kill_all(self) -> None:
        for index in range(len(self._shards)):
            self.kill(index)

    def verify(self) -> None:
        """All books balance, and nobody holds a page."""
        for shard in self._shards:
            shard.batcher.verify()
            shard.pool.verify([])

    def _step(self, index: int) -> None:
        shard = self._shards[index]
        plan = shard.batcher.plan()
        if plan is None:
            return
        if self._poisons(plan):
            self._burn(shard)
            self.kill(index)
            return
        for delta in shard.batcher.settle(plan, shard.memory.compute(plan)):
            shard.streams[delta.request_id].put(delta)

    def _burn(self, shard: ToyShard) -> None:
        if self._speaking:
            computing = set(shard.batcher.computing())
            for request_id in tuple(shard.streams):
                kind = StepFailed if request_id in computing else Displaced
                shard.tell(request_id, kind.__name__)

    def _born(self, index: int) -> ToyShard:
        name = f"toy/shard-{index}"
        return ToyShard(ShardRef(name, "toy", name, f"life-{next(self._lives)}"))
