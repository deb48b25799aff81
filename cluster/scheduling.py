"""The brain of the BatchScheduler: events in, instructions for routers and shards out.

It holds three ledgers and lets nobody else write to them: who waits (`queues`), what is promised
(`leases`), and who holds which prefix (`routing`). It knows no clock, no actor and no network;
`handle` is its only door, and the same history always gives the same instructions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from cluster.admission import Admission
from cluster.config import SchedulingConfig
from cluster.errors import LedgerBroken
from cluster.events import (
    Acknowledge,
    Event,
    Instruction,
    Reported,
    RouterGone,
    ShardGone,
    Submitted,
    Tell,
    Ticked,
    Withdrawn,
)
from cluster.leases import LeaseBook
from cluster.messages import (
    Decision,
    Lease,
    Reason,
    Refusal,
    RefusalKind,
    ReportAck,
    ShardRef,
    ShardReport,
    Submission,
)
from cluster.prefixes import PrefixIndex
from cluster.queues import ClassQueues, Waiting
from cluster.routing import Placer
from cluster.shard_books import Bill, LeaseState
from cluster.stats import SchedulerStats


class SchedulerBrain:
    """Decides who is served where, and when not at all.

    Classes go in strict order, first come first served within one; a head that fits nowhere yet
    holds up those behind it, so that nothing large starves. Requests for a model without shards
    wait `not_ready_timeout_s` before they are refused, since after a restart of the scheduler the
    shards come back by themselves.
    """

    def __init__(self, config: SchedulingConfig, epoch: int) -> None:
        self._config = config
        self._epoch = epoch
        self._classes = tuple(sla.name for sla in config.classes)
        self._queues = ClassQueues(self._classes, config.max_queued)
        self._book = LeaseBook(epoch, config.claim_timeout_s, config.placement)
        self._placer = Placer(config.placement)
        self._index = PrefixIndex(config.max_indexed_pages)
        self._admission = Admission(config.not_ready_timeout_s)
        self._refused = 0
        self._withdrawn = 0

    def handle(self, event: Event, now: float) -> tuple[Instruction, ...]:
        """The one door: `now` is in seconds and never smaller than at an earlier event."""
        match event:
            case Submitted(submission):
                return tuple(self._submitted(submission, now))
            case Withdrawn(request_id):
                return tuple(self._withdraw(request_id, now))
            case RouterGone(router):
                return tuple(self._router_gone(router, now))
            case Reported(report):
                return tuple(self._reported(report, now))
            case ShardGone(shard):
                self._lose(shard)
                return ()
            case Ticked():
                return tuple(self._ticked(now))

    def _submitted(self, submission: Submission, now: float) -> Iterator[Instruction]:
        """Decided at once wherever possible: room and nobody ahead, or no hope."""
        entry = self._book.entry(submission.request_id)
        if entry is not None:
            yield Tell(submission.router, entry.lease)
            return
        waiting = self._arrival(submission, now)
        decision = self._refusal(waiting, now) or self._grant_or_queue(waiting, now)
        if decision is not None:
            self._queues.remove(submission.request_id)
            yield Tell(submission.router, decision)

    def _withdraw(self, request_id: str, now: float) -> Iterator[Instruction]:
        """A lease that its shard holds already stays: the shard will report its end."""
        entry = self._book.entry(request_id)
        waiting = self._queues.remove(request_id)
        if waiting is not None:
            self._withdrawn += 1
            yield from self._pump(waiting.submission.model, now)
        elif entry is not None and entry.state is LeaseState.GRANTED:
            self._withdrawn += 1
            self._book.move(request_id, LeaseState.RELEASED)
            yield from self._pump(entry.lease.shard.model, now)

    def _router_gone(self, router: str, now: float) -> Iterator[Instruction]:
        for waiting in [w for w in self._queues if w.submission.router == router]:
            self._queues.remove(waiting.submission.request_id)
            self._withdrawn += 1
        yield from self._pump_all(now)

    def _reported(self, report: ShardReport, now: float) -> Iterator[Instruction]:
        """A life of a shard that is not known is not believed before it reports in full."""
        known = self._book.shard(report.shard)
        if known is None and not report.full:
            yield Acknowledge(report.shard, ReportAck(self._epoch, resync=True))
            return
        if known is None or report.number > known.number:
            self._believe(report, now)
        shard = self._book.hear(report.shard, now)
        yield Acknowledge(report.shard, ReportAck(self._epoch, shard.resync))
        yield from self._reunite(report)
        yield from self._pump(report.shard.model, now)

    def _believe(self, report: ShardReport, now: float) -> None:
        name = report.shard.shard
        if report.full:
            self._index.drop(name)
            self._book.reconcile(report, now)
            self._admission.served(report.shard.model)
        else:
            self._book.settle(report, now)
        self._index.store(name, report.stored)
        self._index.remove(name, report.removed)

    def _reunite(self, report: ShardReport) -> Iterator[Instruction]:
        """Who waits for a lease that a shard turns out to hold already is told of it."""
        for held in report.held:
            entry = self._book.entry(held.request_id)
            waiting = self._queues.remove(held.request_id)
            if entry is not None and waiting is not None:
                yield Tell(waiting.submission.router, entry.lease)

    def _lose(self, shard: ShardRef) -> None:
        """Its leases are lost with it; whoever held them asks again. Nobody gains room by it."""
        if self._book.shard(shard) is not None:
            self._index.drop(shard.shard)
            self._book.drop(shard.shard)

    def _ticked(self, now: float) -> Iterator[Instruction]:
        silent_since = now - self._config.shard_timeout_s
        for shard in [s for s in self._book.shards() if s.heard_at <= silent_since]:
            self._lose(shard.ref)
        self._book.doubt_unclaimed(now)
        for waiting in list(self._queues):
            refusal = self._refusal(waiting, now)
            if refusal is not None:
                self._queues.remove(refusal.request_id)
                yield Tell(waiting.submission.router, refusal)
        yield from self._pump_all(now)

    def _arrival(self, submission: Submission, now: float) -> Waiting:
        """A class that the configuration does not know is the default one."""
        if submission.sla not in self._classes:
            submission = replace(submission, sla=self._config.default_class)
        before = self._queues.get(submission.request_id)
        deadline_s = math.inf if submission.deadline_s is None else submission.deadline_s
        return Waiting(submission, now if before is None else before.since, now + deadline_s)

    def _refusal(self, waiting: Waiting, now: float) -> Refusal | None:
        """Why it can no longer be served, if so."""
        submission = waiting.submission
        shards = self._book.serving(submission.model)
        kind = self._admission.objection(waiting, shards, now)
        return None if kind is None else self._refuse(submission, kind, now)

    def _refuse(self, submission: Submission, kind: RefusalKind, now: float) -> Refusal:
        self._refused += 1
        ahead = self._queues.ahead(submission.model, submission.sla)
        return self._admission.refusal(submission, kind, ahead, now)

    def _grant_or_queue(self, waiting: Waiting, now: float) -> Decision | None:
        """A lease, a refusal where the queue is full, or None: it waits now."""
        submission = waiting.submission
        if self._queues.ahead(submission.model, submission.sla) == 0:
            lease = self._grant(waiting, now)
            if lease is not None:
                return lease
        known = self._queues.get(submission.request_id) is not None
        if not known and self._queues.is_full(submission.sla):
            return self._refuse(submission, RefusalKind.QUEUE_FULL, now)
        self._queues.add(waiting)
        return None

    def _grant(self, waiting: Waiting, now: float) -> Lease | None:
        submission = waiting.submission
        match = self._index.match(submission.page_hashes)
        placement = self._placer.place(submission, self._book.serving(submission.model), match)
        if placement is None:
            return None
        self._index.use(submission.page_hashes[: match.depth])
        self._placer.next()
        reason = Reason(now - waiting.since, placement.candidates)
        shard, cached = placement.shard.ref, placement.cached_tokens
        lease = Lease(submission.request_id, self._epoch, shard, cached, reason)
        self._book.grant(
            lease, placement.load, Bill(submission.tenant, submission.sla, waiting.since), now
        )
        self._book.drain()
        self._admission.granted(submission.model, now)
        return lease

    def _pump_all(self, now: float) -> Iterator[Instruction]:
        for model in self._queues.models():
            yield from self._pump(model, now)

    def _pump(self, model: str, now: float) -> Iterator[Instruction]:
        """Serve whose turn it is until one has to go on waiting."""
        while (waiting := self._queues.head(model)) is not None:
            decision = self._refusal(waiting, now) or self._grant(waiting, now)
            if decision is None:
                return
            self._queues.remove(decision.request_id)
            yield Tell(waiting.submission.router, decision)

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            epoch=self._epoch,
            queued=self._queues.depths(),
            leased=len(self._book),
            shards=tuple(shard.ref for shard in self._book.shards()),
            granted=self._book.grants,
            refused=self._refused,
            withdrawn=self._withdrawn,
            indexed_pages=len(self._index),
        )

    def verify(self) -> None:
        """Raises LedgerBroken where a ledger does not add up, or two of them disagree."""
        for ledger in (self._queues, self._book, self._index):
            ledger.verify()
        twice = [w for w in self._queues if self._book.entry(w.submission.request_id) is not None]
        if twice:
            raise LedgerBroken(f"scheduler: {len(twice)} requests both wait and hold a lease")
        strangers = self._index.shards() - {shard.ref.shard for shard in self._book.shards()}
        if strangers:
            raise LedgerBroken(f"scheduler: pages of unknown shards {sorted(strangers)}")
