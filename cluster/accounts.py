"""What requests are charged, counted and measured as, from their lease to their end."""

from __future__ import annotations

import math
from collections import Counter

from cluster.demand import Demand
from cluster.lanes import Waiting
from cluster.measures import RecentSeconds
from cluster.messages import RefusalKind, Submission
from cluster.queues import FairQueues
from cluster.routing import Placement
from cluster.scheduling_config import SchedulingConfig
from cluster.shard_books import Bill, LeaseEntry, LeaseState
from cluster.stats import ClassStats
from cluster.tenants import Tenants


class Accounts:
    """Turns what happens to a lease into entries of the other ledgers.

    At the grant a request is charged to its class and tenant in virtual time: the prompt that is
    not cached, and the output as expected. At the end the difference to the true output is made
    good, the budget gets back what was not needed, and the tenant's counters grow.
    """

    def __init__(self, config: SchedulingConfig, queues: FairQueues, tenants: Tenants) -> None:
        self._queues = queues
        self._tenants = tenants
        self._waits = {sla.name: RecentSeconds() for sla in config.classes}
        self._ttft = {sla.name: RecentSeconds() for sla in config.classes}
        self._tpot = {sla.name: RecentSeconds() for sla in config.classes}
        self.demand = Demand(config.classes)
        self.refusals: Counter[RefusalKind] = Counter()
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def granted(self, waiting: Waiting, placement: Placement, now: float) -> Bill:
        """Charge what it is expected to cost."""
        submission = waiting.submission
        output = waiting.tokens - submission.prompt_tokens
        uncached = placement.load.prefill_tokens
        self._queues.charge(submission, uncached + output)
        self._waits[submission.sla].record(now - waiting.since, now)
        self.demand.granted(submission.model)
        self.prompt_tokens += submission.prompt_tokens
        self.cached_tokens += placement.cached_tokens
        shard = placement.shard
        return Bill(
            submission.tenant,
            submission.sla,
            None if submission.goes_on else waiting.since,
            uncached,
            placement.cached_tokens,
            output,
            shard.pages_of(submission.prompt_tokens + output),
            uncached / (shard.speed.per_second or math.inf),
            submission.door,
        )

    def moved(self, entry: LeaseEntry, state: LeaseState, now: float) -> None:
        """A lease started, or is over."""
        if state is LeaseState.STARTED:
            if entry.bill.since is not None and entry.bill.sla in self._ttft:
                self._ttft[entry.bill.sla].record(now - entry.bill.since, now)
            if not self._tenants.limits(entry.bill.tenant).holds:
                self.demand.started(entry.lease.shard.model, entry.bill, now)
        elif state is LeaseState.ENDED:
            self._ended(entry, now)
        else:
            self._undone(entry, now)

    def refused(self, submission: Submission, kind: RefusalKind, now: float) -> None:
        self.refusals[kind] += 1
        self.demand.refused(submission.model, kind)
        self._tenants.refused(submission.tenant)
        self.released(submission.request_id, now)

    def released(self, request_id: str, now: float) -> None:
        """It will not be served."""
        self._tenants.settle(request_id, needed=0, now=now)

    def stats(self, sla: str, queued: int, queued_tokens: int, now: float) -> ClassStats:
        measured = (of[sla].percentiles(now) for of in (self._waits, self._ttft, self._tpot))
        return ClassStats(queued, queued_tokens, *measured)

    def _ended(self, entry: LeaseEntry, now: float) -> None:
        bill, output = entry.bill, entry.output_tokens
        if output is None:
            output = bill.output_tokens
        else:
            self._tenants.observe(bill.tenant, output / entry.load.sequences)
            self._queues.correct(
                entry.lease.shard.model, bill.sla, bill.tenant, output - bill.output_tokens
            )
            self._time_output(entry, output, now)
        self._tenants.settle(entry.lease.request_id, bill.uncached_tokens + output, now)
        prompt = bill.uncached_tokens + bill.cached_tokens
        page_s = bill.pages * (now - entry.granted_at)
        self._tenants.served(bill.tenant, prompt, bill.cached_tokens, output, page_s)

    def _undone(self, entry: LeaseEntry, now: float) -> None:
        """Nobody had the use of it."""
        bill, cost = entry.bill, entry.bill.uncached_tokens + entry.bill.output_tokens
        self._queues.correct(entry.lease.shard.model, bill.sla, bill.tenant, -cost)
        self.released(entry.lease.request_id, now)

    def _time_output(self, entry: LeaseEntry, output: int, now: float) -> None:
        steps = output / entry.load.sequences - 1
        if entry.started_at is not None and steps >= 1 and entry.bill.sla in self._tpot:
            each_s = (now - entry.started_at) / steps
            self._tpot[entry.bill.sla].record(each_s, now)
            self.demand.ended(entry.lease.shard.model, entry.bill, each_s, now)
