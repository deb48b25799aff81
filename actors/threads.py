"""The CPUs that a shard computes with: as many as it is to have, as far as its node has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.devices.berth import Berth
from cluster.binding import Binding


class Threads:
    """How many CPU threads a shard is to have, and how many it has.

    Before it has a berth it only remembers how many it is to have; from then on `use` is told
    whenever it has another number. Who computes may ask for the `count` instead.
    """

    def __init__(self, wanted: int, use: Callable[[int], None] = lambda _: None) -> None:
        self._wanted = self._count = wanted
        self._use = use
        self._berth: Berth | None = None

    @property
    def wanted(self) -> int:
        return self._wanted

    @property
    def count(self) -> int:
        return self._count

    @property
    def binding(self) -> Binding | None:
        """None without a berth."""
        return self._berth.binding if self._berth else None

    def moor(self, berth: Berth) -> None:
        """Take CPUs there; to be called where the threads that it binds are yet to be started."""
        self._berth = berth
        self._settle()

    def want(self, count: int) -> None:
        self._wanted = count
        self._settle()

    async def run(self, interval_s: float) -> None:
        """A neighbour that leaves, or narrows, makes room later than we are told to take it."""
        while True:
            await asyncio.sleep(interval_s)
            self._settle()

    def _settle(self) -> None:
        if self._berth is None:
            return
        count = self._berth.settle(self._wanted)
        if count != self._count:
            self._count = count
            self._use(count)
