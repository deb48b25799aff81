"""What each tenant has on shards at this moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from cluster.errors import LedgerBroken
from cluster.shard_books import Bill


@dataclass(slots=True)
class Holding:
    """What one tenant has on shards."""

    requests: int = 0
    pages: int = 0


class Holdings:
    """The sums of the leases of each tenant that has any."""

    def __init__(self) -> None:
        self._tenants: dict[str, Holding] = {}

    def of(self, tenant: str) -> Holding:
        return self._tenants.get(tenant) or Holding()

    def add(self, bill: Bill) -> None:
        holding = self._tenants.get(bill.tenant)
        if holding is None:
            holding = self._tenants[bill.tenant] = Holding()
        holding.requests += 1
        holding.pages += bill.pages

    def remove(self, bill: Bill) -> None:
        holding = self._tenants[bill.tenant]
        holding.requests -= 1
        holding.pages -= bill.pages
        if not holding.requests:
            del self._tenants[bill.tenant]

    def verify(self, bills: Iterable[Bill]) -> None:
        """Raises LedgerBroken where the sums are not those of `bills`, which are of all leases."""
        counted: defaultdict[str, Holding] = defaultdict(Holding)
        for bill in bills:
            counted[bill.tenant].requests += 1
            counted[bill.tenant].pages += bill.pages
        if counted != self._tenants:
            raise LedgerBroken(f"holdings: kept {self._tenants}, counted {dict(counted)}")
