"""The scheduler's books as one immutable snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cluster.accounts import Accounts
from cluster.books import Books
from cluster.stats import ClassStats, SchedulerStats, TenantStats


def scheduler_stats(
    books: Books,
    accounts: Accounts,
    *,
    epoch: int,
    withdrawn: int,
    mended: Mapping[str, int],
    now: float,
) -> SchedulerStats:
    """What `books` and `accounts` say at this moment, and what the scheduler counted itself."""
    return SchedulerStats(
        epoch=epoch,
        queued=books.queues.depths(),
        leased=len(books.leases),
        shards=tuple(shard.ref for shard in books.leases.shards()),
        granted=books.leases.grants,
        refused=accounts.refusals.total(),
        withdrawn=withdrawn,
        indexed_pages=len(books.index),
        prompt_tokens=accounts.prompt_tokens,
        cached_tokens=accounts.cached_tokens,
        refusals={str(kind): count for kind, count in accounts.refusals.items()},
        mended=dict(mended),
        classes=_class_stats(books, accounts, now),
        tenants=_tenant_stats(books, now),
        models=accounts.demand.stats(books, now),
    )


def _class_stats(books: Books, accounts: Accounts, now: float) -> dict[str, ClassStats]:
    queued, tokens = books.queues.depths(), books.queues.tokens()
    return {sla: accounts.stats(sla, queued[sla], tokens[sla], now) for sla in queued}


def _tenant_stats(books: Books, now: float) -> dict[str, TenantStats]:
    queued = Counter(waiting.submission.tenant for waiting in books.queues)
    return {
        tenant: TenantStats(
            queued=queued[tenant],
            running=books.leases.holding(tenant).requests,
            pages=books.leases.holding(tenant).pages,
            window_tokens=books.tenants.spent(tenant, now),
            usage=usage,
        )
        for tenant, usage in books.tenants.usage().items()
    }
