"""Who may have a lease now, on which shard, and what is written down for it."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.accounts import Accounts
from cluster.books import Books
from cluster.lanes import Waiting
from cluster.loads import ModelShards
from cluster.messages import Candidate, Lease, Reason, Submission
from cluster.prefixes import Match
from cluster.routing import Placer
from cluster.scheduling_config import SchedulingConfig, SlaClass, ranks_of


class Granting:
    """Gives one request its lease, where its class, its tenant and a shard let it have one."""

    def __init__(
        self, config: SchedulingConfig, epoch: int, books: Books, accounts: Accounts
    ) -> None:
        self._epoch = epoch
        self._books = books
        self._accounts = accounts
        self._classes: Mapping[str, SlaClass] = {sla.name: sla for sla in config.classes}
        self._ranks = ranks_of(config.classes)
        self._placer = Placer(config.placement)

    def grant(
        self, waiting: Waiting, shards: ModelShards, match: Match, now: float
    ) -> Lease | None:
        """On the cheapest of `shards`, those of its model; None where none has room."""
        submission = waiting.submission
        rank = self._ranks[submission.sla]
        placement = self._placer.place(submission, shards, match, rank)
        if placement is None:
            return None
        self._books.index.use(submission.page_hashes[: match.depth])
        self._placer.next()
        bill = self._accounts.granted(waiting, placement, now)
        charged = bill.uncached_tokens + bill.output_tokens
        waited_s = now - waiting.since
        shard, cached, load, candidates, explored = placement
        reason = Reason(waited_s, candidates, explored, charged)
        sla = self._classes[submission.sla]
        promises = rank, sla.tpot_s, sla.ttft_s
        lease = Lease(submission.request_id, self._epoch, shard.ref, cached, reason, *promises)
        self._books.leases.grant(lease, load, bill, now)
        self.park(submission.tenant)
        return lease

    def candidates(
        self, submission: Submission, shards: ModelShards, match: Match
    ) -> tuple[Candidate, ...]:
        """The shards it would have the choice of now, cheapest first; none where none has room."""
        placement = self._placer.place(submission, shards, match, self._ranks[submission.sla])
        return placement.candidates if placement else ()

    def may_run(self, waiting: Waiting, shards: ModelShards, now: float) -> bool:
        """Whether its class and its tenant may have another request on a shard; the aged of a class
        that has none there may take one of the places kept free for higher ones."""
        submission = waiting.submission
        has_place = shards.taken < self._classes[submission.sla].fill * shards.places
        if not has_place and self._is_aged(waiting, now):
            has_place = not shards.taken_by[self._ranks[submission.sla]]
        return has_place and not self._at_limit(submission.tenant)

    def holds_up_others(
        self, waiting: Waiting, shards: ModelShards, match: Match, now: float
    ) -> bool:
        """Whether who found no room is not to be overtaken: it has aged, and what stands in its way
        is not the prompts of its own class alone, which nobody's waiting would shorten."""
        submission = waiting.submission
        if not self._is_aged(waiting, now):
            return False
        higher = max(self._ranks[submission.sla] - 1, 0)
        return self._placer.place(submission, shards, match, higher) is None

    def park(self, tenant: str) -> None:
        """Let it wait without a turn while it is at a limit."""
        if self._books.tenants.limits(tenant).holds:
            self._books.queues.park(tenant, self._at_limit(tenant))

    def _is_aged(self, waiting: Waiting, now: float) -> bool:
        return now - waiting.since >= self._classes[waiting.submission.sla].aging_s

    def _at_limit(self, tenant: str) -> bool:
        limits = self._books.tenants.limits(tenant)
        if not limits.holds:
            return False
        holding = self._books.leases.holding(tenant)
        return (
            limits.max_concurrency is not None and holding.requests >= limits.max_concurrency
        ) or (limits.max_pages is not None and holding.pages >= limits.max_pages)
