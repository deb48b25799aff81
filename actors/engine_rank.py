"""A further rank of a shard as an actor: its device, its heads of every page, and no doors."""

from __future__ import annotations

import asyncio
import os

from actors.devices.berth import assigned_berth
from actors.devices.health import watch_devices
from actors.engine.seat import Seat
from actors.engine_building import follow_engine
from actors.shard_spec import ShardSpec
from actors.tasks import first_to_end
from actors.threads import Threads


class EngineRank:
    """Computes its part of every step that rank 0 orders, from `run` on until a rank is lost."""

    def __init__(self, spec: ShardSpec, seat: Seat, devices: tuple[str, ...]) -> None:
        """`devices`: the ids, as Ray has them, of the GPUs that are its own."""
        self._spec = spec
        self._seat = seat
        self._devices = devices
        self._threads = Threads(spec.threads)

    def __repr__(self) -> str:
        model, _, index = self._spec.ref.shard.rpartition("/shard-")
        return f"EngineRank({model}/{index}, {self._seat.rank} of {self._seat.ranks})"

    async def run(self) -> None:
        """Never returns. Raises OperatorError where the rank cannot load, DeviceFault where its
        device has one, ShardLost when another rank is lost."""
        if self._devices:  # rank 0 reserved it, so Ray has hidden nothing from this process
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self._devices)
        binding = self._spec.model.resources.binding
        berth = assigned_berth(binding, self._devices, self._spec.claims)
        self._threads.moor(berth)
        works = [self._follow(), self._threads.run(self._spec.timing.settle_s)]
        if berth.devices:
            works.append(watch_devices(berth.devices, self._spec.timing.device_s))
        await first_to_end(*works)

    async def use_threads(self, count: int) -> None:
        """As of a shard: from the next step on, or as many as it finds CPUs of its own."""
        self._threads.want(count)

    async def _follow(self) -> None:
        threads = self._threads
        await asyncio.to_thread(follow_engine, self._spec, lambda: threads.count, self._seat)
