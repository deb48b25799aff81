"""The brain of the BatchScheduler: events in, instructions for routers and shards out.

It holds the ledgers (`books`) and lets nobody else write to them. It knows no clock, no actor and
no network; `handle` is its only door, and the same history always gives the same instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cluster.auditing import Auditor
from cluster.books import Books
from cluster.dispatch import Dispatch
from cluster.events import (
    Ask,
    Audited,
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
from cluster.explanations import Decided, DecisionLog, Explanation, Forecast
from cluster.hearing import Hearing
from cluster.messages import Decision, Refusal, RefusalKind, ShardRef, Submission
from cluster.scheduling_config import SchedulingConfig
from cluster.shard_books import LeaseState
from cluster.snapshots import scheduler_stats
from cluster.stats import ModelStats, SchedulerStats

LOOKS_KEPT = 3
"""So many intervals between audits a decision is known of: two looks find it, and one may fail."""


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
        self._hearing = Hearing(epoch, self._books, self._dispatch)
        self._log = DecisionLog(config.max_explained)
        self._decided = Decided(LOOKS_KEPT * config.audit_s)
        self._withdrawn = 0
        self._now = 0.0
        self._auditor = Auditor(self._books)
        self._audited_at = 0.0

    def handle(self, event: Event, now: float) -> tuple[Instruction, ...]:
        """The one door: `now` is in seconds and never smaller than at an earlier event."""
        self._now = now
        instructions = tuple(self._follow(event, now))
        for each in instructions:
            if isinstance(each, Tell) and not each.again:
                self._log.record(each.decision, now)
                self._decided.add(each.decision.request_id, now)
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
        """At which somebody waits, or has yet to use a lease."""
        waiting = frozenset(one.submission.door for one in self._books.queues) - {""}
        return waiting | self._books.leases.unclaimed.doors

    def leases_on(self, shard: ShardRef) -> frozenset[str]:
        """The requests that hold a lease on this life of the shard."""
        book = self._books.leases.shard(shard)
        return frozenset(book.leases if book else ())

    def _follow(self, event: Event, now: float) -> Iterable[Instruction]:
        match event:
            case Submitted(submission):
                return self._submitted(submission, now)
            case Withdrawn(request_id, router):
                return self._withdraw(request_id, router, now)
            case RouterGone(router):
                return self._router_gone(router, now)
            case Audited(router, awaited):
                return self._audited(router, awaited, now)
            case DoorGone(door):
                return self._door_gone(door, now)
            case Reported(report):
                return self._hearing.reported(report, now)
            case ShardGone(shard):
                return self._hearing.gone(shard, now)
            case Ticked():
                return self._ticked(now)

    def _submitted(self, submission: Submission, now: float) -> Iterable[Instruction]:
        """Decided at once wherever possible: room and nobody ahead, or no hope."""
        entry = self._books.leases.entry(submission.request_id)
        if entry is not None:
            return (Tell(submission.router, entry.lease),)
        decision = self._dispatch.receive(submission, now)
        if decision is not None:
            return (Tell(submission.router, decision),)
        if self._dispatch.has_turn(submission, now):
            return self._dispatch.pump(submission.model, now)
        return ()

    def _withdraw(self, request_id: str, router: str, now: float) -> Iterator[Instruction]:
        """A lease that its shard holds already stays: the shard will report its end. A router that
        was asked before, and lives, would wait on, and at the next audit ask for it again."""
        entry = self._books.leases.entry(request_id)
        waiting = self._books.queues.remove(request_id)
        if waiting is not None:
            self._withdrawn += 1
            self._decided.add(request_id, now)
            self._dispatch.accounts.released(request_id, now)
            if router and waiting.submission.router != router:
                why = "it was withdrawn through another router"
                yield Tell(waiting.submission.router, _abandoned(request_id, why))
            yield from self._dispatch.pump(waiting.submission.model, now)
        elif entry is not None and entry.state is LeaseState.GRANTED:
            self._withdrawn += 1
            self._books.leases.move(request_id, LeaseState.RELEASED)
            yield from self._dispatch.settle(now)

    def _router_gone(self, router: str, now: float) -> Iterator[Instruction]:
        self._drop([w.submission for w in self._books.queues if w.submission.router == router], now)
        self._auditor.forget(router)
        yield from self._dispatch.pump_all(now)

    def _door_gone(self, door: str, now: float) -> Iterator[Instruction]:
        """The routers live on, and would wait for ever for what they are not told of.

        What the door did send to a shard after all ends there as the shard misses the door.
        """
        for request_id in self._books.leases.unclaimed.at(door):
            self._books.leases.move(request_id, LeaseState.RELEASED)
            self._withdrawn += 1
        dropped = [w.submission for w in self._books.queues if w.submission.door == door]
        self._drop(dropped, now)
        for one in dropped:
            yield Tell(one.router, _abandoned(one.request_id, "the door of its client is gone"))
        yield from self._dispatch.settle(now)

    def _drop(self, nobodys: Iterable[Submission], now: float) -> None:
        for submission in nobodys:
            self._books.queues.remove(submission.request_id)
            self._dispatch.accounts.released(submission.request_id, now)
            self._withdrawn += 1

    def _audited(self, router: str, awaited: frozenset[str], now: float) -> Iterator[Instruction]:
        """What was lost between it and the scheduler: a withdrawal, a decision, a submission."""
        for request_id in self._auditor.unawaited(router, awaited):
            yield from self._withdraw(request_id, router, now)
        for request_id in self._auditor.undecided(router, awaited):
            decision = self._decision_on(request_id, now)
            yield Tell(router, decision, again=True) if decision else Ask(router, request_id)

    def _decision_on(self, request_id: str, now: float) -> Decision | None:
        """What was decided on this very attempt, and maybe told to another router, if anything was.

        One that is over must not be asked for again: it would be leased, and nobody would claim it.
        """
        entry = self._books.leases.entry(request_id)
        if entry is not None:
            return entry.lease
        known = self._log.explain(request_id, now)
        if known is not None and known.decision.request_id == request_id:
            return known.decision
        decided = request_id in self._decided
        return _abandoned(request_id, "it was decided before, and is over") if decided else None

    def _ticked(self, now: float) -> Iterator[Instruction]:
        yield from self._hearing.silent(now - self._config.shard_timeout_s, now)
        self._books.leases.doubt_unclaimed(now)
        yield from self._dispatch.expire(now)
        if now - self._audited_at >= self._config.audit_s:
            self._audit(now)
        yield from self._dispatch.pump_all(now)

    def _audit(self, now: float) -> None:
        self._audited_at = now
        for request_id in self._auditor.unreserved():
            self._dispatch.accounts.released(request_id, now)

    def stats(self) -> SchedulerStats:
        """As of the last event."""
        return scheduler_stats(
            self._books,
            self._dispatch.accounts,
            epoch=self._epoch,
            withdrawn=self._withdrawn,
            mended=self._auditor.mended,
            now=self._now,
        )

    def demand(self, now: float) -> dict[str, ModelStats]:
        """How full and how late each model is; changes nothing."""
        return self._dispatch.accounts.demand.stats(self._books, now)

    def verify(self) -> None:
        """Raises LedgerBroken where a ledger does not add up, or two of them disagree."""
        self._books.verify()


def _abandoned(request_id: str, why: str) -> Refusal:
    return Refusal(request_id, RefusalKind.ABANDONED, why, 0.0)
