"""Leases of which no shard has spoken yet: since when, and at whose door."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from cluster.errors import LedgerBroken
from cluster.shard_books import LeaseEntry, LeaseState


class Unclaimed:
    """The leases that are GRANTED, by id: until they are doubted, and at the door that was to use
    them.
    """

    def __init__(self) -> None:
        self._undoubted: dict[str, float] = {}
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
        request_id = entry.lease.request_id
        self._undoubted[request_id] = entry.granted_at
        if entry.bill.door:
            self._at_doors.setdefault(entry.bill.door, set()).add(request_id)

    def remove(self, entry: LeaseEntry) -> None:
        """Claimed, or over."""
        request_id = entry.lease.request_id
        self._undoubted.pop(request_id, None)
        at_door = self._at_doors.get(entry.bill.door)
        if at_door is not None:
            at_door.discard(request_id)
            if not at_door:
                del self._at_doors[entry.bill.door]

    def doubt(self, then: float) -> tuple[str, ...]:
        """Each that was granted then or before and is unclaimed, by id, once."""
        oldest = takewhile(lambda kept: kept[1] <= then, self._undoubted.items())
        doubted = tuple([request_id for request_id, _ in oldest])
        for request_id in doubted:
            del self._undoubted[request_id]
        return doubted

    def verify(self, entries: Iterable[LeaseEntry]) -> None:
        """Raises LedgerBroken unless exactly the unclaimed of all `entries` stand at doors, and
        none but they are yet to be doubted.
        """
        unclaimed = [entry for entry in entries if entry.state is LeaseState.GRANTED]
        counted: dict[str, set[str]] = {}
        for entry in unclaimed:
            if entry.bill.door:
                counted.setdefault(entry.bill.door, set()).add(entry.lease.request_id)
        if counted != self._at_doors:
            raise LedgerBroken(f"unclaimed leases at doors: {self._at_doors}, counted {counted}")
        stray = self._undoubted.keys() - {entry.lease.request_id for entry in unclaimed}
        if stray:
            raise LedgerBroken(f"to be doubted, and not unclaimed: {sorted(stray)}")
