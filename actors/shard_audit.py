"""Looks now and then whether doors, engine and scheduler agree about a shard's requests; mends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ray.exceptions import RayError

from actors.naming import ActorAddress
from cluster.audit import Discrepancy, Doubts, ShardBooks, differences
from cluster.errors import NotReady
from cluster.messages import ShardRef

ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class Ledgers:
    """What the audit reads of its shard, and the doors by which it mends. `on_their_way`: taken in
    by the shard, and not yet by its engine."""

    at_doors: Callable[[], frozenset[str]]
    ask_engine: Callable[[], None]
    on_their_way: Callable[[], frozenset[str]]
    end: Callable[[str], None]
    tell_doors: Callable[[Iterable[str]], None]
    report_in_full: Callable[[], None]


class ShardAudit:
    """One shard's audit; `mended` counts what it had to put right, by what was wrong."""

    def __init__(self, shard: ShardRef, scheduler: ActorAddress, ledgers: Ledgers) -> None:
        self._shard = shard
        self._scheduler = scheduler
        self._ledgers = ledgers
        self._doubts = {discrepancy: Doubts() for discrepancy in Discrepancy}
        self._engine: asyncio.Future[frozenset[str]] | None = None
        self.looks = 0
        self.mended: Counter[str] = Counter()

    async def run(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self._mend(differences(await self._books()))
            self.looks += 1

    def enter(self, held: frozenset[str]) -> None:
        """What the engine has, between two steps."""
        if self._engine is not None and not self._engine.done():
            self._engine.set_result(held)

    def count(self, discrepancy: Discrepancy, requests: int) -> None:
        if requests:
            self.mended[discrepancy] += requests

    async def _books(self) -> ShardBooks:
        leases = await self._leases()
        self._engine = asyncio.get_running_loop().create_future()
        self._ledgers.ask_engine()
        engine = await self._engine | self._ledgers.on_their_way()
        return ShardBooks(self._ledgers.at_doors(), engine, leases)

    async def _leases(self) -> frozenset[str] | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                scheduler = await self._scheduler.look_up()
                leases: frozenset[str] = await scheduler.leases_on.remote(self._shard)
        except (RayError, NotReady, TimeoutError):
            return None
        return leases

    def _mend(self, found: Mapping[Discrepancy, frozenset[str]]) -> None:
        for discrepancy, requests in found.items():
            confirmed = self._doubts[discrepancy].confirmed(requests)
            self.count(discrepancy, len(confirmed))
            match discrepancy:
                case Discrepancy.UNOWNED:
                    for request_id in confirmed:
                        self._ledgers.end(request_id)
                case Discrepancy.FORGOTTEN:
                    self._ledgers.tell_doors(confirmed)
                case _ if confirmed:
                    self._ledgers.report_in_full()
