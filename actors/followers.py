"""The other ranks of a shard whose heads lie on several devices, as its rank 0 keeps them.

Ray gives rank 0 the GPUs of all ranks, so they are of one node and come all at once or not at all;
it hands each follower its own. A follower is an actor that rank 0 owns, so Ray ends it with it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.engine.seat import LOOPBACK, Meeting, Seat
from actors.engine_rank import EngineRank
from actors.identity import node_id
from actors.shard_spec import ShardSpec
from cluster.errors import ShardLost

T = TypeVar("T")


class Followers:
    """Ranks 1 and up of one shard; of a shard that computes alone there are none."""

    def __init__(self, spec: ShardSpec) -> None:
        self.meeting: Meeting | None = None
        self._spec = spec
        self._handles: list[Any] = []
        self._lives: list[asyncio.Task[None]] = []

    def gather(self, devices: tuple[str, ...], threads: int) -> tuple[str, ...]:
        """Start them, with so many threads each and their part of `devices`; the part of rank 0 is
        returned."""
        ranks = self._spec.model.tensor_parallel
        share = len(devices) // ranks
        if ranks > 1:
            listener = socket.create_server((LOOPBACK, 0))
            port: int = listener.getsockname()[1]
            self.meeting = Meeting(Seat(0, ranks, port), listener)
            for rank in range(1, ranks):
                spec = replace(self._spec, threads=threads)
                self._start(spec, Seat(rank, ranks, port), devices[rank * share :][:share])
        return devices[:share]

    async def beside(self, work: Awaitable[T]) -> T:
        """The outcome of `work`; raises what a follower ends with, if one ends before."""
        working = asyncio.ensure_future(work)
        await asyncio.wait([working, *self._lives], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await self.watch()
        return await working

    def __len__(self) -> int:
        return len(self._handles)

    async def watch(self) -> None:
        """Raises what the first follower ends with: OperatorError where it cannot load, ShardLost
        where it died. There must be one."""
        done, _ = await asyncio.wait(self._lives, return_when=asyncio.FIRST_COMPLETED)
        done.pop().result()

    def dismiss(self) -> None:
        """Kill them, as nobody is to compute any more. Ray would do it only once rank 0 is dead,
        and would then have given their GPUs to others."""
        for life in self._lives:
            life.cancel()
        for handle in self._handles:
            ray.kill(handle)

    def use_threads(self, count: int) -> None:
        for handle in self._handles:
            handle.use_threads.remote(count)

    def _start(self, spec: ShardSpec, seat: Seat, devices: tuple[str, ...]) -> None:
        actor: Any = ray.remote(EngineRank).options(
            num_cpus=0,
            num_gpus=0,
            memory=1,  # who asks for nothing at all, Ray puts on any node, wherever it was to go
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id(), soft=False),
            max_restarts=0,
            enable_task_events=False,
        )
        handle = actor.remote(spec, seat, devices)
        self._handles.append(handle)
        life = asyncio.get_running_loop().create_task(_life(seat.rank, handle.run.remote()))
        self._lives.append(life)


async def _life(rank: int, running: Awaitable[None]) -> None:
    try:
        await running
    except RayTaskError as error:
        raise error.cause from None
    except RayActorError as error:
        raise ShardLost(f"rank {rank} of the shard died") from error
