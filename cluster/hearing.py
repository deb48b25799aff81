"""What shards say, or say no more: believed, entered in the books, and told to whom it concerns."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.books import Books
from cluster.dispatch import Dispatch
from cluster.events import Acknowledge, Instruction, Tell
from cluster.messages import ShardRef
from cluster.reports import ReportAck, ShardReport


class Hearing:
    """Hears shards for the brain. A life of a shard that is not known is not believed before it
    reports in full.
    """

    def __init__(self, epoch: int, books: Books, dispatch: Dispatch) -> None:
        self._epoch = epoch
        self._books = books
        self._dispatch = dispatch

    def reported(self, report: ShardReport, now: float) -> Iterator[Instruction]:
        """Acknowledged, and what follows for those who wait."""
        known = self._books.leases.shard(report.shard)
        if known is None and not report.full:
            yield Acknowledge(report.shard, ReportAck(self._epoch, resync=True))
            return
        if known is None or report.number > known.number:
            self._believe(report, now)
        shard = self._books.leases.hear(report.shard, now)
        yield Acknowledge(report.shard, ReportAck(self._epoch, shard.resync))
        yield from self._reunite(report, now)
        if known is None:
            yield from self._dispatch.review(report.shard.model, now)
        yield from self._dispatch.settle(now)

    def gone(self, shard: ShardRef, now: float) -> Iterator[Instruction]:
        """Its leases are lost with it; whoever held them asks again."""
        if self._books.leases.shard(shard) is not None:
            self._books.index.drop(shard.shard)
            self._books.leases.drop(shard.shard)
            yield from self._dispatch.review(shard.model, now)
            yield from self._dispatch.settle(now)

    def silent(self, since: float, now: float) -> Iterator[Instruction]:
        """Who has said nothing since then is gone."""
        for shard in [s for s in self._books.leases.shards() if s.heard_at <= since]:
            yield from self.gone(shard.ref, now)

    def _believe(self, report: ShardReport, now: float) -> None:
        name, model = report.shard.shard, report.shard.model
        if report.full:
            if not len(self._books.leases.serving(model)):
                self._dispatch.accounts.demand.served(model, now)
            self._books.index.drop(name)
            self._books.leases.reconcile(report, now)
            self._dispatch.admission.served(model, now)
        else:
            self._books.leases.settle(report, now)
        self._books.index.store(name, report.stored)
        self._books.index.remove(name, report.removed)

    def _reunite(self, report: ShardReport, now: float) -> Iterator[Tell]:
        """Who waits for a lease that a shard turns out to hold already is told of it."""
        for held in report.held:
            self._dispatch.granting.park(held.tenant)
            entry = self._books.leases.entry(held.request_id)
            waiting = self._books.queues.remove(held.request_id) if entry else None
            if entry is not None and waiting is not None:
                yield Tell(waiting.submission.router, entry.lease)
