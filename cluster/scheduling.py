"""The brain of the BatchScheduler: events in, instructions for routers and shards out.

It holds the ledgers (`books`) and lets nobody else write to them. It knows no clock, no actor and
no network; `handle` is its only door, and the same history always gives the same instructions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from cluster.audit import Discrepancy, Doubts
from cluster.books import Books
from cluster.dispatch import Dispatch
from cluster.events import (
    Acknowledge,
    DoorGone,
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
from cluster.explanations import DecisionLog, Explanation, Forecast
from cluster.lanes import Waiting
from cluster.messages import Refusal, RefusalKind, ShardRef, Submission
from cluster.reports import ReportAck, ShardReport
from cluster.scheduling_config import SchedulingConfig
from cluster.shard_books import LeaseState
from cluster.stats import ClassStats, ModelStats, SchedulerStats, TenantStats


class SchedulerBrain:
    """Keeps up with what happens, and has `Dispatch` serve who can be served now.

    Requests for a model without shards wait `not_ready_timeout_s` before they are refused, since
    after a restart of the scheduler the shards come back by themselves.
    """

    def __init__(self, config: SchedulingConfig, epoch: int) -> None:
        self._config = config
        self._epoch = epoch
        self._books = Books(config, epoch)
        self._dispatch = Dispatch(config, epoch, self._books)
        self._log = DecisionLog(config.max_explained)
        self._withdrawn = 0
        self._now = 0.0
        self._audited_at = 0.0
        self._doubts = Doubts()
        self._mended: Counter[str] = Counter()

    def handle(self, event: Event, now: float) -> tuple[Instruction, ...]:
        """The one door: `now` is in seconds and never smaller than at an earlier event."""
        self._now = now
        instructions = tuple(self._follow(event, now))
        for each in instructions:
            if isinstance(each, Tell):
                self._log.record(each.decision, now)
        return instructions

    def wake_at(self) -> float:
        """When a `Ticked` is due at the latest for what time alone brings about, but for silence
        and doubt, which may be found out a second late."""
        return self._dispatch.wake_at(self._now)

    def explain(self, request_id: str, now: float) -> Explanation | None:
        """The last decision on a request, while it is remembered; changes nothing."""
        return self._log.explain(request_id, now)

    def forecast(self, submission: Submission, now: float) -> Forecast:
        """What would become of `submission` if it came now, and why; changes nothing."""
        return self._dispatch.forecast(submission, now)

    def doors(self) -> frozenset[str]:
        """At which somebody waits."""
        return frozenset(one.submission.door for one in self._books.queues) - {""}

    def leases_on(self, shard: ShardRef) -> frozenset[str]:
        """The requests that hold a lease on this life of the shard."""
        book = self._books.leases.shard(shard)
        return frozenset(book.leases if book else ())

    def _follow(self, event: Event, now: float) -> Iterator[Instruction]:
        match event:
            case Submitted(submission):
                return self._submitted(submission, now)
            case Withdrawn(request_id):
                return self._withdraw(request_id, now)
            case RouterGone(router):
                return self._router_gone(router, now)
            case DoorGone(door):
                return self._door_gone(door, now)
            case Reported(report):
                return self._reported(report, now)
            case ShardGone(shard):
                return self._shard_gone(shard, now)
            case Ticked():
                return self._ticked(now)

    def _submitted(self, submission: Submission, now: float) -> Iterator[Instruction]:
        """Decided at once wherever possible: room and nobody ahead, or no hope."""
        entry = self._books.leases.entry(submission.request_id)
        if entry is not None:
            yield Tell(submission.router, entry.lease)
            return
        decision = self._dispatch.receive(submission, now)
        if decision is not None:
            yield Tell(submission.router, decision)
        elif self._dispatch.has_turn(submission, now):
            yield from self._dispatch.pump(submission.model, now)

    def _withdraw(self, request_id: str, now: float) -> Iterator[Instruction]:
        """A lease that its shard holds already stays: the shard will report its end."""
        entry = self._books.leases.entry(request_id)
        waiting = self._books.queues.remove(request_id)
        if waiting is not None:
            self._withdrawn += 1
            self._dispatch.accounts.released(request_id, now)
            yield from self._dispatch.pump(waiting.submission.model, now)
        elif entry is not None and entry.state is LeaseState.GRANTED:
            self._withdrawn += 1
            self._books.leases.move(request_id, LeaseState.RELEASED)
            yield from self._dispatch.settle(now)

    def _router_gone(self, router: str, now: float) -> Iterator[Instruction]:
        self._drop([w.submission for w in self._books.queues if w.submission.router == router], now)
        yield from self._dispatch.pump_all(now)

    def _door_gone(self, door: str, now: float) -> Iterator[Instruction]:
        """The routers live on, and would wait for ever for what they are not told of."""
        dropped = [w.submission for w in self._books.queues if w.submission.door == door]
        self._drop(dropped, now)
        for one in dropped:
            why = "the door at which its client stood is gone"
            yield Tell(one.router, Refusal(one.request_id, RefusalKind.QUEUE_TIMEOUT, why, 0.0))
        yield from self._dispatch.pump_all(now)

    def _drop(self, nobodys: Iterable[Submission], now: float) -> None:
        for submission in nobodys:
            self._books.queues.remove(submission.request_id)
            self._dispatch.accounts.released(submission.request_id, now)
            self._withdrawn += 1

    def _reported(self, report: ShardReport, now: float) -> Iterator[Instruction]:
        """A life of a shard that is not known is not believed before it reports in full."""
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
            yield from self._refuse_waiting(report.shard.model, now)
        yield from self._dispatch.settle(now)

    def _believe(self, report: ShardReport, now: float) -> None:
        name = report.shard.shard
        if report.full:
            self._books.index.drop(name)
            self._books.leases.reconcile(report, now)
            self._dispatch.admission.served(report.shard.model, now)
        else:
            self._books.leases.settle(report, now)
        self._books.index.store(name, report.stored)
        self._books.index.remove(name, report.removed)

    def _reunite(self, report: ShardReport, now: float) -> Iterator[Instruction]:
        """Who waits for a lease that a shard turns out to hold already is told of it."""
        for held in report.held:
            self._dispatch.park(held.tenant)
            entry = self._books.leases.entry(held.request_id)
            waiting = self._books.queues.remove(held.request_id) if entry else None
            if entry is not None and waiting is not None:
                yield Tell(waiting.submission.router, entry.lease)

    def _shard_gone(self, shard: ShardRef, now: float) -> Iterator[Instruction]:
        """Its leases are lost with it; whoever held them asks again."""
        if self._books.leases.shard(shard) is not None:
            self._books.index.drop(shard.shard)
            self._books.leases.drop(shard.shard)
            yield from self._refuse_waiting(shard.model, now)
            yield from self._dispatch.settle(now)

    def _ticked(self, now: float) -> Iterator[Instruction]:
        silent_since = now - self._config.shard_timeout_s
        for shard in [s for s in self._books.leases.shards() if s.heard_at <= silent_since]:
            yield from self._shard_gone(shard.ref, now)
        self._books.leases.doubt_unclaimed(now)
        for waiting in self._dispatch.expiries.due(now):
            yield from self._refuse_if_hopeless(waiting, now)
        for model in self._books.queues.models():
            if not len(self._books.leases.serving(model)):
                yield from self._refuse_waiting(model, now)
        if now - self._audited_at >= self._config.audit_s:
            self._audit(now)
        yield from self._dispatch.pump_all(now)

    def _audit(self, now: float) -> None:
        self._audited_at = now
        for request_id in self._doubts.confirmed(self._books.unreserved()):
            self._dispatch.accounts.released(request_id, now)
            self._mended[Discrepancy.UNRESERVED] += 1

    def _refuse_waiting(self, model: str, now: float) -> Iterator[Instruction]:
        """What a change of its shards has made impossible."""
        for waiting in self._books.queues.of_model(model):
            yield from self._refuse_if_hopeless(waiting, now)

    def _refuse_if_hopeless(self, waiting: Waiting, now: float) -> Iterator[Instruction]:
        refusal = self._dispatch.objection(waiting, now)
        if refusal is not None:
            yield Tell(waiting.submission.router, refusal)

    def stats(self) -> SchedulerStats:
        """As of the last event."""
        books, accounts = self._books, self._dispatch.accounts
        return SchedulerStats(
            epoch=self._epoch,
            queued=books.queues.depths(),
            leased=len(books.leases),
            shards=tuple(shard.ref for shard in books.leases.shards()),
            granted=books.leases.grants,
            refused=accounts.refusals.total(),
            withdrawn=self._withdrawn,
            indexed_pages=len(books.index),
            prompt_tokens=accounts.prompt_tokens,
            cached_tokens=accounts.cached_tokens,
            refusals={str(kind): count for kind, count in accounts.refusals.items()},
            mended=dict(self._mended),
            classes=self._class_stats(),
            tenants=self._tenant_stats(),
            models=self.demand(self._now),
        )

    def demand(self, now: float) -> dict[str, ModelStats]:
        """How full and how late each model is; changes nothing."""
        return self._dispatch.accounts.demand.stats(self._books, now)

    def _class_stats(self) -> dict[str, ClassStats]:
        queued, tokens = self._books.queues.depths(), self._books.queues.tokens()
        stats = self._dispatch.accounts.stats
        return {sla: stats(sla, queued[sla], tokens[sla], self._now) for sla in queued}

    def _tenant_stats(self) -> dict[str, TenantStats]:
        books = self._books
        queued = Counter(waiting.submission.tenant for waiting in books.queues)
        return {
            tenant: TenantStats(
                queued=queued[tenant],
                running=books.leases.holding(tenant).requests,
                pages=books.leases.holding(tenant).pages,
                window_tokens=books.tenants.spent(tenant, self._now),
                usage=usage,
            )
            for tenant, usage in books.tenants.usage().items()
        }

    def verify(self) -> None:
        """Raises LedgerBroken where a ledger does not add up, or two of them disagree."""
        self._books.verify()
