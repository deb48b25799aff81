"""A further rank of a shard as an actor: its device, its heads of every page, and no doors."""

from __future__ import annotations

import asyncio
import os

from actors.devices.berth import Berth, assigned_berth
from actors.devices.health import watch_devices
from actors.engine.seat import Seat
from actors.engine_building import follow_engine
from actors.shard_spec import ShardSpec
from actors.tasks import first_to_fail


class EngineRank:
    """Computes its part of every step that rank 0 orders, from `run` on until a rank is lost."""

    def __init__(self, spec: ShardSpec, seat: Seat, devices: tuple[str, ...]) -> None:
        """`devices`: the ids, as Ray has them, of the GPUs that are its own."""
        self._spec = spec
        self._seat = seat
        self._devices = devices
        self._wanted_threads = self._threads = spec.threads
        self._berth: Berth | None = None

    def __repr__(self) -> str:
        model, _, index = self._spec.ref.shard.rpartition("/shard-")
        return f"EngineRank({model}/{index}, {self._seat.rank} of {self._seat.ranks})"

    async def run(self) -> None:
        """Never returns. Raises OperatorError where the rank cannot load, DeviceFault where its
        device has one, ShardLost when another rank is lost."""
        if self._devices:  # rank 0 reserved it, so Ray has hidden nothing from this process
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self._devices)
        binding = self._spec.model.resources.binding
        self._berth = berth = assigned_berth(binding, self._devices, self._spec.claims)
        self._settle()
        follows = asyncio.to_thread(follow_engine, self._spec, lambda: self._threads, self._seat)
        works = [follows, self._settle_again()]
        if berth.devices:
            works.append(watch_devices(berth.devices, self._spec.timing.device_s))
        await first_to_fail(*works)

    async def use_threads(self, count: int) -> None:
        """As of a shard: from the next step on, or as many as it finds CPUs of its own."""
        self._wanted_threads = count
        self._settle()

    async def _settle_again(self) -> None:
        while True:
            await asyncio.sleep(self._spec.timing.settle_s)
            self._settle()

    def _settle(self) -> None:
        if self._berth is not None:
            self._threads = self._berth.settle(self._wanted_threads)
