"""The scheduler's ledgers, together: each checks itself, and all of them each other."""

from __future__ import annotations

from cluster.errors import LedgerBroken
from cluster.leases import LeaseBook
from cluster.prefixes import PrefixIndex
from cluster.queues import FairQueues
from cluster.scheduling_config import SchedulingConfig, ranks_of
from cluster.tenants import Tenants


class Books:
    """Who waits, what is promised, who holds which prefix, and what each tenant may spend."""

    def __init__(self, config: SchedulingConfig, epoch: int) -> None:
        self.tenants = Tenants(config)
        self.queues = FairQueues(config.classes, config.max_queued, self.tenants.weight_of)
        ranks = ranks_of(config.classes)
        self.leases = LeaseBook(epoch, config.claim_timeout_s, config.placement, ranks)
        self.index = PrefixIndex(config.max_indexed_pages)

    def verify(self) -> None:
        """Raises LedgerBroken where a ledger does not add up, or two of them disagree."""
        for ledger in (self.queues, self.leases, self.index, self.tenants):
            ledger.verify()
        waiting = {each.submission.request_id for each in self.queues}
        twice = [key for key in waiting if self.leases.entry(key) is not None]
        if twice:
            raise LedgerBroken(f"scheduler: {len(twice)} requests both wait and hold a lease")
        strangers = self.index.shards() - {shard.ref.shard for shard in self.leases.shards()}
        if strangers:
            raise LedgerBroken(f"scheduler: pages of unknown shards {sorted(strangers)}")
        unreserved = self.unreserved()
        if unreserved:
            raise LedgerBroken(f"scheduler: tokens reserved for {len(unreserved)} unknown requests")

    def unreserved(self) -> frozenset[str]:
        """Requests that tokens are set aside for, and that neither wait nor hold a lease."""
        reserved = self.tenants.reservations
        return frozenset(
            key
            for key in reserved
            if self.queues.get(key) is None and self.leases.entry(key) is None
        )
