"""Leases of which no shard has spoken yet: since when, and at whose door."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from cluster.errors import LedgerBroken
from cluster.shard_books import LeaseEntry, LeaseState


class Unclaimed:
    """The leases that are GRANTED, by age and by the door that was to use them."""

    def __init__(self) -> None:
        self._by_age: deque[LeaseEntry] = deque()
        self._at_doors: dict[str, set[str]] = {}

    @property
    def doors(self) -> frozenset[str]:
        """Those that have yet to use a lease."""
        return frozenset(self._at_doors)

    def at(self, door: str) -> tuple[str, ...]:
        """The requests for which `door` has yet to use a lease, by id."""
        return tuple(sorted(self._at_doors.get(door, ())))

    def add(self, entry: LeaseEntry) -> None:
        """Granted no earlier than any before it."""
        self._by_age.append(entry)
        if entry.bill.door:
            self._at_doors.setdefault(entry.bill.door, set()).add(entry.lease.request_id)

    def remove(self, entry: LeaseEntry) -> None:
        """Claimed, or over."""
        at_door = self._at_doors.get(entry.bill.door)
        if at_door is not None:
            at_door.discard(entry.lease.request_id)
            if not at_door:
                del self._at_doors[entry.bill.door]

    def pop_granted_by(self, then: float) -> Iterator[LeaseEntry]:
        """Each that was granted then or before and is unclaimed, once."""
        while self._by_age and self._by_age[0].granted_at <= then:
            entry = self._by_age.popleft()
            if entry.state is LeaseState.GRANTED:
                yield entry

    def verify(self, entries: Iterable[LeaseEntry]) -> None:
        """Raises LedgerBroken unless exactly the unclaimed of all `entries` stand at doors."""
        counted: dict[str, set[str]] = {}
        for entry in entries:
            if entry.bill.door and entry.state is LeaseState.GRANTED:
                counted.setdefault(entry.bill.door, set()).add(entry.lease.request_id)
        if counted != self._at_doors:
            raise LedgerBroken(f"unclaimed leases at doors: {self._at_doors}, counted {counted}")
