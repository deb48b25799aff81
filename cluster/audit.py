"""Finds what ledgers that describe the same requests disagree about, beyond what is on its way.

Doors, shards and scheduler each keep their own book of a request and tell each other by messages,
so at any moment they differ by what has been sent and not yet heard. What still differs at the next
look, an interval longer than any message takes, is a fault: somebody lost something. Pure; whoever
looks takes the books, and mends through the door of the ledger that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Discrepancy(StrEnum):
    """What is wrong, and by which book it is mended."""

    UNOWNED = "unowned"  # the engine computes what no door waits for: the engine ends it
    FORGOTTEN = "forgotten"  # a door waits for what the engine has not: the door asks elsewhere
    UNLEASED = "unleased"  # the engine has what the scheduler does not know: a full report
    UNHELD = "unheld"  # the scheduler leased what nobody has: a full report
    UNWANTED = "unwanted"  # the shard has what its door has dropped: the engine ends it
    UNKNOWN = "unknown"  # a door waits for what the shard has not: the door asks elsewhere
    UNAWAITED = "unawaited"  # the scheduler queues what its router has dropped: it is withdrawn
    UNDECIDED = "undecided"  # a router waits for what is not queued: it is told, or asks, again
    UNRESERVED = "unreserved"  # tokens set aside for a request that is not there: given back


@dataclass(frozen=True, slots=True)
class ShardBooks:
    """The requests of one shard, by its doors, its engine and the scheduler, as far as that one
    answered."""

    doors: frozenset[str]
    engine: frozenset[str]
    leases: frozenset[str] | None


def differences(books: ShardBooks) -> Mapping[Discrepancy, frozenset[str]]:
    """What the three do not agree about at this moment."""
    found = {
        Discrepancy.UNOWNED: books.engine - books.doors,
        Discrepancy.FORGOTTEN: books.doors - books.engine,
    }
    if books.leases is not None:
        found[Discrepancy.UNLEASED] = books.engine - books.leases
        found[Discrepancy.UNHELD] = books.leases - books.engine - books.doors
    return found


class Doubts:
    """What was found at the last look and may yet turn out to have been on its way."""

    def __init__(self) -> None:
        self._last: frozenset[str] = frozenset()

    def confirmed(self, found: Iterable[str]) -> frozenset[str]:
        """What was found at two looks in a row. It has to be found twice again to be told again."""
        now = frozenset(found)
        again = now & self._last
        self._last = now - again
        return again
