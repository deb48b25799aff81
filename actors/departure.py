"""How a shard leaves: it takes no more, finishes what it can, and the rest goes on elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from actors.bookkeeping import Bookkeeping
from actors.doors import Doors
from actors.hand_over import Intake
from actors.shard_spec import ShardSpec
from cluster.errors import Displaced, Drained, StepFailed
from cluster.failover import original_id


class Farewell:
    """Who has still to come for pages of requests that were let go.

    A request is called here what it was called at first, since each shard knows it by another name.
    """

    def __init__(self) -> None:
        self._settled: set[str] = set()
        self._news = asyncio.Event()

    def settle(self, request_ids: Iterable[str]) -> None:
        """Nobody comes for these any more: their new shards have what they want of them."""
        self._settled.update(map(original_id, request_ids))
        self._news.set()

    async def over(self, left: asyncio.Future[frozenset[str]], within_s: float) -> None:
        """Wait until nobody has to come for what is `left`, `within_s` seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                expected = set(map(original_id, await left))
                while expected - self._settled:
                    self._news.clear()
                    await self._news.wait()


class Departure:
    """Lives on the event loop. What is let go ends at once, so that its pages lie still until the
    shards at which it goes on have fetched them."""

    def __init__(self, spec: ShardSpec, doors: Doors, intake: Intake) -> None:
        self._name = spec.ref.shard
        self._hands_over = spec.model.hands_over
        self._doors = doors
        self._intake = intake
        self.farewell = Farewell()
        self.begun = False
        self._leaving: asyncio.Task[None] | None = None

    async def leave(self, books: Bookkeeping | None, limit_s: float, hand_over_s: float) -> None:
        """Take no more, wait `limit_s` seconds for what ends in time, and let the rest go. Who asks
        again waits for what was begun the first time."""
        self._begin(books)
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave(books, limit_s, hand_over_s))
        await asyncio.shield(self._leaving)

    async def break_off(self, books: Bookkeeping | None, computing: Iterable[str]) -> None:
        """Its step, with the requests `computing`, will never end. Nothing can be fetched."""
        self._begin(books)
        self._doors.fail(computing, StepFailed.__name__, f"{self._name} is stuck")
        await self._let_go(books, 0.0)

    def _begin(self, books: Bookkeeping | None) -> None:
        self.begun = True
        if books is not None:
            books.leave()

    async def _leave(self, books: Bookkeeping | None, limit_s: float, hand_over_s: float) -> None:
        await self._doors.idle(limit_s)
        await self._let_go(books, hand_over_s)

    async def _let_go(self, books: Bookkeeping | None, hand_over_s: float) -> None:
        """All that is here goes on elsewhere. Wait until its doors know, and until its pages have
        been fetched, for which there are `hand_over_s` seconds."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + hand_over_s
        going, gives = self._doors.requests(), self._hands_over and hand_over_s > 0
        kind = Drained if gives else Displaced
        self._doors.fail_all(kind.__name__, f"{self._name} is drained")
        if books is not None:
            books.displace(going)
        left = self._intake.let_go(going)
        await self._doors.heard()
        if going and gives:
            await self.farewell.over(left, deadline - clock())
