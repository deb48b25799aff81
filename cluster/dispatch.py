"""From a request to its lease: who is taken in, who is next, and where to.

The brain says what has happened (`scheduling`), this what follows for those who wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cluster.accounts import Accounts
from cluster.admission import Admission
from cluster.books import Books
from cluster.events import Tell
from cluster.expiries import Expiries
from cluster.explanations import Forecast
from cluster.gathering import Gathering
from cluster.granting import Granting
from cluster.lanes import Waiting
from cluster.loads import ModelShards
from cluster.messages import Decision, Lease, Refusal, RefusalKind, Submission
from cluster.prefixes import Match
from cluster.scheduling_config import SchedulingConfig
from cluster.shard_books import LeaseState


class Dispatch:
    """Takes requests in, refuses them, or gives them leases, in fair order.

    Classes share by weight, tenants within a class likewise, and one tenant's requests go by
    deadline. A head that fits nowhere yet holds up its own class and those below it, and, once it
    has waited `aging_s`, those above too, so that nothing large starves.
    """

    def __init__(self, config: SchedulingConfig, epoch: int, books: Books) -> None:
        self._default_class = config.default_class
        self._short_first_s = config.short_first_s
        self._books = books
        self._classes = {sla.name: sla for sla in config.classes}
        self.expiries = Expiries(books.queues)
        self._gathering = Gathering(config, books.leases)
        self.admission = Admission(config, books.queues.ahead)
        self.accounts = Accounts(config, books.queues, books.tenants)
        self.granting = Granting(config, epoch, books, self.accounts)

    def receive(self, submission: Submission, now: float) -> Decision | None:
        """A lease, a refusal where it may not even wait, or None: it waits now."""
        match = self._books.index.match(submission.page_hashes)
        shards = self._books.leases.serving(submission.model)
        waiting = self._arrival(submission, shards, match, now)
        return self.objection(waiting, shards, now) or self._take_in(waiting, shards, match, now)

    def _arrival(
        self, submission: Submission, shards: ModelShards, match: Match, now: float
    ) -> Waiting:
        """A class that the configuration does not know is the default one."""
        if submission.sla not in self._classes:
            submission = replace(submission, sla=self._default_class)
        before, prompt = self._books.queues.get(submission.request_id), submission.prompt_tokens
        since = now if before is None else before.since
        sla = self._classes[submission.sla]
        deadline_at = math.inf if submission.deadline_s is None else now + submission.deadline_s
        if before is not None:
            deadline_at = min(deadline_at, before.deadline_at)
        stood_back_s = self._short_first_s * (prompt - match.depth * shards.block_size)
        due = min(deadline_at, since + (sla.ttft_s or sla.aging_s) + stood_back_s)
        expires_at = min(deadline_at, since + sla.queue_timeout_s)
        tokens = prompt + self._books.tenants.expected_output(submission)
        number = self._books.queues.number(submission)
        return Waiting(submission, since, deadline_at, due, expires_at, tokens, number)

    def _take_in(
        self, waiting: Waiting, shards: ModelShards, match: Match, now: float
    ) -> Decision | None:
        submission, queues = waiting.submission, self._books.queues
        others_wait = queues.depth(submission.model) > 0
        if queues.get(submission.request_id) is None:
            refusal = self._unwelcome(waiting, now)
            if refusal is not None:
                self.accounts.refused(submission, refusal.kind, now)
                return refusal
        self._books.tenants.reserve(submission, now)  # of a lost lease all was given back
        gathers = self._gathering.arrive(submission.model, now)
        if not others_wait:
            may_run = not gathers and self.granting.may_run(waiting, shards, now)
            lease = self.granting.grant(waiting, shards, match, now) if may_run else None
            if lease is not None:
                return lease
            if queues.is_full(submission.sla) and not submission.goes_on:
                return self._refuse(submission, RefusalKind.QUEUE_FULL, now)
            self.admission.backlogged(submission.model, now)
        queues.add(waiting)
        self.expiries.note(waiting)
        return None

    def _unwelcome(self, waiting: Waiting, now: float) -> Refusal | None:
        """Why it may not even wait, if so: its budget, no place in the queue, no hope there."""
        submission, queues = waiting.submission, self._books.queues
        if submission.goes_on:
            return None
        refusal = self._budget_refusal(submission, now)
        if refusal is not None or not queues.depth(submission.model):
            return refusal
        full = queues.is_full(submission.sla)
        kind = RefusalKind.QUEUE_FULL if full else self.admission.hopeless(waiting, now)
        return None if kind is None else self.admission.refusal(submission, kind)

    def has_turn(self, submission: Submission, now: float) -> bool:
        """Whether its coming lets anybody be served: itself, or all that gathered until it came."""
        closes = self._gathering.closes(submission.model, now)
        return closes or self._books.queues.is_head(submission.request_id)

    def wake_at(self, now: float) -> float:
        """When something is due by time alone: a deadline, a timeout, the end of a window."""
        return min(self._gathering.next_close(now), self.expiries.next_at)

    def objection(self, waiting: Waiting, shards: ModelShards, now: float) -> Refusal | None:
        """Why `shards`, those of its model, can no longer serve it, if so; then it does not wait
        any more.
        """
        if not len(shards):
            self.admission.missed(waiting.submission.model, now)
        kind = self.admission.objection(waiting, shards, now)
        return None if kind is None else self._refuse(waiting.submission, kind, now)

    def review(self, model: str, now: float) -> Iterator[Tell]:
        """Refuse what a change of its shards has made impossible."""
        yield from self._object_to(self._books.queues.of_model(model), now)

    def expire(self, now: float) -> Iterator[Tell]:
        """Refuse who has waited too long, or for a model that has no shard."""
        yield from self._object_to(self.expiries.due(now), now)
        for model in self._books.queues.models():
            if not len(self._books.leases.serving(model)):
                yield from self.review(model, now)

    def _object_to(self, every: Iterable[Waiting], now: float) -> Iterator[Tell]:
        for waiting in every:
            shards = self._books.leases.serving(waiting.submission.model)
            refusal = self.objection(waiting, shards, now)
            if refusal is not None:
                yield Tell(waiting.submission.router, refusal)

    def _refuse(self, submission: Submission, kind: RefusalKind, now: float) -> Refusal:
        self._books.queues.remove(submission.request_id)
        self.accounts.refused(submission, kind, now)
        return self.admission.refusal(submission, kind)

    def _budget_refusal(self, submission: Submission, now: float) -> Refusal | None:
        share = self._classes[submission.sla].burst_share
        exhausted = self._books.tenants.objection(submission, share, now)
        if exhausted is None:
            return None
        kind, retry_after_s = RefusalKind.OVER_BUDGET, exhausted.retry_after_s
        return Refusal(submission.request_id, kind, exhausted.message, retry_after_s)

    def settle(self, now: float) -> Iterator[Tell]:
        """Enter what became of leases in the other books, and let others have what they left."""
        for entry, state in self._books.leases.drain():
            self.accounts.moved(entry, state, now)
            self.granting.park(entry.bill.tenant)
            if entry.bill.since is not None and state is LeaseState.STARTED:
                self._gathering.started(entry.lease.shard.model, now - entry.bill.since, now)
        yield from self.pump_all(now)

    def pump_all(self, now: float) -> Iterator[Tell]:
        for model in self._books.queues.models():
            yield from self.pump(model, now)

    def pump(self, model: str, now: float) -> Iterator[Tell]:
        """Serve whose turn it is until all have to go on waiting."""
        if self._gathering.holds(model, now):
            return
        while (tell := self._serve_next(model, now)) is not None:
            yield tell

    def _serve_next(self, model: str, now: float) -> Tell | None:
        below, shards = len(self._classes), self._books.leases.serving(model)
        for rank, waiting in self._books.queues.heads(model):
            submission = waiting.submission
            if not self.granting.may_run(waiting, shards, now):
                self._books.queues.waive(model, rank)
                continue
            if rank >= below:
                continue
            match = self._books.index.match(submission.page_hashes)
            refusal = self.objection(waiting, shards, now)
            decision = refusal or self.granting.grant(waiting, shards, match, now)
            if decision is not None:
                if isinstance(decision, Lease):
                    self.admission.granted(waiting, now)
                self._books.queues.remove(submission.request_id)
                return Tell(submission.router, decision)
            if self.granting.holds_up_others(waiting, shards, match, now):
                return None
            below = rank
        return None

    def forecast(self, submission: Submission, now: float) -> Forecast:
        """What would become of it now; changes nothing."""
        match = self._books.index.match(submission.page_hashes)
        shards = self._books.leases.serving(submission.model)
        waiting = self._arrival(submission, shards, match, now)
        submission = waiting.submission
        candidates = self.granting.candidates(submission, shards, match)
        runs = bool(candidates) and self.granting.may_run(waiting, shards, now)
        return Forecast(
            refusal=self._foreseen(waiting, shards, runs, now),
            wait_s=self.admission.foreseen_s(submission, shards, now),
            ahead_tokens=self._books.queues.ahead(submission),
            candidates=candidates,
        )

    def _foreseen(
        self, waiting: Waiting, shards: ModelShards, runs: bool, now: float
    ) -> Refusal | None:
        """Why it would be refused, if so; `runs` says whether a shard would take it now."""
        submission = waiting.submission
        kind = self.admission.objection(waiting, shards, now)
        if kind is None:
            refusal = self._unwelcome(waiting, now)
            if refusal is not None or runs or not self._books.queues.is_full(submission.sla):
                return refusal
            kind = RefusalKind.QUEUE_FULL
        return self.admission.refusal(submission, kind)
