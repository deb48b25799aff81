"""What a shard tells the scheduler: its events, each exactly once or else the whole picture."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from actors.engine_thread import Outcome, Snapshot
from actors.naming import ActorAddress
from cluster.errors import NotReady
from cluster.messages import PageHash, ShardRef
from cluster.reports import NO_PREFILLING, HeldRequest, ReportAck, ShardCapacity, ShardReport

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReportTiming:
    """Seconds: longest silence, least time between reports, wait for an answer, and for a retry."""

    heartbeat_s: float = 1.0
    gap_s: float = 0.02
    patience_s: float = 5.0
    retry_s: float = 0.2


class ReportLedger:
    """Events the scheduler has not heard of. One report is out at a time.

    A report that may have been lost makes the next a full one, for which a snapshot has to come
    first; so no event can be missed, and none is kept twice.
    """

    def __init__(self, shard: ShardRef, capacity: ShardCapacity) -> None:
        self._shard = shard
        self._capacity = capacity
        self._number = 0
        self._free_pages = capacity.total_pages
        self._full = True
        self._leaving = False
        self._displaced: set[str] = set()
        self._snapshot: Snapshot | None = None
        self._prefilling = NO_PREFILLING
        self._clear()

    @property
    def wants_snapshot(self) -> bool:
        return self._full and self._snapshot is None

    @property
    def has_news(self) -> bool:
        """Whether the scheduler should hear of it before the next heartbeat. Pages alone can wait
        for it: a prompt's travel with its start, and an answer's are of use to who asks again once
        it has ended, while decodes fill some in nearly every step."""
        return bool(self._snapshot or self._started or self._ended)

    def enter(self, outcome: Outcome) -> None:
        """Add the events of one turn; a snapshot replaces all there were but ends and speed.

        The scheduler settles an end by what was produced, which no snapshot tells.
        """
        self._free_pages = outcome.stats.free_pages + outcome.stats.cached_pages
        self._prefilling += outcome.progress.prefilling
        if outcome.snapshot is not None and self._full:
            self._snapshot = outcome.snapshot
            here = {one.request_id for one in outcome.snapshot.held}
            ended = [*self._ended, *outcome.progress.ended]
            produced = [*self._produced, *outcome.progress.produced]
            self._clear()
            for request_id, tokens in zip(ended, produced, strict=True):
                if request_id not in here:
                    self._ended.append(request_id)
                    self._produced.append(tokens)
            return
        self._started += outcome.progress.started
        self._ended += outcome.progress.ended
        self._produced += outcome.progress.produced
        self._is_stored.update(dict.fromkeys(outcome.pages.stored, True))
        self._is_stored.update(dict.fromkeys(outcome.pages.removed, False))

    def draft(self) -> ShardReport:
        """The next report. Settle it with `acknowledged` or `lost` before the next draft."""
        self._number += 1
        ends = list(zip(self._ended, self._produced, strict=True))
        report = ShardReport(
            shard=self._shard,
            number=self._number,
            capacity=self._capacity,
            free_pages=self._free_pages,
            started=tuple(self._started),
            ended=tuple(one for one, _ in ends if one not in self._displaced),
            stored=self._stored(),
            removed=tuple(one for one, stored in self._is_stored.items() if not stored),
            full=self._snapshot is not None,
            held=self._held(),
            produced=tuple(tokens for one, tokens in ends if one not in self._displaced),
            leaving=self._leaving,
            displaced=tuple(one for one, _ in ends if one in self._displaced),
            prefilling=self._prefilling,
        )
        self._full = False if self._snapshot else self._full
        self._snapshot, self._prefilling = None, NO_PREFILLING
        self._clear()
        return report

    def acknowledged(self, ack: ReportAck) -> None:
        self._full |= ack.resync

    def lost(self) -> None:
        self._full = True

    def leave(self) -> None:
        """From the next report on the scheduler leases nothing more here."""
        self._leaving = True

    def displace(self, request_ids: Iterable[str]) -> None:
        """When these end, they have not been served: they go on elsewhere."""
        self._displaced.update(request_ids)

    def _stored(self) -> tuple[PageHash, ...]:
        news = tuple(one for one, stored in self._is_stored.items() if stored)
        if self._snapshot is None:
            return news
        gone = {one for one, stored in self._is_stored.items() if not stored}
        return tuple(
            dict.fromkeys(one for one in (*self._snapshot.stored, *news) if one not in gone)
        )

    def _held(self) -> tuple[HeldRequest, ...]:
        held = self._snapshot.held if self._snapshot else ()
        return tuple(one for one in held if one.request_id not in self._ended)

    def _clear(self) -> None:
        self._started: list[str] = []
        self._ended: list[str] = []
        self._produced: list[int] = []
        # Of a page stored and removed since the last report, only the last word counts.
        self._is_stored: dict[PageHash, bool] = {}


class Reporter:
    """Sends the ledger's reports to whoever is the scheduler now, and outlives any number of them.

    With the scheduler away the shard keeps serving; its next life gets a full report.
    """

    def __init__(
        self,
        ledger: ReportLedger,
        scheduler: ActorAddress,
        ask_snapshot: Callable[[], None],
        timing: ReportTiming,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        """`heard` is called whenever a scheduler has taken in a report."""
        self._ledger = ledger
        self._heard = heard
        self._address = scheduler
        self._ask_snapshot = ask_snapshot
        self._timing = timing
        self._scheduler: Any = None
        self._news = asyncio.Event()

    def enter(self, outcome: Outcome) -> None:
        self._ledger.enter(outcome)
        if self._ledger.has_news:
            self._news.set()

    def resync(self) -> None:
        """The next report is a full one: the scheduler's books are in doubt."""
        self._ledger.lost()

    def leave(self) -> None:
        """Say at once that the shard takes no more."""
        self._ledger.leave()
        self._news.set()

    def displace(self, request_ids: Iterable[str]) -> None:
        """When these end, they have not been served: they go on elsewhere."""
        self._ledger.displace(request_ids)

    async def run(self) -> None:
        while True:
            if self._ledger.wants_snapshot:
                self._ask_snapshot()
            await self._wait_for_news()
            await self._report()
            await asyncio.sleep(self._timing.gap_s)

    async def _wait_for_news(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.heartbeat_s):
                await self._news.wait()
        self._news.clear()

    async def _report(self) -> None:
        report = self._ledger.draft()
        try:
            if self._scheduler is None:
                self._scheduler = await self._address.look_up()
            async with asyncio.timeout(self._timing.patience_s):
                self._ledger.acknowledged(await self._scheduler.report.remote(report))
            self._heard()
        except (RayError, NotReady, TimeoutError) as error:
            logger.warning("report %d did not reach the scheduler: %s", report.number, error)
            self._ledger.lost()
            self._scheduler = None
            await asyncio.sleep(self._timing.retry_s)
