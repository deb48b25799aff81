"""The scheduler's audits: of its own books, and of what its routers wait for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from cluster.audit import Discrepancy, Doubts
from cluster.books import Books


class Auditor:
    """Finds what was lost between two books; the brain mends it, by the door of the one that is
    wrong. `mended` counts that, by what was wrong.
    """

    def __init__(self, books: Books) -> None:
        self._books = books
        self._doubts: defaultdict[tuple[Discrepancy, str], Doubts] = defaultdict(Doubts)
        self.mended: Counter[str] = Counter()

    def unreserved(self) -> frozenset[str]:
        """Requests that tokens are set aside for, and that are not there."""
        return self._confirmed(Discrepancy.UNRESERVED, "", self._books.unreserved())

    def unawaited(self, router: str, awaited: frozenset[str]) -> frozenset[str]:
        """Requests that are queued for a router, and that it does not wait for."""
        mine = (one.submission for one in self._books.queues if one.submission.router == router)
        queued = {submission.request_id for submission in mine}
        return self._confirmed(Discrepancy.UNAWAITED, router, queued - awaited)

    def undecided(self, router: str, awaited: frozenset[str]) -> frozenset[str]:
        """Requests that a router waits for, and that are queued for nobody."""
        lost = {one for one in awaited if self._books.queues.get(one) is None}
        return self._confirmed(Discrepancy.UNDECIDED, router, lost)

    def forget(self, router: str) -> None:
        """It will not be heard of any more."""
        for discrepancy in (Discrepancy.UNAWAITED, Discrepancy.UNDECIDED):
            self._doubts.pop((discrepancy, router), None)

    def _confirmed(
        self, discrepancy: Discrepancy, router: str, found: Iterable[str]
    ) -> frozenset[str]:
        confirmed = self._doubts[discrepancy, router].confirmed(found)
        if confirmed:
            self.mended[discrepancy] += len(confirmed)
        return confirmed
